//! The [`Context`] that all runs of a program share.

use std::sync::Arc;

use forebay_actors::{IoRuntime, Observer};
use forebay_connectors::Stores;

use crate::extension::registry::Registry;

/// The threads for network IO, the opened stores, and the registry of custom stages, sources and models. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The runtime of the connections to other processes.
    pub io: IoRuntime,
    /// The stores that paths and URLs are opened in. They have their own IO threads.
    pub stores: Stores,
    /// The custom stages, sources and models that a job may name.
    pub registry: Registry,
    /// Observes what the stages of a training do while it runs.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Default for Context {
    fn default() -> Self {
        Self::new(Registry::default())
    }
}

impl Context {
    /// A context with new IO threads, which start at their first use.
    pub fn new(registry: Registry) -> Self {
        // The other half of the cores computes. On two cores, a second IO thread costs more in wake-ups than it gains.
        let threads = (IoRuntime::cores(16) / 2).max(1);
        Self { io: IoRuntime::new("forebay-io", threads), stores: Stores::default(), registry, observer: None }
    }

    /// The same with an observer of trainings.
    #[must_use]
    pub fn observed_by(&self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self.clone() }
    }
}
