//! What can be asked of a run while it runs: drain, kill, scale, a barrier, the meters.
//!
//! Comes in: requests. Goes out: nothing but the future of a barrier; all else returns at once, and what was asked for
//! happens on the run's own threads.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::barrier::Barrier;
use crate::fault::Fault;
use crate::report::Report;
use crate::state::{State, lock};

/// Steers a run; cheap to clone, and may be kept: once the run has ended it only reports.
#[derive(Clone)]
pub struct Control {
    pub(crate) state: Arc<State>,
}

impl Control {
    /// Asks the source to stop at its next batch; what is under way is worked off. Within the topology's
    /// [`drain_deadline`](crate::Topology::drain_deadline), if it has one.
    pub fn drain(&self) {
        let deadline = self.state.settings.drain_deadline.map(|deadline| Instant::now() + deadline);
        self.state.drain_until.send_if_modified(|until| {
            let first = until.is_none() && deadline.is_some();
            if first {
                *until = deadline;
            }
            first
        });
        self.state.switch.drain();
    }

    /// The same with a deadline of its own: after it, the run ends with a fault that names the stage that was late.
    pub fn drain_within(&self, deadline: Duration) {
        self.state.drain_until.send_replace(Some(Instant::now() + deadline));
        self.state.switch.drain();
    }

    /// Stops everything at once. `fault` becomes the root cause, unless there is one already.
    pub fn kill(&self, fault: Fault) {
        self.state.switch.kill(fault);
    }

    /// The meters as they are now (or as they were at the end).
    pub fn snapshot(&self) -> Report {
        self.state.report()
    }

    /// Has the stage called `stage` run in `replicas` replicas from its next batch on. A replica that is dismissed
    /// finishes what it has in hand, and its `finish` sends what it held back.
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

    /// Sends a barrier through the pipeline, from the source's next batch boundary; the future resolves when the sink
    /// has handled it. It is under way even if the future is dropped.
    ///
    /// # Errors
    /// The run ended first, or its source has no more batches.
    pub fn barrier(&self) -> impl Future<Output = Result<Barrier, Fault>> + Send + use<> {
        self.state.barriers.request()
    }

    /// Whether the run has ended.
    pub fn ended(&self) -> bool {
        lock(&self.state.ended).is_some()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("name", &self.state.plan.name).finish_non_exhaustive()
    }
}
