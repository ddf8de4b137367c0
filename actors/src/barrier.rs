//! Barriers: marks that the source puts between two batches. A stage handles a barrier after all batches before it and
//! before all batches after it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};

use crate::batch::BarrierNumber;
use crate::fault::{Fault, FaultKind};
use crate::lock::lock;

/// A request on its way to the source.
pub(crate) struct BarrierRequest {
    barrier: BarrierNumber,
    done: oneshot::Sender<BarrierNumber>,
}

/// All barriers of a run.
pub(crate) struct Barriers {
    next: AtomicU64,
    requests: mpsc::UnboundedSender<BarrierRequest>,
    under_way: Mutex<HashMap<BarrierNumber, oneshot::Sender<BarrierNumber>>>,
}

impl Barriers {
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<BarrierRequest>) {
        let (requests, source) = mpsc::unbounded_channel();
        (Arc::new(Self { next: AtomicU64::new(1), requests, under_way: Mutex::default() }), source)
    }

    /// Asks for a barrier. The future resolves when the sink has handled it, or with a fault if the run ends first.
    pub(crate) fn request(&self) -> impl Future<Output = Result<BarrierNumber, Fault>> + Send + use<> {
        let (done, passed) = oneshot::channel();
        // Sent here, not at the first poll: the barrier stands where it was asked for. A source that has ended drops
        // the request, and the future returns a fault.
        let _ = self.requests.send(BarrierRequest { barrier: BarrierNumber(self.next.fetch_add(1, Relaxed)), done });
        passes(passed)
    }

    /// Begins a barrier at a stage behind the source. `put` hands its number to the stage. The future is that of
    /// [`request`](Self::request).
    pub(crate) fn begin_at(
        &self,
        put: &dyn Fn(BarrierNumber) -> bool,
    ) -> impl Future<Output = Result<BarrierNumber, Fault>> + Send + use<> {
        let (done, passed) = oneshot::channel();
        let barrier = self.leaves(BarrierRequest { barrier: BarrierNumber(self.next.fetch_add(1, Relaxed)), done });
        if !put(barrier) {
            lock(&self.under_way).remove(&barrier);
        }
        passes(passed)
    }

    /// The source calls this when it sends the barrier; the returned number goes down the link.
    pub(crate) fn leaves(&self, request: BarrierRequest) -> BarrierNumber {
        let BarrierRequest { barrier, done } = request;
        lock(&self.under_way).insert(barrier, done);
        barrier
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
