//! Answers the requests of one exchange in their order, and reads on meanwhile: the server's end of a
//! [`RequestStream`](crate::RequestStream).
//!
//! ```text
//!   incoming → begin ── pending answers, at most AHEAD ──→ await → outgoing
//! ```
//!
//! A request is begun before the next one is read, so they begin in their order. A peer that does not read its answers
//! delays only its own exchange.

use forebay_actors::{Fault, FaultKind};
use futures::future::{BoxFuture, join};
use tokio::sync::{Semaphore, mpsc};

use crate::incoming::Incoming;
use crate::message::Message;
use crate::outgoing::Outgoing;

/// Requests that may be begun and not answered, besides the one whose answer is awaited.
const AHEAD: usize = 8;

/// The answer to a request that was begun.
pub type PendingAnswer<'a> = BoxFuture<'a, Result<Message, Fault>>;

/// Answers until the peer ends the exchange, and drops pending answers if the peer is gone. `begin` starts to carry out a request and
/// returns its pending answer. `size` is the size of a request's answer, in any unit: pending answers have at most `limit` together, and a
/// larger one is pending alone.
///
/// # Errors
/// The first fault, after the answers to all earlier requests: a [`RequestStream`](crate::RequestStream) takes it for
/// the fault of its oldest request. Later requests may have been begun.
pub async fn answer_in_order<'a, F>(
    mut incoming: Incoming,
    mut outgoing: Outgoing,
    limit: u32,
    size: impl Fn(&Message) -> usize + Send,
    begin: impl Fn(Message) -> F + Send,
) -> Result<(), Fault>
where
    F: Future<Output = Result<PendingAnswer<'a>, Fault>> + Send,
{
    let (sender, mut pending) = mpsc::channel(AHEAD);
    let room = &Semaphore::new(limit as usize);
    let beginning = async move {
        // Reserving fails when `answering` has ended.
        while let Ok(place) = sender.reserve().await {
            let message = tokio::select! {
                message = incoming.next() => message.transpose(),
                () = sender.closed() => return,
            };
            let Some(message) = message else { return };
            let next = async {
                let message = message?;
                let share = size(&message).clamp(1, limit as usize) as u32;
                let share = room.acquire_many(share).await.expect("it is never closed");
                Ok((begin(message).await?, share))
            };
            let next: Result<_, Fault> = next.await;
            let failed = next.is_err();
            place.send(next);
            if failed {
                return;
            }
        }
    };
    let answering = async move {
        while let Some(next) = pending.recv().await {
            let (answer, _share) = next?;
            // An answer may wait for another process, and must not outlive the connection.
            let message = tokio::select! {
                biased;
                message = answer => message?,
                () = outgoing.closed() => return Err(Fault::external("the peer takes no more answers").kind(FaultKind::Unreachable).retryable()),
            };
            outgoing.send(message).await?;
        }
        Ok(())
    };
    join(beginning, answering).await.1
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use bytes::Bytes;
    use forebay_actors::IoRuntime;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;
    use crate::{Caller, Dialer, Handler, Health, Identity, Limits, Security, Server};

    const LIMIT: u32 = 1000;

    /// Answers each request with itself, once the test adds a permit.
    struct Echo {
        size: usize,
        permits: Semaphore,
        begun: UnboundedSender<Bytes>,
        /// Each pending answer has a clone.
        pending: Arc<()>,
    }

    #[async_trait]
    impl Handler for Echo {
        fn name(&self) -> &'static str {
            "echo"
        }

        async fn exchange(
            &self,
            _: Caller,
            _: Vec<String>,
            incoming: Incoming,
            outgoing: Outgoing,
        ) -> Result<(), Fault> {
            let begin = async |message: Message| {
                let pending = Arc::clone(&self.pending);
                // Last: the test, in another thread, counts the pending answers when it hears of this one.
                self.begun.send(message.metadata.clone()).unwrap();
                if message.metadata == "wrong" {
                    return Err(Fault::user("that is wrong"));
                }
                Ok(Box::pin(async move {
                    let _pending = pending;
                    self.permits.acquire().await.unwrap().forget();
                    Ok(message)
                }) as PendingAnswer<'_>)
            };
            answer_in_order(incoming, outgoing, LIMIT, |_| self.size, begin).await
        }
    }

    /// Sends `requests` to an echo while `test` runs.
    fn ask<const N: usize>(
        size: usize,
        requests: [&'static str; N],
        test: impl AsyncFnOnce(&Echo, &mut UnboundedReceiver<Bytes>, &mut Incoming),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (security, limits) = (Security::none(), Limits::default());
            let identity = Identity { run: "test".into(), role: "ps 0".into(), incarnation: 0, attempt: 1 };
            let (begun, mut seen) = unbounded_channel();
            let echo = Arc::new(Echo { size, permits: Semaphore::new(0), begun, pending: Arc::default() });
            let any = "127.0.0.1:0".parse().unwrap();
            let handlers: Vec<Arc<dyn Handler>> = vec![echo.clone()];
            let io = IoRuntime::new("net", 1);
            let server =
                Server::start(&io, any, &security, identity.clone(), &limits, handlers, Health::new()).await.unwrap();
            let dialer = Dialer::new(&io, &security, &identity, &limits).unwrap();
            let peer = dialer.peer(&server.address().to_string()).unwrap();
            let (mut outgoing, mut incoming) = peer.exchange(&["echo"], Duration::from_secs(60)).await.unwrap();
            let sending = async {
                for request in requests {
                    // After a fault the answers end with it.
                    let _ = outgoing.send(Message::metadata(Bytes::from_static(request.as_bytes()))).await;
                }
            };
            futures::future::join(sending, test(&echo, &mut seen, &mut incoming)).await;
            drop((outgoing, incoming, peer));
            let begun = std::time::Instant::now();
            while Arc::strong_count(&echo.pending) > 1 {
                assert!(begun.elapsed().as_secs() < 60, "an answer is pending long after its connection was lost");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            server.stop(Duration::from_secs(5)).await;
        });
    }

    const DIGITS: [&str; 12] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"];

    async fn metadata(incoming: &mut Incoming) -> Bytes {
        incoming.next().await.unwrap().unwrap().metadata
    }

    #[test]
    fn requests_begin_while_the_first_is_pending_and_are_answered_in_order() {
        ask(1, DIGITS, async |echo, seen, incoming| {
            for digit in &DIGITS[..=AHEAD] {
                assert_eq!(seen.recv().await.unwrap(), digit);
            }
            assert!(seen.try_recv().is_err(), "more than {AHEAD} are pending");
            echo.permits.add_permits(1);
            assert_eq!(metadata(incoming).await, "0");
            assert_eq!(seen.recv().await.unwrap(), DIGITS[AHEAD + 1]);
            echo.permits.add_permits(DIGITS.len());
            for digit in &DIGITS[1..] {
                assert_eq!(metadata(incoming).await, digit);
            }
        });
    }

    #[test]
    fn large_requests_are_pending_one_at_a_time() {
        for size in [LIMIT as usize, usize::MAX] {
            ask(size, ["0", "1"], async |echo, seen, incoming| {
                assert_eq!(seen.recv().await.unwrap(), "0");
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                assert!(seen.try_recv().is_err());
                echo.permits.add_permits(2);
                assert_eq!((metadata(incoming).await, metadata(incoming).await), ("0".into(), "1".into()));
            });
        }
    }

    #[test]
    fn a_pending_answer_ends_with_its_connection() {
        // `ask` drops the connection, and waits until no answer is pending.
        ask(1, ["0"], async |echo, seen, _| {
            assert_eq!(seen.recv().await.unwrap(), "0");
            assert_eq!(Arc::strong_count(&echo.pending), 2);
        });
    }

    #[test]
    fn a_fault_comes_after_the_answers_before_it() {
        ask(1, ["0", "1", "wrong", "3"], async |echo, seen, incoming| {
            for expected in ["0", "1", "wrong"] {
                assert_eq!(seen.recv().await.unwrap(), expected);
            }
            echo.permits.add_permits(2);
            assert_eq!((metadata(incoming).await, metadata(incoming).await), ("0".into(), "1".into()));
            let fault = incoming.next().await.map(drop).unwrap_err();
            assert!(!fault.retryable && fault.to_string().contains("that is wrong"), "{fault}");
            assert!(seen.try_recv().is_err(), "a request after a fault was begun");
        });
    }
}
