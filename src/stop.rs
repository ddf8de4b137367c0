//! Ctrl-C and SIGTERM: the first asks for a drain, the second ends the program at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Fault;

use crate::exit;

/// Whether the user asked to stop.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Signals>);

#[derive(Clone, Copy, Default)]
enum Saving {
    #[default]
    NotBegun,
    Begun,
    Done,
}

#[derive(Default)]
struct Signals {
    seen: AtomicUsize,
    /// Locked by the handler while it ends the program: no save begins after it has said that nothing is saved.
    saving: Mutex<Saving>,
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
                let saving = signals.saving();
                let model = match *saving {
                    Saving::NotBegun => "nothing saved",
                    Saving::Begun => "while the model was saved: it is there whole, or not at all",
                    Saving::Done => "the model is saved",
                };
                eprintln!("\nstopped at once, {model}");
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

    /// Runs `save`. A second signal during or after it says what became of the model.
    pub(crate) fn while_saving<T>(&self, save: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        *self.0.saving() = Saving::Begun;
        let saved = save()?;
        *self.0.saving() = Saving::Done;
        Ok(saved)
    }
}

impl Signals {
    fn saving(&self) -> MutexGuard<'_, Saving> {
        self.saving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
