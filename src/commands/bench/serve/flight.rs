//! Requests over Arrow Flight: record batches on the exchange `score`.

use std::fs::File;
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::ipc::reader::FileReader;

use super::connection::{Connection, Target};
use crate::Fault;
use crate::actors::IoRuntime;
use crate::net::{Dialer, Identity, Incoming, Limits, Message, OPENING, Outgoing, Security};

/// One record batch, for any number of connections.
pub(super) struct FlightTarget {
    address: String,
    batch: RecordBatch,
    io: IoRuntime,
    dialer: Dialer,
}

impl FlightTarget {
    /// The request is the first record batch of a file of Arrow IPC.
    pub(super) fn new(address: &str, path: &Path) -> Result<Self, Fault> {
        let file = path.display();
        let opened = File::open(path).map_err(|e| Fault::user(format!("cannot read {file}")).because(e))?;
        let not_arrow = || Fault::user(format!("{file} is no file of Arrow IPC, as pyarrow.ipc.new_file writes it"));
        let mut batches = FileReader::try_new(opened, None).map_err(|e| not_arrow().because(e))?;
        let batch = batches.next().ok_or_else(|| Fault::user(format!("{file} has no record batch")))?;
        let batch = batch.map_err(|e| not_arrow().because(e))?;
        let io = IoRuntime::new("load", 1);
        let identity = Identity { run: String::new(), role: "bench".into(), incarnation: 0, attempt: 0 };
        let dialer = Dialer::new(&io, &Security::none(), &identity, &Limits::default())?;
        Ok(Self { address: address.to_owned(), batch, io, dialer })
    }
}

impl Target for FlightTarget {
    fn connect(&self) -> Result<Box<dyn Connection>, Fault> {
        // Each peer has a TCP connection of its own, as each client has.
        let (peer, io) = (self.dialer.peer(&self.address)?, self.io.clone());
        let (outgoing, incoming) = io.block_on(peer.exchange(&["score"], OPENING))?;
        Ok(Box::new(FlightConnection { io, batch: self.batch.clone(), outgoing, incoming }))
    }
}

struct FlightConnection {
    io: IoRuntime,
    batch: RecordBatch,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl Connection for FlightConnection {
    fn ask(&mut self) -> Result<(), Fault> {
        let Self { io, batch, outgoing, incoming } = self;
        io.block_on(async {
            // If the server has ended the exchange, the incoming message says why.
            let sent = outgoing.send(Message::columns(batch.clone())).await;
            let Some(answer) = incoming.next().await? else {
                return sent.and(Err(Fault::external(format!("the server at {} ended the exchange", incoming.peer()))));
            };
            match answer.batch {
                Some(scores) if scores.num_rows() == batch.num_rows() => Ok(()),
                _ => Err(Fault::external("an answer without a score for each row")),
            }
        })
    }
}
