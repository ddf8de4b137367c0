//! A push is applied once, however often it is sent, and by the newest process of its trainer alone.
//!
//! Comes in: a push, with its [`Stamp`]. Goes out: what is to be done with it ([`Next`]). A pure state machine but for the
//! promises that it keeps of those who wait for a round; nothing blocks.

use std::collections::HashMap;

use forebay_actors::Fault;
use tokio::sync::oneshot;

use crate::applied::Applied;
use crate::push::{PushOutcome, Stamp, Trainer};
use crate::rounds::{Complete, Rounds};

/// What will have become of a push of a round.
pub(crate) type Promise<E> = oneshot::Receiver<Result<PushOutcome, E>>;

/// All that wait for a round.
pub(crate) type Waiting<E> = Vec<oneshot::Sender<Result<PushOutcome, E>>>;

/// What is to be done with a push of `P`. `E` is why it may fail.
#[derive(Debug)]
pub(crate) enum Next<P, E> {
    /// It has been applied before.
    Already(P),
    /// To be applied now.
    Apply(P),
    /// It is kept until its round is whole.
    Held(Promise<E>),
    /// The last of its round: all are to be applied now as one, and all that wait to be [told](tell).
    Whole(Complete<P, oneshot::Sender<Result<PushOutcome, E>>>, Promise<E>),
}

/// Decides what becomes of pushes: in one place, which owns what they change.
pub(crate) struct ExactlyOnce<P, E> {
    applied: Applied,
    fences: Fences,
    rounds: Rounds<P, oneshot::Sender<Result<PushOutcome, E>>>,
}

impl<P, E> Default for ExactlyOnce<P, E> {
    fn default() -> Self {
        Self { applied: Applied::default(), fences: Fences::default(), rounds: Rounds::default() }
    }
}

impl<P, E> ExactlyOnce<P, E> {
    /// Takes a push, for `step` if it is one of a round. What is to be applied counts as applied from now on, also when that
    /// fails half-way: then it must not be tried again. Without a stamp it is always to be applied.
    ///
    /// # Errors
    /// User, with nothing changed: its trainer is fenced, or it fits no round.
    pub(crate) fn offer(&mut self, stamp: Option<Stamp>, step: u64, push: P) -> Result<Next<P, E>, Fault> {
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
        let (waiting, promise) = oneshot::channel();
        let Some(whole) = self.rounds.offer(trainer.rank, round, step, (id, push), waiting)? else {
            return Ok(Next::Held(promise));
        };
        for share in &whole.shares {
            self.applied.insert(share.id);
        }
        Ok(Next::Whole(whole, promise))
    }

    /// Names of pushes held.
    pub(crate) fn names(&self) -> u64 {
        self.applied.len() as u64
    }

    /// From now on all pushes of sources below this one count as applied, and their names take no memory.
    pub(crate) fn acknowledge_before(&mut self, source: u64) {
        self.applied.acknowledge_before(source);
    }
}

/// Tells all that wait for a round what became of it.
pub(crate) fn tell<E: Clone>(waiting: Waiting<E>, pushed: &Result<PushOutcome, E>) {
    for waiting in waiting {
        // Whoever waited may have gone.
        let _ = waiting.send(pushed.clone());
    }
}

/// The newest incarnation seen of each rank: a process that was given up may still run, and must change nothing.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    newest: HashMap<u32, u64>,
}

impl Fences {
    /// Lets `trainer` in, and from now on no older incarnation of its rank.
    pub(crate) fn admit(&mut self, trainer: Trainer) -> Result<(), Fault> {
        let Trainer { rank, incarnation } = trainer;
        let newest = self.newest.entry(rank).or_default();
        if incarnation < *newest {
            return Err(Fault::user(format!(
                "trainer {rank} is fenced: this process is incarnation {incarnation} of it, and incarnation {newest} has \
                 taken over; let this process end"
            )));
        }
        *newest = incarnation;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::{PushId, Round};

    fn stamp(incarnation: u64, rank: u32, sequence: u32, trainers: u32) -> Option<Stamp> {
        let round = (trainers > 0).then_some(Round { trainers, rows: 1 });
        let trainer = Some(Trainer { rank, incarnation });
        Some(Stamp { id: PushId { source: 5, sequence }, trainer, round })
    }

    #[test]
    fn a_push_is_refused_or_known_before_it_is_held_or_applied() {
        let mut once: ExactlyOnce<char, ()> = ExactlyOnce::default();
        assert!(matches!(once.offer(None, 1, 'a'), Ok(Next::Apply('a'))));
        assert!(matches!(once.offer(stamp(2, 0, 0, 0), 1, 'b'), Ok(Next::Apply('b'))));
        assert!(matches!(once.offer(stamp(2, 0, 0, 0), 1, 'c'), Ok(Next::Already('c'))));
        // One that is known is not even part of a round.
        assert!(matches!(once.offer(stamp(2, 0, 0, 2), 1, 'd'), Ok(Next::Already('d'))));
        // A process that was replaced hears so, known or not.
        assert!(once.offer(stamp(1, 0, 0, 0), 1, 'e').unwrap_err().to_string().contains("fenced"));
        once.acknowledge_before(6);
        assert!(matches!(once.offer(stamp(2, 0, 77, 0), 1, 'f'), Ok(Next::Already('f'))));
    }

    #[test]
    fn the_last_of_a_round_has_all_of_it_and_all_are_told() {
        let mut once: ExactlyOnce<char, ()> = ExactlyOnce::default();
        let Ok(Next::Held(mut first)) = once.offer(stamp(1, 0, 0, 2), 1, 'a') else { panic!("not held") };
        // Held is not applied: it may be sent again, and both wait.
        let Ok(Next::Held(mut again)) = once.offer(stamp(1, 0, 0, 2), 1, 'a') else { panic!("not held") };
        assert!(once.offer(stamp(1, 1, 1, 3), 1, 'x').is_err());
        let Ok(Next::Whole(whole, mut last)) = once.offer(stamp(1, 1, 1, 2), 1, 'b') else { panic!("not whole") };
        assert_eq!(whole.shares.iter().map(|share| share.payload).collect::<String>(), "ab");
        // Who waited may have gone.
        assert!(first.try_recv().is_err());
        drop(first);
        tell(whole.waiting, &Ok(PushOutcome::Applied));
        assert_eq!(
            (again.try_recv().unwrap(), last.try_recv().unwrap()),
            (Ok(PushOutcome::Applied), Ok(PushOutcome::Applied))
        );
        for (rank, sequence) in [(0, 0), (1, 1)] {
            assert!(matches!(once.offer(stamp(1, rank, sequence, 2), 1, 'c'), Ok(Next::Already('c'))));
        }
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
        assert!(!fault.retryable && fault.to_string().contains("trainer 0 is fenced"), "{fault}");
        fences.admit(trainer(1, 2)).unwrap();
    }
}
