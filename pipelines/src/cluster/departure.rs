//! How one of several trainers leaves a run that goes on: it takes no more batches, and finishes those that it has taken. See
//! `run_state/leaving.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_job::Job;

use super::batches::receive_queue::ReceiveQueue;
use super::lease_client::LeaseClient;
use crate::order::batch_record::BatchRecord;

/// Where a trainer gets its batches.
#[derive(Clone)]
pub(crate) enum Input {
    /// It reads the windows of its leases.
    Leases(LeaseClient),
    /// Readers send them.
    Queue(Arc<ReceiveQueue>),
}

impl Input {
    /// Records which batches are done.
    pub(crate) fn record(&self) -> Arc<dyn BatchRecord> {
        match self {
            Self::Leases(leases) => Arc::new(leases.clone()),
            Self::Queue(receive_queue) => Arc::clone(receive_queue) as _,
        }
    }
}

/// The departure of a trainer that the run can do without. Clones share it.
#[derive(Clone)]
pub(crate) struct Departure {
    input: Input,
    begun: Arc<AtomicBool>,
}

impl Departure {
    /// The departure of the trainer of this rank in a run of `job`. `None`: the run cannot go on without this trainer.
    pub(crate) fn of(job: &Job, rank: u32, input: Input) -> Option<Self> {
        (job.trainers_may_leave() && rank > 0).then(|| Self { input, begun: Arc::default() })
    }

    /// The trainer takes no more batches: its pipeline ends when those that it has taken are done.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
        match &self.input {
            Input::Leases(leases) => leases.progress().close(),
            Input::Queue(receive_queue) => receive_queue.end(),
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }

    /// Waits until this trainer has reported the windows that are done, and has given back the rest of its leases. If a report fails, the
    /// windows go to another trainer, and the shards apply no batch twice.
    pub(crate) async fn give_back(&self) {
        if let Input::Leases(leases) = &self.input
            && let Err(fault) = leases.wait_until_given_back().await
        {
            tracing::debug!(%fault, "the last windows of this trainer are not reported");
        }
    }

    /// Readers send the batches that wait here to other trainers.
    pub(crate) fn close(&self) {
        if let Input::Queue(receive_queue) = &self.input {
            receive_queue.close_all();
        }
    }
}
