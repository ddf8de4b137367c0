//! Pulls that wait for the end of a round: a trainer in step with others sends the pull for its next batch right behind its push.
//!
//! A pull waits as long as the push before it: until all trainers have pushed their shares. The wait also ends with the shard, or with the
//! connection of the pull.

use forebay_actors::Fault;
use tokio::sync::oneshot;

use crate::push::AfterRound;

/// The most pulls of one trainer that wait. A trainer has one under way; after a lost connection, its earlier pulls may wait as well.
const MOST_OF_A_TRAINER: usize = 4;

/// The pulls that wait.
#[derive(Debug, Default)]
pub(crate) struct HeldPulls {
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    after: AfterRound,
    ended: oneshot::Sender<Result<(), Fault>>,
}

/// Waits until the round that a pull must see is applied.
///
/// # Errors
/// The round failed, the pull is refused, or the shard has ended.
pub(crate) async fn round_ended(end: oneshot::Receiver<Result<(), Fault>>) -> Result<(), Fault> {
    end.await.unwrap_or_else(|_| Err(Fault::internal("a shard ended before a round that a pull waited for")))
}

impl HeldPulls {
    /// Holds a pull. Returns the end of its round.
    ///
    /// # Errors
    /// External, retryable: too many pulls of the trainer wait.
    pub(crate) fn hold(&mut self, after: AfterRound) -> Result<oneshot::Receiver<Result<(), Fault>>, Fault> {
        let (rank, incarnation) = (after.trainer.rank, after.trainer.incarnation);
        self.held.retain(|held| !held.ended.is_closed());
        self.refuse(
            |held| held.trainer.rank == rank && held.trainer.incarnation < incarnation,
            |_| {
                format!(
                    "trainer {rank} is fenced: incarnation {incarnation} of it has taken over; let this process end"
                )
            },
        );
        if self.held.iter().filter(|held| held.after.trainer.rank == rank).count() >= MOST_OF_A_TRAINER {
            return Err(Fault::external(format!(
                "{MOST_OF_A_TRAINER} pulls of trainer {rank} wait for a round; a trainer sends one, and the next after its answer"
            ))
            .retryable());
        }
        let (ended, end) = oneshot::channel();
        self.held.push(Held { after, ended });
        Ok(end)
    }

    /// The round of `step` is open. A pull that waits for another round would wait forever.
    pub(crate) fn round_is_open(&mut self, step: u64) {
        self.refuse(
            |held| held.step != step,
            |held| format!("a pull waits for the round of step {}, but the round of step {step} has come", held.step),
        );
    }

    /// The round of `step` has ended.
    pub(crate) fn round_ended(&mut self, step: u64, outcome: &Result<(), Fault>) {
        self.round_is_open(step);
        for held in std::mem::take(&mut self.held) {
            // The receiver may be gone.
            let _ = held.ended.send(outcome.clone());
        }
    }

    fn refuse(&mut self, which: impl Fn(&AfterRound) -> bool, why: impl Fn(&AfterRound) -> String) {
        for held in self.held.extract_if(.., |held| which(&held.after)) {
            let _ = held.ended.send(Err(Fault::user(why(&held.after))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::Trainer;

    fn after(step: u64, rank: u32, incarnation: u64) -> AfterRound {
        AfterRound { step, trainer: Trainer { rank, incarnation } }
    }

    #[test]
    fn all_pulls_of_a_round_end_with_its_outcome() {
        for outcome in [Ok(()), Err(Fault::external("full"))] {
            let mut held = HeldPulls::default();
            let mut ends: Vec<_> = (0..3).map(|rank| held.hold(after(7, rank, 1)).unwrap()).collect();
            held.round_is_open(7);
            assert!(ends.iter_mut().all(|end| end.try_recv().is_err()), "they wait");
            held.round_ended(7, &outcome);
            for mut end in ends {
                assert_eq!(end.try_recv().unwrap().is_ok(), outcome.is_ok());
            }
            assert!(held.held.is_empty());
        }
    }

    #[test]
    fn a_pull_of_another_round_is_refused_when_one_opens() {
        let mut held = HeldPulls::default();
        let (mut right, mut wrong) = (held.hold(after(7, 0, 1)).unwrap(), held.hold(after(900, 1, 1)).unwrap());
        held.round_is_open(7);
        let fault = wrong.try_recv().unwrap().unwrap_err().to_string();
        assert!(fault.contains("waits for the round of step 900, but the round of step 7 has come"), "{fault}");
        assert!(right.try_recv().is_err());
    }

    #[test]
    fn a_trainer_has_a_bound_and_lost_connections_do_not_count() {
        let mut held = HeldPulls::default();
        let mut ends: Vec<_> = (0..MOST_OF_A_TRAINER).map(|_| held.hold(after(7, 3, 1)).unwrap()).collect();
        let fault = held.hold(after(7, 3, 1)).unwrap_err();
        assert!(fault.retryable && fault.to_string().contains("4 pulls of trainer 3 wait"), "{fault}");
        let _other = held.hold(after(7, 4, 1)).expect("another trainer has its own bound");
        ends.pop();
        ends.push(held.hold(after(7, 3, 1)).unwrap());
        // A process that takes over needs no room beside the pulls of the one before it.
        let _new = held.hold(after(7, 3, 2)).unwrap();
        assert!(ends.iter_mut().all(|end| end.try_recv().unwrap().unwrap_err().to_string().contains("fenced")));
        assert_eq!(held.held.len(), 2);
    }

    #[test]
    fn pulls_end_with_their_shard() {
        let mut held = HeldPulls::default();
        let mut end = held.hold(after(7, 0, 1)).unwrap();
        drop(held);
        assert_eq!(end.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    }
}
