//! Early stopping, in a quarter of the runs with one trainer that may evaluate: it holds the first batch after so many rows until all
//! before it are applied or kept, as the stage `lookup` does for an evaluation, and then trains on no more.

use forebay_base::mix64;
use forebay_batches::{BatchId, RowCounts};
use forebay_job::{EvaluateEvery, Job, LookupAt};

use super::super::members::Role;
use super::super::messages::{MemberId, RunStatus, StopEarlyRequest};
use super::network::{Contents, Pid, Request};
use super::trainer::SimTrainer;
use super::world::World;

/// Chosen so that no seed of `ONCE_WRONG` in `tests.rs` stops early.
const STOPS_EARLY: u64 = 67 << 32;

/// The rows after which a run stops early, if it does. Takes no random number, so that other seeds keep their runs.
pub(super) fn stops_after(job: &Job, seed: u64) -> Option<EvaluateEvery> {
    let placement = &job.placement;
    // Look-ahead has look-ups of its own here.
    let may = placement.trainers == 1 && placement.lookup_at == LookupAt::Trainer && job.train.look_ahead.is_auto();
    let rows = 100 + mix64(seed) % 400;
    (may && mix64(seed ^ STOPS_EARLY).is_multiple_of(4)).then_some(EvaluateEvery::Rows(rows))
}

impl SimTrainer {
    /// Whether the batch at the look-up is held, or there is no other look-up.
    pub(super) fn is_held(&mut self, world: &mut World, pid: Pid, member: MemberId) -> bool {
        let Some(EvaluateEvery::Rows(most)) = world.job.evaluation.every else { return false };
        let pushed = self.pushes.iter().filter_map(|push| push.looked.as_ref());
        let under_way: u64 = self.computing.iter().chain(pushed).map(|looked| looked.header.row).sum();
        let trained = self.position.totals().trained;
        let is_due = self.at_look_up.as_ref().is_some_and(|at| !at.entered) && trained + under_way >= most;
        if is_due && !self.barrier && self.is_quiet() {
            (self.at_look_up, self.source_ended) = (None, true);
            let trained = RowCounts { trained, ..RowCounts::default() };
            world.call(pid, (Role::Ps, 0), Request::StopEarly(StopEarlyRequest { member, trained }));
            world.counted.stopped_early += 1;
        }
        is_due
    }
}

/// The model of a run that has stopped early: it has the batches before the one that was held, each once.
pub(super) fn check_stopped(world: &World, status: &RunStatus, contents: &[Contents]) -> Result<(), String> {
    let (mut rows, mut expected) = (0, Vec::new());
    for id in world.all_pushed() {
        if rows < status.counts.trained {
            rows += world.window(id.epoch, id.window).0[id.index as usize];
            expected.push(id);
        }
    }
    for contents in contents {
        let applied: Vec<BatchId> = contents.applied.keys().copied().collect();
        if let Some((id, times)) = contents.applied.iter().find(|(_, times)| **times != 1) {
            return Err(format!("{id} was applied {times} times before the run stopped early"));
        }
        if (rows, &applied) != (status.counts.trained, &expected) {
            let (found, of) = (applied.len(), expected.len());
            return Err(format!("{found} batches are in the model, and {of} lie before row {}", status.counts.trained));
        }
    }
    Ok(())
}
