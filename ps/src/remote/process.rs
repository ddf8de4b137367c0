//! The shards of a table that another process holds: calls become messages.
//!
//! Comes in: a [`Call`]. Goes out: its [`Reply`]. Waits for the network and for the other process; nothing blocks the
//! thread. A pull, a peek, an export and the counts are asked again after a lost connection, a push only with an id.

use std::sync::Arc;
use std::time::Duration;

use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Float16Type, Float32Type};
use forebay_actors::Fault;
use forebay_net::{Message, Peer, RequestStream, Resend, Retry};
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Wire;
use super::columns::{self, batch, halves_column, key_field, keys_column, list_field, rows, rows_column};
use super::columns::{reclaim_keys, reclaim_rows};
use super::metadata::{Answer, Header, Tail};
use super::service::{AcknowledgeBefore, Named, Ticket};
use crate::half_block;
use crate::push::{PushOutcome, Stamp};
use crate::shard::{Call, Reply};
use crate::stats::TableStats;
use crate::table::{ExportBlock, Layout};

/// How long an answer to one try of an action may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The way to another process. One stream for each kind of call, opened when first needed.
pub(crate) struct Process {
    peer: Peer,
    name: String,
    layout: Arc<Layout>,
    wire: Wire,
    retry: Retry,
    pull: RequestStream,
    peek: RequestStream,
    push: RequestStream,
    import: RequestStream,
    import_weights: RequestStream,
}

impl Process {
    pub(super) fn new(peer: Peer, name: String, layout: Arc<Layout>, wire: Wire, retry: Retry) -> Self {
        let line = |kind: &str, how: &[&str]| {
            let path = [&["table", &layout.table, kind], how].concat();
            RequestStream::new(peer.clone(), &name, &path, retry.clone())
        };
        let half: &[&str] = if wire == Wire::F16 { &["f16"] } else { &[] };
        let (pull, peek, push) = (line("pull", half), line("peek", half), line("push", half));
        let (import, import_weights) = (line("import", &[]), line("import", &["weights"]));
        Self { pull, peek, push, import, import_weights, peer, name, layout, wire, retry }
    }

    pub(crate) async fn call(&self, call: Call) -> Result<Reply, Fault> {
        match call {
            Call::Pull { keys, rows, insert } => self.pull(keys, rows, insert).await,
            Call::Push { keys, grads, step, stamp } => self.push(keys, grads, step, stamp).await,
            Call::Export { shard, from, at_most } => self.export(shard, from, at_most).await,
            Call::Import { keys, weights, state } => self.import(keys, weights, state).await,
            Call::Stats => {
                let table = Named { table: self.layout.table.clone() };
                let stats: TableStats = self.act("table.stats", &table).await?;
                Ok(Reply::Stats(stats.shards))
            }
            Call::AcknowledgeBefore { before } => {
                let settle = AcknowledgeBefore { table: self.layout.table.clone(), before };
                self.act::<()>("table.acknowledge", &settle).await.map(|()| Reply::Done)
            }
        }
    }

    async fn pull(&self, keys: Vec<u64>, mut into: Vec<f32>, insert: bool) -> Result<Reply, Fault> {
        let line = if insert { &self.pull } else { &self.peek };
        let (asked, dim) = (keys.len(), self.layout.row_dim);
        let question = batch(vec![key_field()], vec![keys_column(keys)])?;
        let (question, answer) = line.ask(Message::columns(question), Resend::Yes).await?;
        let (_, tail) = Answer::read(&answer.metadata).map_err(|fault| self.broken(fault))?;
        match (answer.batch, tail) {
            (Some(columns), Tail::Exponents(exponents)) if self.wire == Wire::F16 => {
                let halves = rows::<Float16Type>(&columns, "row", dim).map_err(|fault| self.broken(fault))?;
                half_block::decode(halves, &exponents, &mut into).map_err(|e| self.broken(Fault::external(e)))?;
            }
            (Some(columns), _) => {
                let values = rows::<Float32Type>(&columns, "row", dim).map_err(|fault| self.broken(fault))?;
                into.clear();
                into.extend_from_slice(values);
            }
            (None, Tail::Floats(values)) => into = values,
            (None, Tail::Exponents(_)) => into.clear(),
        }
        if into.len() != asked * dim {
            let found = into.len();
            return Err(self.broken(Fault::external(format!("{found} weights came for {asked} keys of {dim} each"))));
        }
        let (keys, _) = reclaim(question);
        Ok(Reply::Buffers { keys, values: into, pushed: PushOutcome::Already })
    }

    async fn push(&self, keys: Vec<u64>, grads: Vec<f32>, step: u64, stamp: Option<Stamp>) -> Result<Reply, Fault> {
        let (header, dim) = (Header { step, stamp }, self.layout.row_dim);
        let fields = |kind| vec![key_field(), list_field("grad", kind, dim)];
        let (message, kept) = match self.wire {
            Wire::F32 => {
                let columns = vec![keys_column(keys), rows_column::<Float32Type>(grads, dim)?];
                let columns = batch(fields(DataType::Float32), columns)?;
                (Message { batch: Some(columns), metadata: header.write(&[]) }, None)
            }
            Wire::F16 => {
                let (mut halves, mut exponents) = (Vec::new(), Vec::new());
                if !half_block::encode(&grads, &mut halves, &mut exponents) {
                    return Err(Fault::internal("gradients that are not finite came as far as the wire"));
                }
                let columns = batch(fields(DataType::Float16), vec![keys_column(keys), halves_column(halves, dim)?])?;
                (Message { batch: Some(columns), metadata: header.write(&exponents) }, Some(grads))
            }
        };
        let (question, answer) = self.push.ask(message, if stamp.is_some() { Resend::Yes } else { Resend::No }).await?;
        let (answer, _) = Answer::read(&answer.metadata).map_err(|fault| self.broken(fault))?;
        let (keys, values) = reclaim(question);
        Ok(Reply::Buffers { keys, values: kept.unwrap_or(values), pushed: answer.pushed })
    }

    async fn import(&self, keys: Vec<u64>, weights: Vec<f32>, state: Option<Vec<f32>>) -> Result<Reply, Fault> {
        let (dim, state_dim) = (self.layout.row_dim, self.layout.state_dim);
        let mut fields = vec![key_field(), list_field("weight", DataType::Float32, dim)];
        let mut columns = vec![keys_column(keys), rows_column::<Float32Type>(weights, dim)?];
        let line = if state.is_some() { &self.import } else { &self.import_weights };
        if let Some(state) = state
            && state_dim > 0
        {
            fields.push(list_field("state", DataType::Float32, state_dim));
            columns.push(rows_column::<Float32Type>(state, state_dim)?);
        }
        line.ask(Message::columns(batch(fields, columns)?), Resend::Yes).await?;
        Ok(Reply::Done)
    }

    async fn export(&self, shard: usize, from: usize, at_most: usize) -> Result<Reply, Fault> {
        let ticket = Ticket { table: self.layout.table.clone(), shard: Some(shard), from, at_most: Some(at_most) };
        let ticket = serde_json::to_vec(&ticket).map_err(|e| Fault::internal("a ticket").because(e))?;
        let (peer, layout) = (self.peer.clone(), self.layout.clone());
        let ask = move || exported(peer.clone(), layout.clone(), ticket.clone());
        Ok(Reply::Export(self.retry.run(&self.what("export"), ask).await?))
    }

    /// Does an action that may be done twice.
    fn act<R: DeserializeOwned>(&self, kind: &str, body: &impl Serialize) -> BoxFuture<'static, Result<R, Fault>> {
        act(&self.peer, kind, body, &self.retry, &self.what(kind))
    }

    fn what(&self, what: &str) -> String {
        format!("table `{}` on {} ({what})", self.layout.table, self.name)
    }

    /// An answer that is none: the other side's fault.
    fn broken(&self, fault: Fault) -> Fault {
        Fault::external(format!("table `{}` on {} gave a wrong answer", self.layout.table, self.name)).because(fault)
    }
}

/// Does an action of `peer` that may be done twice, again and again for as long as `retry` says.
///
/// Boxed, and of what it owns: what retries a borrowing closure is a future that cannot be sent to another thread.
pub(crate) fn act<R: DeserializeOwned>(
    peer: &Peer,
    kind: &str,
    body: &impl Serialize,
    retry: &Retry,
    what: &str,
) -> BoxFuture<'static, Result<R, Fault>> {
    let body = serde_json::to_vec(body).map_err(|e| Fault::internal("a body is no JSON").because(e));
    let (peer, kind, retry, what) = (peer.clone(), kind.to_owned(), retry.clone(), what.to_owned());
    Box::pin(async move {
        let body = body?;
        let ask = move || {
            let (peer, kind, body) = (peer.clone(), kind.clone(), body.clone());
            async move { peer.raw_action(&kind, body, DEADLINE).await }
        };
        let answer = retry.run(&what, ask).await?;
        serde_json::from_slice(&answer).map_err(|e| Fault::external(format!("{what}: a wrong answer")).because(e))
    })
}

/// The rows that a ticket stands for.
async fn exported(peer: Peer, layout: Arc<Layout>, ticket: Vec<u8>) -> Result<ExportBlock, Fault> {
    let mut block = ExportBlock::default();
    let mut incoming = peer.get(ticket, DEADLINE).await?;
    while let Some(message) = incoming.next().await? {
        let Some(columns) = message.batch else { continue };
        block.keys.extend_from_slice(columns::keys(&columns)?);
        block.weights.extend_from_slice(rows::<Float32Type>(&columns, "weight", layout.row_dim)?);
        if layout.state_dim > 0 {
            block.state.extend_from_slice(rows::<Float32Type>(&columns, "state", layout.state_dim)?);
        }
    }
    Ok(block)
}

/// The buffers of a question that was answered: those whose memory nobody else holds.
fn reclaim(question: Message) -> (Vec<u64>, Vec<f32>) {
    let Some(batch) = question.batch else { return Default::default() };
    let (keys, values) = (reclaim_keys(&batch), reclaim_rows(&batch, "grad"));
    drop(batch);
    (own(keys), own(values))
}

fn own<T: arrow::datatypes::ArrowNativeType>(buffer: Option<Buffer>) -> Vec<T> {
    buffer.and_then(|buffer| buffer.into_vec().ok()).unwrap_or_default()
}
