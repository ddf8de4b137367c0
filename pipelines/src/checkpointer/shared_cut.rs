//! What one of several trainers adds to a cut: the gate before its look-ups, and the batches that it has done.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::checkpoint::batch_log::BatchLog;
use crate::order::lookup_gate::LookupGate;

/// One of several trainers in the cuts of its run.
#[derive(Debug, Default)]
pub(crate) struct SharedCut {
    pub(crate) gate: LookupGate,
    log: Mutex<BatchLog>,
}

impl SharedCut {
    pub(crate) fn log(&self) -> MutexGuard<'_, BatchLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
