//! One connection of the load, whatever it speaks.

use crate::Fault;

/// One connection to the server.
pub(super) trait Connection: Send {
    /// Sends the request and waits for its answer.
    fn ask(&mut self) -> Result<(), Fault>;
}
