//! How many trainers take part in a run: some may leave, and others join.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of trainers that take steps, at least 1. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct TrainerCount(Arc<AtomicU64>);

impl TrainerCount {
    pub(crate) fn new(trainers: u64) -> Self {
        Self(Arc::new(AtomicU64::new(trainers.max(1))))
    }

    pub(crate) fn set(&self, trainers: u64) {
        self.0.store(trainers.max(1), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One trainer.
impl Default for TrainerCount {
    fn default() -> Self {
        Self::new(1)
    }
}
