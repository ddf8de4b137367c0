//! How a program controls a run: drain, kill, scale, barriers, reports.
//!
//! Every method returns at once; the run's own threads do the work.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::adjustment::Adjustment;
use crate::batch::BarrierNumber;
use crate::fault::Fault;
use crate::ledger::LedgerReport;
use crate::lock::lock;
use crate::plan::Plan;
use crate::report::Report;
use crate::state::State;
use crate::timeline::Track;

/// Controls a run. Cheap to clone. After the end of the run it only reports.
#[derive(Clone)]
pub struct Control {
    pub(crate) state: Arc<State>,
}

impl Control {
    /// Stops the source at its next batch; the stages finish the batches under way.
    pub fn drain(&self) {
        self.state.switch.drain();
    }

    /// Stops everything at once. `fault` becomes the root cause, unless there is one already.
    pub fn kill(&self, fault: Fault) {
        self.state.switch.kill(fault);
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.state.plan
    }

    /// The current meters, or the meters at the end of the run.
    pub fn snapshot(&self) -> Report {
        self.state.report()
    }

    /// The rows that the run has read, delivered and left out so far.
    pub fn ledger(&self) -> LedgerReport {
        self.state.ledger.snapshot()
    }

    /// The timeline of each replica of each stage, from the source on, and of each service of the hosts that were attached: its first and
    /// its newest slices, a few thousand in all.
    pub fn timeline(&self) -> Vec<Track> {
        let registry = lock(&self.state.registry);
        let tracks = registry.stages.iter().rev().flat_map(|entry| {
            let meters = lock(&entry.meters);
            let tracks = meters.iter().enumerate().map(|(replica, meter)| meter.recorder().track(&entry.name, replica));
            tracks.collect::<Vec<_>>()
        });
        tracks.chain(self.state.services().flat_map(|services| services.timeline())).collect()
    }

    /// Changes the number of replicas of `stage` from its next batch on. A replica that is removed completes its batch
    /// and its `finish` first.
    ///
    /// # Errors
    /// There is no such stage, it is not replicated, or `replicas` is 0.
    pub fn scale(&self, stage: &str, replicas: usize) -> Result<(), Fault> {
        if replicas == 0 {
            return Err(Fault::user(format!("the stage `{stage}` needs at least one replica, 0 were asked for")));
        }
        let registry = lock(&self.state.registry);
        let Some(entry) = registry.stages.iter().find(|entry| entry.name == stage) else {
            let names: Vec<_> = registry.stages.iter().rev().map(|entry| entry.name.as_str()).collect();
            return Err(Fault::user(format!("there is no stage `{stage}`; there are: {}", names.join(", "))));
        };
        let Some(scale) = &entry.scale else {
            return Err(Fault::user(format!("the stage `{stage}` is not replicated: wire it with `replicated`")));
        };
        scale.target.send_replace(replicas);
        Ok(())
    }

    /// Sets the changes of a tuner in the run's report. They replace earlier ones of the tuner.
    pub fn set_adjustments(&self, adjustments: Vec<Adjustment>) {
        self.state.adjustments.set("tuner", adjustments);
    }

    /// Sends a barrier through the pipeline from `stage` on, behind the batches that wait in its mailbox. The barrier does not wait for
    /// batches before that stage. The future resolves with its number when the sink has handled the barrier. Dropping the future does not
    /// stop the barrier.
    ///
    /// # Errors
    /// The run ended first, the stage has no more batches, or there is no such stage behind the source.
    pub fn barrier_at(&self, stage: &str) -> impl Future<Output = Result<BarrierNumber, Fault>> + Send + use<> {
        let registry = lock(&self.state.registry);
        let entry = registry.stages.iter().find(|entry| entry.name == stage);
        let take = entry.and_then(|entry| entry.take_barrier.as_ref());
        self.state.barriers.begin_at(&|barrier| take.is_some_and(|take| take(barrier)))
    }

    /// Whether a fault has stopped the run, which may not have ended yet.
    pub fn killed(&self) -> bool {
        self.state.switch.is_killed()
    }

    /// Whether the run has ended.
    pub fn ended(&self) -> bool {
        lock(&self.state.ended).is_some()
    }

    /// Blocks until the run has ended, at most for `timeout`. Returns whether it has ended.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        let ended = lock(&self.state.ended);
        let waited = self.state.end.wait_timeout_while(ended, timeout, |ended| ended.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("name", &self.state.plan.name).finish_non_exhaustive()
    }
}
