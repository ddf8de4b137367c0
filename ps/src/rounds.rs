//! Synchronous training: the pushes of all trainers for one step are held until the last push comes.
//!
//! Pushes come in any order and perhaps more than once; a complete round has them in order of rank. A pure state machine: it keeps a value
//! `W` for each caller that waits for the end of a round. One round is open at a time: a trainer pushes its next step after the answer to
//! its last.

use forebay_actors::Fault;

use crate::push::{PushId, Round};

/// One trainer's push; `P` is what is pushed.
#[derive(Debug)]
pub struct Share<P> {
    /// The name of the push.
    pub id: PushId,
    /// Rows of its batch.
    pub rows: u64,
    /// What is pushed.
    pub payload: P,
}

/// A round with the pushes of all trainers.
#[derive(Debug)]
pub(crate) struct Complete<P, W> {
    pub(crate) step: u64,
    /// By rank.
    pub(crate) shares: Vec<Share<P>>,
    /// All that wait for the round, the last to come included.
    pub(crate) waiting: Vec<W>,
}

struct Open<P, W> {
    step: u64,
    /// By rank.
    shares: Vec<Option<Share<P>>>,
    waiting: Vec<W>,
}

/// Holds the open round.
pub(crate) struct Rounds<P, W> {
    open: Option<Open<P, W>>,
    /// Step of the last complete round.
    last: u64,
}

impl<P, W> Default for Rounds<P, W> {
    fn default() -> Self {
        Self { open: None, last: 0 }
    }
}

/// The most trainers of a round: a bound for what one message can make a shard hold.
pub(crate) const MOST_TRAINERS: u32 = 4096;

impl<P, W> Rounds<P, W> {
    /// Takes the push of `rank` for `step`, and gives the round when the round is complete.
    ///
    /// A push whose id is in the round already is ignored, but `waiter` is kept too. Another id of the same rank replaces
    /// the first: only a new process of that rank sends one, since the caller's fences refuse old ones. The caller keeps
    /// the ids of completed rounds ([`Applied`](crate::Applied)).
    pub(crate) fn offer(
        &mut self,
        rank: u32,
        round: Round,
        step: u64,
        (id, payload): (PushId, P),
        waiter: W,
    ) -> Result<Option<Complete<P, W>>, Fault> {
        let Round { trainers, rows } = round;
        if rank >= trainers || trainers > MOST_TRAINERS {
            return Err(Fault::user(format!(
                "trainer {rank} pushed for a round of {trainers}; expected a rank below the number of trainers, and at \
                 most {MOST_TRAINERS} of them"
            )));
        }
        if step <= self.last {
            return Err(Fault::user(format!(
                "trainer {rank} pushed for step {step}, whose round is over ({} was the last), with a batch that was not \
                 part of it; all trainers must take the same steps",
                self.last
            )));
        }
        let open = self.open.get_or_insert_with(|| {
            let shares = std::iter::repeat_with(|| None).take(trainers as usize).collect();
            Open { step, shares, waiting: Vec::new() }
        });
        if open.step != step || open.shares.len() != trainers as usize {
            return Err(Fault::user(format!(
                "trainer {rank} pushed for step {step} of {trainers} trainers while the round of step {} of {} trainers \
                 is open; all trainers must take the same steps",
                open.step,
                open.shares.len()
            )));
        }
        open.waiting.push(waiter);
        let share = &mut open.shares[rank as usize];
        if share.as_ref().is_none_or(|share| share.id != id) {
            *share = Some(Share { id, rows, payload });
        }
        if open.shares.iter().any(Option::is_none) {
            return Ok(None);
        }
        self.last = step;
        Ok(self.open.take().map(|open| Complete {
            step: open.step,
            shares: open.shares.into_iter().flatten().collect(),
            waiting: open.waiting,
        }))
    }

    /// Whether the round of `step` is applied. If not, it is the open round or the next one.
    ///
    /// # Errors
    /// User: the round is later than the next one, or another than the open one. No trainer can have pushed its share of such a round.
    pub(crate) fn is_applied(&self, step: u64) -> Result<bool, Fault> {
        if step <= self.last {
            return Ok(true);
        }
        let found = match &self.open {
            Some(open) if open.step == step => return Ok(false),
            // The first round of an attempt may have any step.
            None if self.last == 0 || step - self.last == 1 => return Ok(false),
            Some(open) => format!("the round of step {} is open", open.step),
            None => format!("the round of step {} was the last", self.last),
        };
        Err(Fault::user(format!(
            "a pull waits for the round of step {step}, but {found}; a trainer may wait for the round that it has pushed for last"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(step: u64, rank: u32) -> PushId {
        PushId { series: step, index: rank }
    }

    proptest! {
        /// Pushes in any order and with duplicates make one whole round, in the order of rank.
        #[test]
        fn a_round_ends_with_the_last_that_is_missing(
            trainers in 1u32..6, extra in prop::collection::vec(any::<u32>(), 0..20), seed: u64,
        ) {
            let mut arrivals: Vec<u32> = (0..trainers).chain(extra.iter().map(|r| r % trainers)).collect();
            arrivals.sort_by_key(|r| seed.rotate_left(*r * 7) ^ u64::from(*r));
            let rotate = seed as usize % arrivals.len();
            arrivals.rotate_left(rotate);
            let (mut rounds, mut seen) = (Rounds::default(), std::collections::HashSet::new());
            for (waiter, rank) in arrivals.iter().enumerate() {
                let round = Round { trainers, rows: u64::from(*rank) };
                let whole = rounds.offer(*rank, round, 9, (id(9, *rank), (*rank, seen.contains(rank))), waiter).unwrap();
                seen.insert(*rank);
                prop_assert_eq!(whole.is_some(), seen.len() == trainers as usize);
                if let Some(whole) = whole {
                    prop_assert_eq!(whole.step, 9);
                    prop_assert_eq!(whole.waiting, (0..=waiter).collect::<Vec<_>>());
                    for (r, share) in whole.shares.iter().enumerate() {
                        // The first that came, not one of those sent again.
                        prop_assert_eq!(share.payload, (r as u32, false));
                        prop_assert_eq!((share.id, share.rows), (id(9, r as u32), r as u64));
                    }
                    break;
                }
            }
        }
    }

    #[test]
    fn another_batch_of_a_rank_takes_the_place_of_the_first() {
        let mut rounds = Rounds::default();
        let round = Round { trainers: 2, rows: 1 };
        assert!(rounds.offer(0, round, 1, (id(1, 0), "old"), 'a').unwrap().is_none());
        assert!(rounds.offer(0, round, 1, (id(1, 8), "new"), 'b').unwrap().is_none());
        let whole = rounds.offer(1, round, 1, (id(1, 1), "other"), 'c').unwrap().unwrap();
        assert_eq!(whole.shares.iter().map(|s| s.payload).collect::<Vec<_>>(), ["new", "other"]);
        assert_eq!(whole.waiting, ['a', 'b', 'c']);
    }

    #[test]
    fn what_fits_no_round_is_refused_and_changes_nothing() {
        let mut rounds = Rounds::default();
        let mut offer = |rank, trainers, step| {
            let round = Round { trainers, rows: 1 };
            rounds.offer(rank, round, step, (id(step, rank), ()), ()).map(|whole| whole.is_some())
        };
        let refused = |result: Result<bool, Fault>, word: &str| {
            let fault = result.unwrap_err().to_string();
            assert!(fault.contains(word), "{fault}");
        };
        refused(offer(2, 2, 1), "trainer 2");
        refused(offer(0, 0, 1), "round of 0");
        refused(offer(0, u32::MAX, 1), "at most");
        assert!(!offer(0, 2, 3).unwrap());
        refused(offer(1, 3, 3), "of 3 trainers");
        refused(offer(1, 2, 4), "step 4");
        assert!(offer(1, 2, 3).unwrap());
        refused(offer(1, 2, 3), "is over");
        assert!(!offer(1, 2, 7).unwrap());
    }

    #[test]
    fn a_pull_may_wait_for_the_open_round_or_the_next_one() {
        let mut rounds: Rounds<(), ()> = Rounds::default();
        assert!(!rounds.is_applied(70).unwrap(), "the first round of an attempt may have any step");
        let round = Round { trainers: 2, rows: 1 };
        assert!(rounds.offer(0, round, 7, (id(7, 0), ()), ()).unwrap().is_none());
        assert!(!rounds.is_applied(7).unwrap());
        let refused = |rounds: &Rounds<(), ()>, step, words: &str| {
            let fault = rounds.is_applied(step).unwrap_err().to_string();
            assert!(fault.contains(words), "{fault}");
        };
        refused(&rounds, 8, "waits for the round of step 8, but the round of step 7 is open");
        assert!(rounds.offer(1, round, 7, (id(7, 1), ()), ()).unwrap().is_some());
        assert!(rounds.is_applied(6).unwrap() && rounds.is_applied(7).unwrap() && !rounds.is_applied(8).unwrap());
        refused(&rounds, 9, "but the round of step 7 was the last");
        refused(&rounds, u64::MAX, "but the round of step 7 was the last");
    }
}
