//! The common traits of HTTP and Arrow Flight for the load: how a client connects, and asks.

use crate::Fault;

/// The server, and the request that every connection sends.
pub(super) trait Target: Sync {
    /// Opens a connection. Called on the thread that uses it.
    fn connect(&self) -> Result<Box<dyn Connection>, Fault>;
}

/// One connection to the server.
pub(super) trait Connection {
    /// Sends the request and waits for its answer.
    fn ask(&mut self) -> Result<(), Fault>;
}
