//! A push is applied once, however often it is sent, and only from the newest incarnation of its trainer. A pull may wait for the
//! end of a round.
//!
//! [`ExactlyOnce`] is a state machine without clock or IO. Shards and dense blocks use it. `P` is the content of a push: rows of gradients,
//! or the gradients of a dense block. The type is public for simulations of a whole cluster.

use std::collections::HashMap;

use forebay_actors::{Fault, FaultKind};
use tokio::sync::oneshot;

use crate::applied::Applied;
use crate::held_pulls::HeldPulls;
use crate::push::{AfterRound, PushOutcome, Stamp, Trainer};
use crate::rounds::{Complete, MOST_TRAINERS, Rounds, Share};

type Outcome = Result<PushOutcome, Fault>;

/// The answer to a push of `P`.
pub enum PushAnswer<P> {
    /// The buffers of the push, and its outcome.
    Done(P, PushOutcome),
    /// The push is part of a round: this receives the outcome.
    Waiting(oneshot::Receiver<Outcome>),
}

impl<P: Default> PushAnswer<P> {
    /// Waits for the end of the round, if the push is part of one.
    pub async fn outcome(self) -> Result<(P, PushOutcome), Fault> {
        match self {
            Self::Done(payload, outcome) => Ok((payload, outcome)),
            Self::Waiting(round) => match round.await {
                Ok(outcome) => Ok((P::default(), outcome?)),
                Err(_) => Err(Fault::internal("a shard ended before a round was complete")),
            },
        }
    }
}

/// What to do with a push.
#[derive(Debug)]
enum Next<P> {
    /// Nothing: the push was applied before.
    Already(P),
    Apply(P),
    /// Keep the push until its round is complete.
    Wait(oneshot::Receiver<Outcome>),
    /// The push is the last of its round: apply all as one, then send the outcome to all that wait.
    Complete(Complete<P, oneshot::Sender<Outcome>>, oneshot::Receiver<Outcome>),
}

/// Decides which pushes are applied. One actor owns it together with the parameters that the pushes change.
pub struct ExactlyOnce<P> {
    applied: Applied,
    fences: Fences,
    rounds: Rounds<P, oneshot::Sender<Outcome>>,
    /// Pulls that wait for the end of a round.
    held: HeldPulls,
}

impl<P> Default for ExactlyOnce<P> {
    fn default() -> Self {
        Self {
            applied: Applied::default(),
            fences: Fences::default(),
            rounds: Rounds::default(),
            held: HeldPulls::default(),
        }
    }
}

impl<P> ExactlyOnce<P> {
    /// Applies a push unless it was applied before. A push of a round is kept until the round is complete; then `merge`
    /// makes one push of all, and `apply` is called once. A push without a stamp is always applied.
    ///
    /// A push counts as applied from the call of `apply` on, also if `apply` fails half-way: the push must not be tried again.
    ///
    /// # Errors
    /// User, with nothing changed: the trainer is fenced, or the push fits no round. The fault that `apply` returns.
    pub fn push(
        &mut self,
        stamp: Option<Stamp>,
        step: u64,
        push: P,
        merge: impl FnOnce(Vec<Share<P>>) -> P,
        apply: impl FnOnce(&P, u64) -> Result<(), Fault>,
    ) -> Result<PushAnswer<P>, Fault> {
        Ok(match self.offer(stamp, step, push)? {
            Next::Already(push) => PushAnswer::Done(push, PushOutcome::Already),
            Next::Apply(push) => {
                apply(&push, step)?;
                PushAnswer::Done(push, PushOutcome::Applied)
            }
            Next::Wait(outcome) => {
                self.held.round_is_open(step);
                PushAnswer::Waiting(outcome)
            }
            Next::Complete(round, outcome) => {
                let applied = apply(&merge(round.shares), round.step);
                self.held.round_ended(round.step, &applied);
                send_all(round.waiting, &applied.map(|()| PushOutcome::Applied));
                PushAnswer::Waiting(outcome)
            }
        })
    }

    fn offer(&mut self, stamp: Option<Stamp>, step: u64, push: P) -> Result<Next<P>, Fault> {
        let Some(Stamp { id, trainer, round }) = stamp else { return Ok(Next::Apply(push)) };
        if let Some(trainer) = trainer {
            self.fences.admit(trainer)?;
        }
        if self.applied.contains(id) {
            return Ok(Next::Already(push));
        }
        let (Some(trainer), Some(round)) = (trainer, round) else {
            self.applied.insert(id);
            return Ok(Next::Apply(push));
        };
        let (waiting, outcome) = oneshot::channel();
        let Some(complete) = self.rounds.offer(trainer.rank, round, step, (id, push), waiting)? else {
            return Ok(Next::Wait(outcome));
        };
        for share in &complete.shares {
            self.applied.insert(share.id);
        }
        Ok(Next::Complete(complete, outcome))
    }

    /// A pull that must see a round. `None`: the round is applied, and the caller may carry out the pull. Otherwise the caller waits for
    /// the receiver: the round is applied, or the pull is refused. The next round cannot be applied before the answer to the pull, because
    /// the trainer that pulls has not pushed its share of that round.
    ///
    /// # Errors
    /// User: its trainer is fenced, or cannot have pushed its share of the round. External, retryable: too many pulls of its trainer
    /// wait here.
    pub fn pull(&mut self, after: AfterRound) -> Result<Option<oneshot::Receiver<Result<(), Fault>>>, Fault> {
        self.fences.admit(after.trainer)?;
        if self.rounds.is_applied(after.step)? { Ok(None) } else { self.held.hold(after).map(Some) }
    }

    /// Push ids held.
    pub fn push_ids(&self) -> u64 {
        self.applied.len() as u64
    }

    /// From this call on all pushes of series below this one count as applied, and their ids take no memory.
    pub fn acknowledge_before(&mut self, series: u64) {
        self.applied.acknowledge_before(series);
    }

    /// As [`acknowledge_before`](Self::acknowledge_before), for a trainer that says so: at most up to the highest series of a push that was
    /// applied here, so that no push of a later series is lost.
    pub fn acknowledge_applied_before(&mut self, series: u64) {
        self.applied.acknowledge_marked_before(series);
    }
}

/// Sends the outcome of a round to all that wait for it. A receiver that is gone is skipped.
fn send_all(waiting: Vec<oneshot::Sender<Outcome>>, outcome: &Outcome) {
    for waiting in waiting {
        let _ = waiting.send(outcome.clone());
    }
}

/// The newest incarnation seen of each rank. A process that was replaced may still run, and must change nothing.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    newest: HashMap<u32, u64>,
}

impl Fences {
    /// Admits `trainer`, and from this call on refuses older incarnations of its rank.
    pub(crate) fn admit(&mut self, trainer: Trainer) -> Result<(), Fault> {
        let Trainer { rank, incarnation } = trainer;
        if rank >= MOST_TRAINERS {
            return Err(Fault::user(format!("trainer {rank} has pushed; expected a rank below {MOST_TRAINERS}")));
        }
        let newest = self.newest.entry(rank).or_default();
        if incarnation < *newest {
            return Err(Fault::user(format!(
                "trainer {rank} is fenced: this process is incarnation {incarnation} of it, and incarnation {newest} has \
                 taken over; let this process end"
            ))
            .kind(FaultKind::Overtaken));
        }
        *newest = incarnation;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::{PushId, Round};

    fn stamp(incarnation: u64, rank: u32, index: u32, trainers: u32) -> Option<Stamp> {
        let round = (trainers > 0).then_some(Round { trainers, rows: 1 });
        let trainer = Some(Trainer { rank, incarnation });
        Some(Stamp { id: PushId { series: 5, index }, trainer, round })
    }

    #[test]
    fn a_push_is_refused_or_already_applied_before_it_is_kept_or_applied() {
        let mut once: ExactlyOnce<char> = ExactlyOnce::default();
        assert!(matches!(once.offer(None, 1, 'a'), Ok(Next::Apply('a'))));
        assert!(matches!(once.offer(stamp(2, 0, 0, 0), 1, 'b'), Ok(Next::Apply('b'))));
        assert!(matches!(once.offer(stamp(2, 0, 0, 0), 1, 'c'), Ok(Next::Already('c'))));
        // A push that was applied does not join a round.
        assert!(matches!(once.offer(stamp(2, 0, 0, 2), 1, 'd'), Ok(Next::Already('d'))));
        // A fenced trainer is refused even if its push was applied.
        assert!(once.offer(stamp(1, 0, 0, 0), 1, 'e').unwrap_err().to_string().contains("fenced"));
        once.acknowledge_before(6);
        assert!(matches!(once.offer(stamp(2, 0, 77, 0), 1, 'f'), Ok(Next::Already('f'))));
    }

    #[test]
    fn the_last_push_of_a_round_completes_it_and_all_get_the_outcome() {
        let mut once: ExactlyOnce<char> = ExactlyOnce::default();
        let Ok(Next::Wait(mut first)) = once.offer(stamp(1, 0, 0, 2), 1, 'a') else { panic!("not kept") };
        // A kept push is not applied: it may be sent again, and both wait.
        let Ok(Next::Wait(mut again)) = once.offer(stamp(1, 0, 0, 2), 1, 'a') else { panic!("not kept") };
        assert!(once.offer(stamp(1, 1, 1, 3), 1, 'x').is_err());
        let Ok(Next::Complete(whole, mut last)) = once.offer(stamp(1, 1, 1, 2), 1, 'b') else { panic!("not complete") };
        assert_eq!(whole.shares.iter().map(|share| share.payload).collect::<String>(), "ab");
        // A receiver may be gone.
        assert!(first.try_recv().is_err());
        drop(first);
        send_all(whole.waiting, &Ok(PushOutcome::Applied));
        for outcome in [again.try_recv(), last.try_recv()] {
            assert_eq!(outcome.unwrap().unwrap(), PushOutcome::Applied);
        }
        for (rank, index) in [(0, 0), (1, 1)] {
            assert!(matches!(once.offer(stamp(1, rank, index, 2), 1, 'c'), Ok(Next::Already('c'))));
        }
    }

    /// The result of a pull that was held.
    fn ended(end: Option<oneshot::Receiver<Result<(), Fault>>>) -> Option<Result<(), Fault>> {
        end.expect("it was held").try_recv().ok()
    }

    #[test]
    fn a_pull_waits_for_the_round_that_it_names_and_sees_no_later_one() {
        let mut once: ExactlyOnce<char> = ExactlyOnce::default();
        let after = |rank, step| AfterRound { step, trainer: Trainer { rank, incarnation: 1 } };
        let mut seen = String::new();
        let mut push = |once: &mut ExactlyOnce<char>, rank, index, step, what| {
            let merge = |shares: Vec<Share<char>>| shares[0].payload;
            let apply = |what: &char, _| {
                seen.push(*what);
                Ok(())
            };
            drop(once.push(stamp(1, rank, index, 2), step, what, merge, apply).unwrap());
            seen.clone()
        };
        // The pull overtakes the push that was sent before it.
        let early = once.pull(after(0, 1)).unwrap();
        assert_eq!(push(&mut once, 0, 0, 1, 'a'), "");
        let (again, mut waits) = (once.pull(after(0, 1)).unwrap(), once.pull(after(1, 1)).unwrap());
        assert!(waits.as_mut().unwrap().try_recv().is_err());
        assert_eq!(push(&mut once, 1, 1, 1, 'b'), "a");
        for end in [early, again, waits] {
            assert!(ended(end).unwrap().is_ok());
        }
        // After the round there is nothing to wait for.
        assert!(once.pull(after(1, 1)).unwrap().is_none());
        let next = once.pull(after(0, 2)).unwrap();
        assert!(once.pull(after(1, 3)).unwrap_err().to_string().contains("the round of step 1 was the last"));
        assert_eq!(push(&mut once, 0, 2, 2, 'c'), "a");
        assert!(once.pull(after(1, 3)).unwrap_err().to_string().contains("the round of step 2 is open"));
        assert_eq!(push(&mut once, 1, 3, 2, 'd'), "ac");
        assert!(ended(next).unwrap().is_ok());
    }

    #[test]
    fn a_held_pull_gets_the_fault_of_its_round_and_fences_are_those_of_pushes() {
        let mut once: ExactlyOnce<char> = ExactlyOnce::default();
        let after = |incarnation| AfterRound { step: 1, trainer: Trainer { rank: 0, incarnation } };
        let full = |once: &mut ExactlyOnce<char>, rank| {
            let apply = |_: &char, _| Err(Fault::external("full"));
            drop(once.push(stamp(2, rank, rank, 2), 1, 'a', |shares| shares[0].payload, apply));
        };
        let old = once.pull(after(1)).unwrap();
        let new = once.pull(after(2)).unwrap();
        assert!(ended(old).unwrap().unwrap_err().to_string().contains("fenced"));
        assert!(once.pull(after(1)).unwrap_err().to_string().contains("fenced"));
        full(&mut once, 0);
        full(&mut once, 1);
        assert!(ended(new).unwrap().unwrap_err().to_string().contains("full"));
    }

    #[test]
    fn an_older_incarnation_is_fenced_and_another_rank_is_not() {
        let mut fences = Fences::default();
        let trainer = |rank, incarnation| Trainer { rank, incarnation };
        fences.admit(trainer(0, 5)).unwrap();
        fences.admit(trainer(0, 5)).unwrap();
        fences.admit(trainer(1, 2)).unwrap();
        fences.admit(trainer(0, 6)).unwrap();
        let fault = fences.admit(trainer(0, 5)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Overtaken, "{fault}");
        assert!(!fault.retryable && fault.to_string().contains("trainer 0 is fenced"), "{fault}");
        fences.admit(trainer(1, 2)).unwrap();
        // The ranks that are held have a bound.
        assert!(fences.admit(trainer(MOST_TRAINERS, 0)).unwrap_err().to_string().contains("trainer 4096"));
        assert_eq!(fences.newest.len(), 2);
    }
}
