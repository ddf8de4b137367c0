//! Barriers: marks between two batches. A barrier begins at a stage and passes all stages behind it. Each handles the barrier after all
//! batches before it and before all batches after it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::batch::BarrierNumber;
use crate::fault::{Fault, FaultKind};
use crate::lock::lock;

/// All barriers of a run.
pub(crate) struct Barriers {
    next: AtomicU64,
    under_way: Mutex<HashMap<BarrierNumber, oneshot::Sender<BarrierNumber>>>,
}

impl Barriers {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { next: AtomicU64::new(1), under_way: Mutex::default() })
    }

    /// Begins a barrier at a stage behind the source. `put` hands its number to the stage, and returns whether the stage takes it. The
    /// future resolves when the sink has handled the barrier, or with a fault if the run ends first.
    pub(crate) fn begin_at(
        &self,
        put: &dyn Fn(BarrierNumber) -> bool,
    ) -> impl Future<Output = Result<BarrierNumber, Fault>> + Send + use<> {
        let (done, passed) = oneshot::channel();
        let barrier = BarrierNumber(self.next.fetch_add(1, Relaxed));
        lock(&self.under_way).insert(barrier, done);
        if !put(barrier) {
            lock(&self.under_way).remove(&barrier);
        }
        passes(passed)
    }

    /// The sink calls this when it has handled the barrier.
    pub(crate) fn arrives(&self, barrier: BarrierNumber) {
        let passed = lock(&self.under_way).remove(&barrier);
        if let Some(done) = passed {
            // The caller may have dropped its future.
            let _ = done.send(barrier);
        }
    }

    /// Called at the end of the run: every caller that still waits gets a fault.
    pub(crate) fn end(&self) {
        lock(&self.under_way).clear();
    }
}

async fn passes(passed: oneshot::Receiver<BarrierNumber>) -> Result<BarrierNumber, Fault> {
    let ending =
        || Fault::user("no barrier can pass any more: the run has ended or is ending").kind(FaultKind::Stopped);
    passed.await.map_err(|_| ending())
}
