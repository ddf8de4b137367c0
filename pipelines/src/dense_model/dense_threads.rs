//! The threads of dense compute, which the tuner may change between two batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_models::DenseModel;

/// The number of threads that a model has and that it should have. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DenseThreads(Arc<Numbers>);

/// 0 while there is no model whose number of threads can change.
#[derive(Debug, Default)]
struct Numbers {
    now: AtomicUsize,
    wanted: AtomicUsize,
}

impl DenseThreads {
    /// The threads of the model; `None` if their number cannot change, or if there is no model yet.
    pub(crate) fn now(&self) -> Option<usize> {
        Some(self.0.now.load(Relaxed)).filter(|&now| now > 0)
    }

    /// Asks for this many threads from the next batch on.
    pub(crate) fn want(&self, threads: usize) {
        self.0.wanted.store(threads, Relaxed);
    }

    /// The stage made its model.
    pub(crate) fn begin(&self, model: &dyn DenseModel) {
        self.set(model.threads().unwrap_or(0));
    }

    /// Before a step: gives the model the threads that are asked for. If they cannot be started, it keeps its own.
    pub(crate) fn apply(&self, model: &mut dyn DenseModel) {
        let (now, wanted) = (self.0.now.load(Relaxed), self.0.wanted.load(Relaxed));
        if now == wanted || now == 0 {
            return;
        }
        match model.set_threads(wanted) {
            Ok(()) => self.set(wanted),
            Err(error) => {
                tracing::warn!("dense compute keeps its {now} threads: {error}");
                self.set(now);
            }
        }
    }

    fn set(&self, threads: usize) {
        self.0.wanted.store(threads, Relaxed);
        self.0.now.store(threads, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::{DenseOptimizer, ModelSpec, NativeModel};

    use super::*;

    #[test]
    fn a_model_gets_the_threads_that_are_asked_for_and_keeps_its_own_if_they_cannot_be_started() {
        let mut model = NativeModel::new(ModelSpec::lr(1, 0), DenseOptimizer::sgd(0.1), 0, 4).unwrap();
        let threads = DenseThreads::default();
        threads.want(2);
        threads.apply(&mut model);
        assert_eq!((threads.now(), model.threads()), (None, Some(4)), "the tuner does not know it yet");
        threads.begin(&model);
        threads.apply(&mut model);
        assert_eq!((threads.now(), model.threads()), (Some(4), Some(4)));
        threads.want(2);
        threads.apply(&mut model);
        assert_eq!((threads.now(), model.threads()), (Some(2), Some(2)));
        threads.want(1_000_000);
        threads.apply(&mut model);
        threads.apply(&mut model);
        assert_eq!((threads.now(), model.threads()), (Some(2), Some(2)));
    }
}
