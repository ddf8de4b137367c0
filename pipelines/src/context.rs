//! What a program makes once and every run in it uses.

use forebay_actors::IoRuntime;
use forebay_connectors::Stores;

use crate::registry::Registry;

/// The threads for network IO, the stores that were opened, and the stages, sources and models of the program's own. Cheap
/// to clone.
#[derive(Clone)]
pub struct Context {
    /// Where connections to other processes are served.
    pub io: IoRuntime,
    /// Paths and URLs are opened in these. They have IO threads of their own.
    pub stores: Stores,
    /// What a job may name beside what is built in.
    pub registry: Registry,
}

impl Default for Context {
    fn default() -> Self {
        Self::new(Registry::default())
    }
}

impl Context {
    /// A context with IO threads of its own, which start at their first use.
    pub fn new(registry: Registry) -> Self {
        // The other half of the cores computes. On two cores a second thread costs more in wake-ups than it carries.
        let threads = (IoRuntime::cores(16) / 2).max(1);
        Self { io: IoRuntime::new("forebay-io", threads), stores: Stores::default(), registry }
    }
}
