//! A folder whose writing can be stopped, for a program that is asked to shut down: what was written so far is removed.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_actors::{Fault, FaultKind};

/// Whether to stop writing. By default, never.
#[derive(Clone, Debug, Default)]
pub(super) struct StopFlag(pub(super) Option<Arc<AtomicBool>>);

impl StopFlag {
    /// # Errors
    /// A fault of the kind [`FaultKind::Drained`], if writing is to stop.
    pub(super) fn check(&self, name: impl Display) -> Result<(), Fault> {
        match self.0.as_ref().is_some_and(|stop| stop.load(Ordering::SeqCst)) {
            true => Err(Fault::external(format!("stopped: `{name}` is not written")).kind(FaultKind::Drained)),
            false => Ok(()),
        }
    }
}
