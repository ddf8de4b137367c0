//! A long conversation with another process: questions one after the other on one stream, answers in their order.
//!
//! Comes in: messages of any number of askers. Goes out: the answer to each, or a [`Fault`]. Askers wait for theirs alone;
//! the stream is driven by a task of the network's runtime, which lives as long as the line.
//!
//! When the stream breaks, what was asked and not answered is asked again, in its order, on a new one, for as long as
//! the line's [`Retry`] says. What must not be asked twice gets a fault instead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_actors::{Domain, Fault};
use forebay_net::{Message, Peer, Retry, runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How long a peer may take to accept a stream.
const OPENING: Duration = Duration::from_secs(10);

/// Questions that wait to be sent.
const CAPACITY: usize = 8;

/// Asks one process, by one path. Clones share the stream, which is opened with the first question.
#[derive(Clone)]
pub(crate) struct RequestStream {
    questions: mpsc::Sender<PendingRequest>,
    name: String,
}

struct PendingRequest {
    message: Message,
    /// May be asked again.
    again: bool,
    answer: oneshot::Sender<Result<(Message, Message), Fault>>,
}

impl RequestStream {
    /// `name`: of the process, for messages.
    pub(crate) fn new(peer: Peer, name: &str, path: &[&str], retry: Retry) -> Self {
        let (questions, receiver) = mpsc::channel(CAPACITY);
        let name = name.to_owned();
        let path = path.iter().map(|&element| element.to_owned()).collect();
        let receiver = tokio::sync::Mutex::new(receiver);
        let talk = StreamTask { peer, name: name.clone(), path, retry, receiver, under_way: Mutex::default() };
        runtime().spawn(Arc::new(talk).run());
        Self { questions, name }
    }

    /// Asks, and waits for the answer. Gives the question back with it, for the sake of its buffers. `again`: asked twice,
    /// the question does what it does asked once.
    ///
    /// Cancelled, it may have been asked, and may still be.
    pub(crate) async fn ask(&self, message: Message, again: bool) -> Result<(Message, Message), Fault> {
        let (answer, answered) = oneshot::channel();
        let gone = || Fault::internal(format!("the conversation with {} has ended", self.name));
        self.questions.send(PendingRequest { message, again, answer }).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

#[derive(Default)]
struct PendingCall {
    /// Those not answered, the oldest first.
    questions: VecDeque<PendingRequest>,
    /// How many of them were sent on this stream.
    sent: usize,
}

struct StreamTask {
    peer: Peer,
    name: String,
    path: Vec<String>,
    retry: Retry,
    /// Only the task of the line locks it.
    receiver: tokio::sync::Mutex<mpsc::Receiver<PendingRequest>>,
    under_way: Mutex<PendingCall>,
}

/// Why a stream ended.
enum End {
    /// Nobody asks any more.
    Done,
    /// It ended, and either it had been of use or nobody waits for what it broke off.
    Broken,
}

impl StreamTask {
    async fn run(self: Arc<Self>) {
        let what = format!("{} on {}", self.path.join("/"), self.name);
        loop {
            if self.under_way().questions.is_empty() {
                let Some(question) = self.receiver.lock().await.recv().await else { return };
                self.under_way().questions.push_back(question);
            }
            let talk = self.clone();
            match self.retry.run(&what, move || talk.clone().stream()).await {
                Ok(End::Done) => return,
                Ok(End::Broken) => {}
                // Time is up: nobody may wait longer.
                Err(fault) => {
                    let questions = std::mem::take(&mut self.under_way().questions);
                    questions.into_iter().for_each(|question| drop(question.answer.send(Err(copy(&fault)))));
                }
            }
        }
    }

    /// One stream, from its opening to its end.
    async fn stream(self: Arc<Self>) -> Result<End, Fault> {
        let begun = Instant::now();
        let mut answers = 0;
        let end = self.converse(&mut answers).await;
        let sent = std::mem::take(&mut self.under_way().sent);
        match end {
            Ok(()) => Ok(End::Done),
            // The oldest question is what the peer refused; the others get their chance.
            Err(fault) if !fault.retryable => {
                let oldest = self.under_way().questions.pop_front();
                self.give_up_what_cannot_be_asked_again(sent.saturating_sub(1), &fault);
                oldest.into_iter().for_each(|question| drop(question.answer.send(Err(copy(&fault)))));
                Ok(End::Broken)
            }
            Err(fault) => {
                self.give_up_what_cannot_be_asked_again(sent, &fault);
                // Patience begins anew for a stream that was of use, or lived long.
                let of_use = answers > 0 || begun.elapsed() > self.retry.most;
                if of_use || self.under_way().questions.is_empty() { Ok(End::Broken) } else { Err(fault) }
            }
        }
    }

    async fn converse(&self, answers: &mut u64) -> Result<(), Fault> {
        let mut receiver = self.receiver.lock().await;
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let (mut outgoing, mut incoming) = self.peer.exchange(&path, OPENING).await?;
        // Both directions at once: a peer that answers does not read meanwhile.
        let ask = async {
            loop {
                let next = {
                    let under_way = self.under_way();
                    under_way.questions.get(under_way.sent).map(|question| question.message.clone())
                };
                let message = match next {
                    Some(message) => message,
                    None => match receiver.recv().await {
                        Some(question) => {
                            self.under_way().questions.push_back(question);
                            continue;
                        }
                        None => return,
                    },
                };
                // Counted first: the answer may be there before `send` returns.
                self.under_way().sent += 1;
                if outgoing.send(message).await.is_err() {
                    // The other direction knows why.
                    std::future::pending::<()>().await;
                }
            }
        };
        let listen = async {
            loop {
                let Some(message) = incoming.next().await? else {
                    return Err(Fault::external(format!("{} ended the conversation", self.name)).retryable());
                };
                let question = {
                    let mut under_way = self.under_way();
                    if under_way.sent == 0 {
                        return Err(Fault::internal(format!("{} answered what it had not been asked", self.name)));
                    }
                    under_way.sent -= 1;
                    under_way.questions.pop_front()
                };
                *answers += 1;
                if let Some(question) = question {
                    let _ = question.answer.send(Ok((question.message, message)));
                }
            }
        };
        tokio::select! {
            () = ask => Ok(()),
            fault = listen => fault,
        }
    }

    fn give_up_what_cannot_be_asked_again(&self, sent: usize, fault: &Fault) {
        let mut under_way = self.under_way();
        let questions = std::mem::take(&mut under_way.questions);
        for (i, question) in questions.into_iter().enumerate() {
            if i >= sent || question.again {
                under_way.questions.push_back(question);
            } else {
                let _ = question.answer.send(Err(Fault::external(format!(
                    "the connection broke while a push without an id was under way, which may have been applied or not: \
                     {fault}"
                ))));
            }
        }
    }

    fn under_way(&self) -> MutexGuard<'_, PendingCall> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same for somebody else.
fn copy(fault: &Fault) -> Fault {
    let message = fault.to_string();
    let copy = match fault.domain {
        Domain::User => Fault::user(message),
        Domain::External => Fault::external(message),
        Domain::Internal => Fault::internal(message),
    };
    if fault.retryable { copy.retryable() } else { copy }
}
