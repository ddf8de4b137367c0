//! Ctrl-C and SIGTERM: the first asks for a drain, the second ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::Fault;

use crate::exit;

/// Whether the user asked to stop.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Signals>);

#[derive(Default)]
struct Signals {
    seen: AtomicUsize,
    saved: AtomicBool,
}

impl Stop {
    /// Installs the signal handler.
    pub(crate) fn listen() -> Result<Self, Fault> {
        let stop = Self::default();
        let signals = Arc::clone(&stop.0);
        ctrlc::set_handler(move || {
            if signals.seen.fetch_add(1, Ordering::SeqCst) == 0 {
                eprintln!("\nstopping: trains on the rows that were read, then saves (once more to stop at once)");
            } else {
                let saved = signals.saved.load(Ordering::SeqCst);
                eprintln!("\nstopped at once, {}", if saved { "the model is saved" } else { "nothing saved" });
                std::process::exit(exit::INTERRUPTED);
            }
        })
        .map_err(|e| Fault::internal("cannot listen to signals").because(e))?;
        Ok(stop)
    }

    /// Whether the first signal has come.
    pub(crate) fn asked(&self) -> bool {
        self.0.seen.load(Ordering::SeqCst) > 0
    }

    /// The model is saved: a second signal says so.
    pub(crate) fn saved(&self) {
        self.0.saved.store(true, Ordering::SeqCst);
    }
}
