//! The handlers of a server: each answers one kind of requests. Handlers run on the server's [`IoRuntime`]: they may await anything, and
//! must not block its threads.
//!
//! [`IoRuntime`]: forebay_actors::IoRuntime

use arrow::datatypes::Schema;
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, SchemaAsIpc, Ticket};
use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::{Fault, FaultKind};

use crate::identity::Caller;
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;

/// Answers one kind of requests to a server: about its tables, its coordinator or its batches.
///
/// Every method has a default that refuses and lists what the handler has.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// The first element of descriptor paths, the beginning of action types, and the key that tickets name it by.
    fn name(&self) -> &'static str;

    /// The kinds of actions, each with a description, for clients that list them.
    fn actions(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Whether the handler takes calls of every attempt of the run, and decides itself what each may do. Otherwise the server refuses calls
    /// of other attempts than its own, and ends their streams when it enters another (see [`Attempt`](crate::Attempt)). Callers without an
    /// identity are not checked.
    fn takes_any_attempt(&self) -> bool {
        false
    }

    /// Answers the action `<name>.<kind>`. It runs to its end even if the caller leaves.
    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        let (_, _) = (caller, body);
        let kinds: Vec<_> = self.actions().into_iter().map(|(kind, _)| format!("`{}.{kind}`", self.name())).collect();
        Err(Fault::user(format!("there is no action `{}.{kind}`: there is {}", self.name(), list(&kinds)))
            .kind(FaultKind::Refused))
    }

    /// What can be read here: each with a descriptor, a schema, and tickets. See [`flight_info`].
    async fn list(&self) -> Result<Vec<FlightInfo>, Fault> {
        Ok(Vec::new())
    }

    /// Serves an exchange of `path`, whose first element is the handler's name. The exchange ends with what this returns. When the client
    /// leaves, `incoming` and `outgoing` return faults.
    async fn exchange(
        &self,
        caller: Caller,
        path: Vec<String>,
        incoming: Incoming,
        outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let (_, _, _) = (caller, incoming, outgoing);
        Err(Fault::user(format!("`{}` has no exchange `{}`", self.name(), path.join("/"))).kind(FaultKind::Refused))
    }

    /// Sends the data of a ticket. Tickets are JSON objects; the handler is the one whose name is among the keys.
    async fn get(&self, caller: Caller, ticket: Bytes, outgoing: Outgoing) -> Result<(), Fault> {
        let (_, _, _) = (caller, ticket, outgoing);
        Err(Fault::user(format!("`{}` has nothing to get by a ticket", self.name())).kind(FaultKind::Refused))
    }
}

/// What can be read: its descriptor path, its columns, the ticket that gets it (empty: it has none), and its rows, if
/// they are known.
pub fn flight_info(
    path: &[&str],
    schema: &Schema,
    ticket: impl Into<Bytes>,
    rows: Option<u64>,
) -> Result<FlightInfo, Fault> {
    let ticket = ticket.into();
    let info = FlightInfo::new()
        .try_with_schema(schema)
        .map_err(|e| Fault::internal("cannot write a schema").because(e))?
        .with_descriptor(FlightDescriptor::new_path(path.iter().map(|&s| s.to_owned()).collect()))
        .with_total_records(rows.map_or(-1, |rows| rows as i64))
        .with_total_bytes(-1);
    Ok(match ticket.is_empty() {
        true => info,
        false => info.with_endpoint(FlightEndpoint::new().with_ticket(Ticket { ticket })),
    })
}

/// The schema of an info, as GetSchema answers it.
pub(crate) fn schema_result(info: FlightInfo) -> Result<arrow_flight::SchemaResult, Fault> {
    let broken = |e| Fault::internal("cannot write a schema").because(e);
    let schema = info.try_decode_schema().map_err(broken)?;
    SchemaAsIpc::new(&schema, &IpcWriteOptions::default()).try_into().map_err(broken)
}

/// `a, b`, or `nothing`.
pub(crate) fn list(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        names => names.join(", "),
    }
}
