//! A client of the coordinator for the program that starts the processes of a run: it asks for the status, and says which processes have
//! ended.

use std::time::Duration;

use forebay_actors::{Fault, FaultKind, IoRuntime};
use forebay_net::{Dialer, Identity, Limits, Peer, Security, SecurityFiles};

use super::members::Role;
use super::messages::{ProcessesEnded, RunStatus, SUPERVISOR};

/// A client of the coordinator, for the program that starts and restarts the processes of a run.
pub struct SupervisorClient {
    io: IoRuntime,
    peer: Peer,
}

impl SupervisorClient {
    /// A client of the coordinator of `run` at `address`. Does not connect yet.
    ///
    /// # Errors
    /// A user fault if a file of `security` cannot be used, or `address` is not `host:port`.
    pub fn new(run: &str, address: &str, security: &SecurityFiles) -> Result<Self, Fault> {
        let io = IoRuntime::new("status", 1);
        let identity = Identity { run: run.to_owned(), role: SUPERVISOR.into(), incarnation: 0, attempt: 0 };
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

    /// Says that `processes`, by role and rank, have ended and are not started again. The end of the run does not wait for them. If the run
    /// cannot go on without one of them, and has not ended, it ends as drained. Blocks.
    ///
    /// # Errors
    /// The coordinator cannot be reached, does not answer within `deadline`, or refuses the call.
    pub fn processes_ended(&self, processes: &[(Role, u32)], deadline: Duration) -> Result<(), Fault> {
        let body = ProcessesEnded { processes: processes.to_vec() };
        self.io.block_on(self.peer.action("coordinator.processes_ended", &body, deadline))
    }
}
