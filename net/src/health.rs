//! Whether a process is ready, and whether it is alive. `GET /healthz` answers 200 `ok`, or 503 with what the process waits for. `GET
//! /livez` answers 200 `ok` also while the process waits. A process that is stopped or hangs answers neither.

use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;

/// Ready, or what is waited for. Clones share one state, which begins as `starting`.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<Result<(), String>>>);

impl Default for Health {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Err("starting".to_owned()))))
    }
}

impl Health {
    /// Not ready yet: `starting`.
    pub fn new() -> Self {
        Self::default()
    }

    /// `Ok`: ready. `Err`: what is waited for, in a few words.
    pub fn set(&self, state: Result<(), String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Ready.
    pub fn ready(&self) {
        self.set(Ok(()));
    }

    /// Not ready: `what` is waited for.
    pub fn waiting(&self, what: impl Into<String>) {
        self.set(Err(what.into()));
    }

    /// The answer to `GET /healthz`: its status, and its body in plain text.
    pub(crate) fn answer(&self) -> (StatusCode, String) {
        match self.get() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("waiting: {what}\n")),
        }
    }

    /// The answer to `GET /livez`: its status, and its body in plain text.
    pub(crate) fn alive() -> (StatusCode, String) {
        (StatusCode::OK, "ok\n".to_owned())
    }

    /// The current state.
    pub fn get(&self) -> Result<(), String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
