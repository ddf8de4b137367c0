//! One cut over several trainers, as the coordinator sees it: a state machine over the reports of the trainers, without a clock
//! and without IO.
//!
//! ```text
//!  trainer 0 (leads)    coordinator                  every trainer
//!  stop ──────────────→ order: hold  ──────────────→ its gate closes       only if trainers take their steps together
//!                                    ←────────────── "n looked up"
//!                       order: stop  ──────────────→ its gate closes (after the most that any has looked up)
//!                                    ←────────────── "all applied or kept; these batches are done"
//!  begins snapshots ←── all stopped
//!  go on ─────────────→ order: go on ──────────────→ its gate opens
//! ```
//!
//! Without steps in common, each trainer stops where it is. With them, a trainer that has looked up fewer batches than another
//! goes on to that number: a step is in the cut with the batches of all trainers or of none.
//!
//! A trainer that has left takes no part: the coordinator knows what it has done. A trainer that joins while a cut is open may not stand
//! still, so this cut is given up.
//!
//! A cut that takes too long is given up, so that no trainer waits for another that is gone. The leader hears of that before
//! it uses the cut: its "go on" is refused.
//!
//! `messages.rs` has its requests. `checkpointer/cut_client.rs` is the trainers' side.

mod messages;

use crate::checkpoint::WindowLog;
use crate::model_folder::FileEntry;
use forebay_actors::Fault;
pub(crate) use messages::{CutOrder, CutReport, CutRequest, LeadCutRequest, LeadReply, LeadStep};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long the first cut may take before it is given up. Each cut that is given up doubles the time of the next.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);

/// The cuts of one attempt of a run.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Trainers take their steps together.
    in_step: bool,
    trainers: usize,
    timeout: Duration,
    max_timeout: Duration,
    open: Option<OpenCut>,
    /// The last cut that its leader ended, and whether it was whole.
    last: Option<(u64, bool)>,
}

#[derive(Debug)]
struct OpenCut {
    number: u64,
    checkpoint: u64,
    begun: Instant,
    /// By rank: batches looked up.
    looked_up: Vec<Option<u64>>,
    /// By rank: what is done.
    stopped: Vec<Option<TrainerStopped>>,
}

/// What a trainer has done, and the file with the gradients that it keeps.
type TrainerStopped = (Vec<WindowLog>, Option<FileEntry>);

impl Cuts {
    /// The cuts of `trainers` trainers. A cut is given up after `max_timeout` at the latest.
    pub(super) fn new(trainers: usize, in_step: bool, max_timeout: Duration) -> Self {
        let timeout = FIRST_TIMEOUT.min(max_timeout);
        Self { in_step, trainers, timeout, max_timeout, open: None, last: None }
    }

    /// The leader begins cut `number` for a checkpoint. Ignored if this cut was begun before. It replaces an open cut of another number,
    /// which the leader has given up.
    pub(super) fn stop(&mut self, number: u64, checkpoint: u64, now: Instant) {
        let known = self.open.as_ref().map(|open| open.number) == Some(number);
        if !known && self.last.is_none_or(|(last, _)| last != number) {
            let (looked_up, stopped) = (vec![None; self.trainers], vec![None; self.trainers]);
            self.open = Some(OpenCut { number, checkpoint, begun: now, looked_up, stopped });
        }
    }

    /// Whether the cut of this number is over.
    pub(super) fn is_given_up(&self, number: u64) -> bool {
        self.open.as_ref().is_none_or(|open| open.number != number)
    }

    /// What each trainer has done, if the cut of this number is open and all have stopped. `absent` trainers take no part: they have left,
    /// and the caller knows what they have done, or they have not joined.
    pub(super) fn stopped(&self, number: u64, absent: &BTreeSet<u32>) -> Option<Vec<&TrainerStopped>> {
        let open = self.open.as_ref().filter(|open| open.number == number)?;
        open.is_whole(absent).then(|| open.stopped.iter().flatten().collect())
    }

    /// A trainer joins that may not stand still: gives up the open cut, if there is one.
    pub(super) fn give_up(&mut self) {
        if let Some(open) = self.open.take() {
            self.last = Some((open.number, false));
        }
    }

    /// The leader lets the trainers go on. Returns whether all trainers but the `absent` ones stood still until this call.
    pub(super) fn go_on(&mut self, number: u64, absent: &BTreeSet<u32>) -> bool {
        match &self.open {
            Some(open) if open.number == number => {
                let whole = open.is_whole(absent);
                (self.open, self.last) = (None, Some((number, whole)));
                if whole {
                    self.timeout = FIRST_TIMEOUT.min(self.max_timeout);
                }
                whole
            }
            // A request that was sent again.
            _ => self.last == Some((number, true)),
        }
    }

    /// What the trainer of this rank has to do.
    pub(super) fn order(&self, rank: u32) -> CutOrder {
        let Some(open) = &self.open else { return CutOrder::GoOn };
        let OpenCut { number: cut, checkpoint, .. } = *open;
        if !self.in_step {
            return CutOrder::Stop { cut, after: None, checkpoint };
        }
        match open.looked_up.iter().copied().collect::<Option<Vec<_>>>() {
            Some(looked_up) => CutOrder::Stop { cut, after: looked_up.into_iter().max(), checkpoint },
            None if (rank as usize) < self.trainers => CutOrder::Hold { cut },
            None => CutOrder::GoOn,
        }
    }

    /// A trainer reports. Reports on other cuts than the open one are ignored.
    ///
    /// # Errors
    /// A user fault: there is no such trainer.
    pub(super) fn report(&mut self, rank: u32, report: CutReport) -> Result<(), Fault> {
        let at = rank as usize;
        if at >= self.trainers {
            return Err(Fault::user(format!("trainer {rank} reports for a cut of {} trainers", self.trainers)));
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        match report {
            // The first answer counts: the others have it already.
            CutReport::Held { cut, looked_up } if cut == open.number => {
                open.looked_up[at].get_or_insert(looked_up);
            }
            CutReport::Stopped { cut, done, kept } if cut == open.number => {
                open.stopped[at].get_or_insert((done, kept));
            }
            CutReport::Failed { cut } if cut == open.number => {
                (self.open, self.last) = (None, Some((cut, false)));
            }
            _ => {}
        }
        Ok(())
    }

    /// The time of the open cut counts from `now` on: until then the trainers could not stop.
    pub(super) fn discount_until(&mut self, now: Instant) {
        if let Some(open) = &mut self.open {
            open.begun = now;
        }
    }

    /// Gives up a cut that takes too long. If it gives one up, returns the ranks that have not stopped and are not `absent`.
    pub(super) fn tick(&mut self, absent: &BTreeSet<u32>, now: Instant) -> Option<Vec<u32>> {
        let open = self.open.take_if(|open| now.duration_since(open.begun) > self.timeout)?;
        self.last = Some((open.number, false));
        self.timeout = (self.timeout * 2).min(self.max_timeout);
        Some(open.waits_for(absent).collect())
    }
}

impl OpenCut {
    /// The ranks that have not stopped.
    fn waits_for(&self, absent: &BTreeSet<u32>) -> impl Iterator<Item = u32> {
        let late = (0..).zip(&self.stopped).filter(move |(rank, stopped)| stopped.is_none() && !absent.contains(rank));
        late.map(|(rank, _)| rank)
    }

    fn is_whole(&self, absent: &BTreeSet<u32>) -> bool {
        self.waits_for(absent).next().is_none()
    }
}

#[cfg(test)]
mod tests;
