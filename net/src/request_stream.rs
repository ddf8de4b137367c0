//! Requests to one process on a stream that stays open, answered in the order in which they were sent.
//!
//! When the stream breaks, it is opened again and the requests that have no answer yet are sent again, in their order,
//! for as long as the [`Retry`] says. A request that must not be sent twice gets a fault instead. The other end is
//! [`answer_in_order`](crate::answer_in_order).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_actors::{Fault, FaultKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::message::Message;
use crate::peer::{OPENING, Peer};
use crate::retry::Retry;

/// Requests that wait to be sent.
const CAPACITY: usize = 8;

/// Sends requests to one path of one process. Clones share the stream. It is opened with the first request and closed
/// when the last clone is dropped.
#[derive(Clone)]
pub struct RequestStream {
    requests: mpsc::Sender<Request>,
    name: String,
}

/// What may happen to a request whose connection breaks before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// Send it again: carried out twice, it has the effect of once.
    Yes,
    /// Fail it: it may have been carried out or not.
    No,
}

struct Request {
    message: Message,
    resend: Resend,
    answer: oneshot::Sender<Result<(Message, Message), Fault>>,
}

impl RequestStream {
    /// A stream to `path` of `peer`, driven by a task of the peer's runtime. `name` is what messages call the process.
    pub fn new(peer: Peer, name: &str, path: &[&str], retry: Retry) -> Self {
        let (requests, receiver) = mpsc::channel(CAPACITY);
        let path = path.iter().map(|&element| element.to_owned()).collect();
        let (io, receiver) = (peer.io().clone(), tokio::sync::Mutex::new(receiver));
        let task = StreamTask { peer, name: name.to_owned(), path, retry, receiver, unanswered: Mutex::default() };
        io.spawn(Arc::new(task).run());
        Self { requests, name: name.to_owned() }
    }

    /// Sends a request and waits for its answer. Returns (request, answer): the request's buffers can be used again.
    ///
    /// # Errors
    /// The fault that the other process answers. External: the stream could not be opened within the retry's time, or it broke under a
    /// request that must not be sent twice.
    ///
    /// # Cancel safety
    /// If this is dropped, the request may have been sent, or may still be sent.
    pub async fn ask(&self, message: Message, resend: Resend) -> Result<(Message, Message), Fault> {
        self.begin(message, resend).await?.await
    }

    /// The first half of [`ask`](Self::ask): waits for room, and puts the request behind all those that were begun before it. The
    /// other process begins requests in this order, also after the stream broke. The future that it returns waits for the answer.
    ///
    /// # Errors
    /// Internal: the stream has ended. The future returns the faults of `ask`.
    ///
    /// # Cancel safety
    /// As `ask`; a request that was begun is sent also if its future is dropped.
    pub async fn begin(
        &self,
        message: Message,
        resend: Resend,
    ) -> Result<impl Future<Output = Result<(Message, Message), Fault>> + Send + 'static + use<>, Fault> {
        let (answer, answered) = oneshot::channel();
        let name = self.name.clone();
        let gone = move || Fault::internal(format!("the request stream to {name} has ended"));
        if self.requests.send(Request { message, resend, answer }).await.is_err() {
            return Err(gone());
        }
        Ok(async move { answered.await.unwrap_or_else(|_| Err(gone())) })
    }
}

#[derive(Default)]
struct Unanswered {
    /// The oldest first.
    requests: VecDeque<Request>,
    /// How many of these requests were sent on the open stream.
    sent: usize,
}

struct StreamTask {
    peer: Peer,
    name: String,
    path: Vec<String>,
    retry: Retry,
    /// Only the task locks it.
    receiver: tokio::sync::Mutex<mpsc::Receiver<Request>>,
    unanswered: Mutex<Unanswered>,
}

/// Why a stream ended.
enum StreamEnd {
    /// All clones of the [`RequestStream`] were dropped.
    Closed,
    /// It broke, and either it had made progress or no request is left to send again.
    Broken,
}

impl StreamTask {
    async fn run(self: Arc<Self>) {
        let what = format!("{} on {}", self.path.join("/"), self.name);
        loop {
            if self.unanswered().requests.is_empty() {
                let Some(request) = self.receiver.lock().await.recv().await else { return };
                self.unanswered().requests.push_back(request);
            }
            let task = self.clone();
            match self.retry.run(&what, move || task.clone().stream()).await {
                Ok(StreamEnd::Closed) => return,
                Ok(StreamEnd::Broken) => {}
                // Time is up for every request that waits.
                Err(fault) => {
                    let requests = std::mem::take(&mut self.unanswered().requests);
                    requests.into_iter().for_each(|request| drop(request.answer.send(Err(fault.clone()))));
                }
            }
        }
    }

    /// One stream, from its opening to its end.
    async fn stream(self: Arc<Self>) -> Result<StreamEnd, Fault> {
        let begun = Instant::now();
        let mut answers = 0;
        let end = self.exchange(&mut answers).await;
        let sent = std::mem::take(&mut self.unanswered().sent);
        match end {
            Ok(()) => Ok(StreamEnd::Closed),
            // The peer refused the oldest request. The others are sent again.
            Err(fault) if !fault.retryable => {
                let oldest = self.unanswered().requests.pop_front();
                self.fail_those_not_to_resend(sent.saturating_sub(1), &fault);
                oldest.into_iter().for_each(|request| drop(request.answer.send(Err(fault.clone()))));
                Ok(StreamEnd::Broken)
            }
            Err(fault) => {
                self.fail_those_not_to_resend(sent, &fault);
                // The retry's time starts again after a stream that gave an answer or lived long.
                let progress = answers > 0 || begun.elapsed() > self.retry.most;
                if progress || self.unanswered().requests.is_empty() { Ok(StreamEnd::Broken) } else { Err(fault) }
            }
        }
    }

    async fn exchange(&self, answers: &mut u64) -> Result<(), Fault> {
        let mut receiver = self.receiver.lock().await;
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let (mut outgoing, mut incoming) = self.peer.exchange(&path, OPENING).await?;
        // Both directions at once: the peer may not read while it answers.
        let send = async {
            loop {
                let next = {
                    let unanswered = self.unanswered();
                    unanswered.requests.get(unanswered.sent).map(|request| request.message.clone())
                };
                let message = match next {
                    Some(message) => message,
                    None => match receiver.recv().await {
                        Some(request) => {
                            self.unanswered().requests.push_back(request);
                            continue;
                        }
                        None => return,
                    },
                };
                // Counted before it is sent: the answer may arrive before `send` returns.
                self.unanswered().sent += 1;
                match outgoing.send(message).await {
                    Ok(()) => {}
                    // The receiving direction gets the reason.
                    Err(fault) if fault.retryable => std::future::pending::<()>().await,
                    // The message cannot be encoded, so the peer has nothing of it, and the stream goes on.
                    Err(fault) => self.fail_last_sent(fault),
                }
            }
        };
        let receive = async {
            loop {
                let Some(message) = incoming.next().await? else {
                    return Err(Fault::external(format!("{} ended the request stream", self.name))
                        .kind(FaultKind::Unreachable)
                        .retryable());
                };
                let request = {
                    let mut unanswered = self.unanswered();
                    if unanswered.sent == 0 {
                        return Err(Fault::internal(format!("{} sent an answer without a request", self.name)));
                    }
                    unanswered.sent -= 1;
                    unanswered.requests.pop_front()
                };
                *answers += 1;
                if let Some(request) = request {
                    let _ = request.answer.send(Ok((request.message, message)));
                }
            }
        };
        tokio::select! {
            () = send => Ok(()),
            fault = receive => fault,
        }
    }

    /// Fails the request that was counted as sent last: it was not sent.
    fn fail_last_sent(&self, fault: Fault) {
        let mut unanswered = self.unanswered();
        let Some(last) = unanswered.sent.checked_sub(1) else { return };
        unanswered.sent = last;
        if let Some(request) = unanswered.requests.remove(last) {
            let _ = request.answer.send(Err(fault));
        }
    }

    /// Fails the requests among the first `sent` that must not be sent twice.
    fn fail_those_not_to_resend(&self, sent: usize, fault: &Fault) {
        let mut unanswered = self.unanswered();
        let requests = std::mem::take(&mut unanswered.requests);
        for (i, request) in requests.into_iter().enumerate() {
            if i >= sent || request.resend == Resend::Yes {
                unanswered.requests.push_back(request);
            } else {
                let _ = request.answer.send(Err(Fault::external(format!(
                    "the connection broke under a request that must not be sent twice, and that may have been applied or \
                     not: {fault}"
                ))
                .kind(FaultKind::Unreachable).with_source(fault.clone())));
            }
        }
    }

    fn unanswered(&self) -> MutexGuard<'_, Unanswered> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
