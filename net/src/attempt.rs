//! The attempt of the run that a server is in.
//!
//! When a run loses a process whose state cannot be made again, the coordinator starts a new attempt. A server refuses calls
//! of other attempts and ends the streams of an earlier one, so that no old message changes the state of a new attempt.

use forebay_actors::Fault;
use tokio::sync::watch;

use crate::identity::Caller;

/// The attempt of the run that a server is in; 0 before it has joined one. Clones share one number.
#[derive(Clone, Debug)]
pub struct Attempt(watch::Sender<u64>);

impl Attempt {
    /// Starts at `attempt`.
    pub fn new(attempt: u64) -> Self {
        Self(watch::Sender::new(attempt))
    }

    /// The current attempt.
    pub fn get(&self) -> u64 {
        *self.0.borrow()
    }

    /// Enters `attempt`. From this call on, calls of other attempts are refused, and streams of other attempts end: both with retryable
    /// faults. 0: all are refused until the next call of this method.
    pub fn set(&self, attempt: u64) {
        self.0.send_replace(attempt);
    }

    /// Checks that a caller is in this attempt. A stock Flight client is in none: it passes, and is not bound to an attempt.
    ///
    /// # Errors
    /// External, retryable: the caller is in another attempt, or this process in none.
    pub(crate) fn admit(&self, caller: &Caller) -> Result<Option<OpenedIn>, Fault> {
        let Some(identity) = &caller.identity else { return Ok(None) };
        match self.get() {
            0 => Err(Fault::external("not ready: this process has not joined the run yet").retryable()),
            current if current == identity.attempt => {
                Ok(Some(OpenedIn { server: self.0.subscribe(), attempt: current }))
            }
            current => Err(Fault::external(format!(
                "{} belongs to attempt {} of the run, this process is in attempt {current}",
                caller.describe(),
                identity.attempt
            ))
            .retryable()),
        }
    }
}

/// The attempt in which a stream was opened.
#[derive(Clone, Debug)]
pub(crate) struct OpenedIn {
    server: watch::Receiver<u64>,
    attempt: u64,
}

impl OpenedIn {
    /// # Errors
    /// External, retryable: the server has entered another attempt since.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let current = *self.server.borrow();
        if current == self.attempt {
            return Ok(());
        }
        let then = self.attempt;
        let now = if current == 0 { "no attempt".to_owned() } else { format!("attempt {current}") };
        Err(Fault::external(format!("this stream belongs to attempt {then} of the run, this process is in {now}"))
            .retryable())
    }

    /// Waits until the server enters another attempt, and returns the fault that the stream ends with. Cancel safe.
    pub(crate) async fn ended(mut self) -> Fault {
        loop {
            if let Err(fault) = self.check() {
                return fault;
            }
            if self.server.changed().await.is_err() {
                // The server is gone: it has cut its streams itself.
                std::future::pending::<()>().await;
            }
        }
    }
}
