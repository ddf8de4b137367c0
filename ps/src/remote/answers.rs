//! Answers the questions of one exchange in their order, and reads on meanwhile.
//!
//! Comes in: questions. Goes out: an answer each. Waits for whoever is asked and for the network; nothing blocks the thread.
//!
//! ```text
//!   incoming → ask ── answers to come, at most AHEAD ──→ await → outgoing
//! ```
//!
//! A question is handed over whole before the next one is read, so that whoever answers has them in their order. A peer that
//! does not read its answers holds up nobody: what waits for it here holds no room elsewhere.

use forebay_actors::Fault;
use forebay_net::{Incoming, Message, Outgoing};
use futures::future::{BoxFuture, join};
use tokio::sync::{Semaphore, mpsc};

/// Questions that may be handed over and not answered, besides the one whose answer is waited for.
const AHEAD: usize = 8;

/// Floats that the questions under way may ask for, all together: 240 MiB of them. One answer may have as many.
pub(crate) const MOST_VALUES: usize = 60 << 20;

/// What a question that was handed over will be answered.
pub(crate) type Answering<'a> = BoxFuture<'a, Result<Message, Fault>>;

/// Answers until the peer ends the exchange. `size`: floats that a question asks for. `ask` hands a question over, and gives
/// back the answer to come.
///
/// # Errors
/// The first fault, after the answers to all questions before it: a peer takes it for that of its oldest question. Those
/// behind it may have been handed over.
pub(crate) async fn in_order<'a, F>(
    mut incoming: Incoming,
    mut outgoing: Outgoing,
    size: impl Fn(&Message) -> usize + Send,
    ask: impl Fn(Message) -> F + Send,
) -> Result<(), Fault>
where
    F: Future<Output = Result<Answering<'a>, Fault>> + Send,
{
    let (queue, mut asked) = mpsc::channel(AHEAD);
    let values = &Semaphore::new(MOST_VALUES);
    let asking = async move {
        // Nobody waits for answers any more when there is no place.
        while let Ok(place) = queue.reserve().await {
            let message = tokio::select! {
                message = incoming.next() => message.transpose(),
                () = queue.closed() => return,
            };
            let Some(message) = message else { return };
            let next = async {
                let message = message?;
                let share = size(&message).clamp(1, MOST_VALUES) as u32;
                let share = values.acquire_many(share).await.expect("it is never closed");
                Ok((ask(message).await?, share))
            };
            let next: Result<_, Fault> = next.await;
            let last = next.is_err();
            place.send(next);
            if last {
                return;
            }
        }
    };
    let answering = async move {
        while let Some(next) = asked.recv().await {
            let (answer, _share) = next?;
            outgoing.send(answer.await?).await?;
        }
        Ok(())
    };
    join(asking, answering).await.1
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use bytes::Bytes;
    use forebay_net::{Caller, Dialer, Handler, Health, Identity, Limits, Security, Server};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;

    /// Answers each question with itself, once the gate lets it.
    struct Echo {
        size: usize,
        gate: Semaphore,
        asked: UnboundedSender<Bytes>,
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
            let ask = async |message: Message| {
                self.asked.send(message.metadata.clone()).unwrap();
                if message.metadata == "wrong" {
                    return Err(Fault::user("that is wrong"));
                }
                Ok(Box::pin(async move {
                    self.gate.acquire().await.unwrap().forget();
                    Ok(message)
                }) as Answering<'_>)
            };
            in_order(incoming, outgoing, |_| self.size, ask).await
        }
    }

    /// Asks `questions` of an echo, and has `test` see what comes of it.
    fn ask<const N: usize>(
        size: usize,
        questions: [&'static str; N],
        test: impl AsyncFnOnce(&Echo, &mut UnboundedReceiver<Bytes>, &mut Incoming),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (security, limits) = (Security::none(), Limits::default());
            let identity = Identity { run: "test".into(), role: "ps 0".into(), incarnation: 0 };
            let (asked, mut heard) = unbounded_channel();
            let echo = Arc::new(Echo { size, gate: Semaphore::new(0), asked });
            let any = "127.0.0.1:0".parse().unwrap();
            let parts: Vec<Arc<dyn Handler>> = vec![echo.clone()];
            let server = Server::start(any, &security, identity.clone(), &limits, parts, Health::new()).await.unwrap();
            let dialer = Dialer::new(&security, &identity, &limits).unwrap();
            let peer = dialer.peer(&server.address().to_string()).unwrap();
            let (mut outgoing, mut incoming) = peer.exchange(&["echo"], Duration::from_secs(10)).await.unwrap();
            let sending = async {
                for question in questions {
                    // After a fault the other direction says why.
                    let _ = outgoing.send(Message::metadata(Bytes::from_static(question.as_bytes()))).await;
                }
            };
            futures::future::join(sending, test(&echo, &mut heard, &mut incoming)).await;
            drop((outgoing, incoming, peer));
            server.stop(Duration::from_secs(5)).await;
        });
    }

    const DIGITS: [&str; 12] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"];

    async fn metadata(incoming: &mut Incoming) -> Bytes {
        incoming.next().await.unwrap().unwrap().metadata
    }

    #[test]
    fn questions_are_handed_over_while_the_first_waits_and_answered_in_order() {
        ask(1, DIGITS, async |echo, heard, incoming| {
            for digit in &DIGITS[..=AHEAD] {
                assert_eq!(heard.recv().await.unwrap(), digit);
            }
            assert!(heard.try_recv().is_err(), "more than {AHEAD} wait");
            echo.gate.add_permits(1);
            assert_eq!(metadata(incoming).await, "0");
            assert_eq!(heard.recv().await.unwrap(), DIGITS[AHEAD + 1]);
            echo.gate.add_permits(DIGITS.len());
            for digit in &DIGITS[1..] {
                assert_eq!(metadata(incoming).await, digit);
            }
        });
    }

    #[test]
    fn large_questions_wait_for_each_other() {
        for size in [MOST_VALUES, usize::MAX] {
            ask(size, ["0", "1"], async |echo, heard, incoming| {
                assert_eq!(heard.recv().await.unwrap(), "0");
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                assert!(heard.try_recv().is_err());
                echo.gate.add_permits(2);
                assert_eq!((metadata(incoming).await, metadata(incoming).await), ("0".into(), "1".into()));
            });
        }
    }

    #[test]
    fn a_fault_comes_after_the_answers_before_it() {
        ask(1, ["0", "1", "wrong", "3"], async |echo, heard, incoming| {
            for expected in ["0", "1", "wrong"] {
                assert_eq!(heard.recv().await.unwrap(), expected);
            }
            echo.gate.add_permits(2);
            assert_eq!((metadata(incoming).await, metadata(incoming).await), ("0".into(), "1".into()));
            let fault = incoming.next().await.map(drop).unwrap_err();
            assert!(!fault.retryable && fault.to_string().contains("that is wrong"), "{fault}");
            assert!(heard.try_recv().is_err(), "what comes after a fault is not handed over");
        });
    }
}
