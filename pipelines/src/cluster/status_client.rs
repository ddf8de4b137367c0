//! The status of a run, for a process that is not one of its members.

use std::time::Duration;

use forebay_actors::{Fault, FaultKind, IoRuntime};
use forebay_net::{Dialer, Identity, Limits, Peer, Security, SecurityFiles};

use super::messages::RunStatus;

/// Asks the coordinator of a run for its status.
pub struct StatusClient {
    io: IoRuntime,
    peer: Peer,
}

impl StatusClient {
    /// For the coordinator of `run` at `address`. Does not connect yet.
    ///
    /// # Errors
    /// A user fault if a file of `security` cannot be used, or `address` is not `host:port`.
    pub fn new(run: &str, address: &str, security: &SecurityFiles) -> Result<Self, Fault> {
        let io = IoRuntime::new("status", 1);
        let identity = Identity { run: run.to_owned(), role: "status".into(), incarnation: 0, attempt: 0 };
        let peer = Dialer::new(&io, &Security::load(security)?, &identity, &Limits::default())?.peer(address)?;
        Ok(Self { io, peer })
    }

    /// The status of the run. `None`: the coordinator takes the call and does not answer within `deadline`. Blocks.
    ///
    /// # Errors
    /// The coordinator cannot be reached, or refuses the call.
    pub fn status(&self, deadline: Duration) -> Result<Option<RunStatus>, Fault> {
        match self.io.block_on(self.peer.action("coordinator.status", &(), deadline)) {
            Ok(status) => Ok(Some(status)),
            Err(fault) if fault.kind == FaultKind::Timeout => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}
