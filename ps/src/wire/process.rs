//! A client of the shards of a table in another process: a [`Call`] becomes a message, and its answer a [`Reply`].
//!
//! After a lost connection, pulls, peeks, imports and pushes with an id are sent again; a push without an id is not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Float32Type, UInt32Type};
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_net::{Message, Peer, RequestStream, Resend};
use futures::future::{BoxFuture, ready};

use super::messages::{Shape, Wire};
use super::metadata::{Answer, Header, PullHeader, Tail};
use super::own_widths::{cut, pad};
use super::remote_ps::{DEADLINE, RemotePs};
use super::reply_times::{PsReplies, ReplyTimes};
use super::requests::{AcknowledgeTable, HeldShards, ReduceTableLr, TableName, Ticket};
use super::row_columns::{
    self, batch, key_field, keys_column, list_field, plain, reclaim_keys, reclaim_rows, rows, rows_column,
};
use crate::exactly_once::PushAnswer;
use crate::lifetime::{Absent, RowUsage};
use crate::push::{AfterRound, Stamp};
use crate::shard::{Call, Reply};
use crate::stats::TableStats;
use crate::table::{ExportBlock, Layout};

/// The shards of one process. It has one stream for each kind of call, opened when first needed.
pub(crate) struct Process {
    ps: RemotePs,
    shards: usize,
    layout: Arc<Layout>,
    wire: Wire,
    pull: RequestStream,
    /// Pulls that wait for a round, so that other pulls do not wait behind them.
    pull_after: RequestStream,
    pull_whole: RequestStream,
    peek: RequestStream,
    push: RequestStream,
    import: RequestStream,
    import_weights: RequestStream,
    pulled: Arc<ReplyTimes>,
}

impl Process {
    pub(crate) fn new(ps: RemotePs, shards: usize, layout: Arc<Layout>, wire: Wire) -> Self {
        let stream = |kind: &str, how: &[&str]| ps.stream(&[&["table", &layout.table, kind], how]);
        let (pull, peek, push) =
            (stream("pull", wire.path()), stream("peek", wire.path()), stream("push", wire.path()));
        let (pull_after, pull_whole) = (stream("pull", wire.path()), stream("pull", &["whole"]));
        let (import, import_weights) = (stream("import", &[]), stream("import", &["weights"]));
        let pulled = Arc::default();
        Self { pull, pull_after, pull_whole, peek, push, import, import_weights, ps, shards, layout, wire, pulled }
    }

    /// The shards that it holds.
    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// How rows and gradients travel.
    pub(crate) fn wire(&self) -> Wire {
        self.wire
    }

    /// How the process has answered pulls so far.
    pub(crate) fn replies(&self) -> PsReplies {
        self.pulled.of(self.ps.rank)
    }

    /// The round trip of a small request: the shortest of three, as the first may connect.
    pub(crate) async fn round_trip(&self) -> Result<Duration, Fault> {
        let body = TableName { table: self.layout.table.clone() };
        let mut shortest = Duration::MAX;
        for _ in 0..3 {
            let begun = Instant::now();
            let _: HeldShards = self.ps.act("table.config", &body).await?;
            shortest = shortest.min(begun.elapsed());
        }
        self.pulled.measured(shortest);
        Ok(shortest)
    }

    /// Sends a call. Calls of one kind are carried out in the order in which they were sent, also after a lost connection. The future that
    /// it returns waits for the answer.
    pub(crate) async fn ask(&self, call: Call) -> Result<BoxFuture<'static, Result<Reply, Fault>>, Fault> {
        let dim = self.layout.row_dim;
        Ok(match call {
            Call::Pull { keys, rows, insert, after } => {
                let stream = match (insert, after) {
                    (true, None) => &self.pull,
                    (true, Some(_)) => &self.pull_after,
                    (false, _) => &self.peek,
                };
                self.read(stream, self.wire, keys, rows, dim, after).await?
            }
            Call::PullWhole { keys, rows } => {
                self.read(&self.pull_whole, Wire::F32, keys, rows, self.layout.whole_dim(), None).await?
            }
            Call::Push { keys, grads, step, stamp } => self.push(keys, grads, step, stamp).await?,
            other => Box::pin(ready(self.answered(other).await)),
        })
    }

    /// Carries out a call that needs no order among others.
    async fn answered(&self, call: Call) -> Result<Reply, Fault> {
        let table = || self.layout.table.clone();
        match call {
            Call::Export { shard, from, at_most } => self.export(shard, from, at_most).await,
            Call::Import { keys, weights, state, usages } if usages.is_empty() => {
                self.import(keys, weights, state).await
            }
            Call::Import { .. } | Call::ImportShared { .. } | Call::ImportAbsent { .. } | Call::ExpectRows { .. } => {
                Err(Fault::internal(
                    "rows of a checkpoint were to be sent to another process, which reads them by itself",
                ))
            }
            Call::ExportAbsent { shard, from, at_most } => self.export_absent(shard, from, at_most).await,
            Call::Stats => {
                let stats: TableStats = self.ps.act("table.stats", &TableName { table: table() }).await?;
                Ok(Reply::Stats(stats.shards))
            }
            Call::ReduceLr { reductions } => {
                let body = ReduceTableLr { table: table(), reductions };
                self.ps.act("table.reduce_lr", &body).await.map(|()| Reply::Done)
            }
            Call::AcknowledgeBefore { before } => {
                let body = AcknowledgeTable { table: table(), before };
                self.ps.act("table.acknowledge", &body).await.map(|()| Reply::Done)
            }
            Call::AcknowledgeApplied { .. } => {
                Err(Fault::internal("a trainer's acknowledgement was to be sent on to another process"))
            }
            Call::BeginSnapshot { .. }
            | Call::SnapshotPage { .. }
            | Call::SnapshotAbsent { .. }
            | Call::KeepSnapshot => Err(Fault::internal("a snapshot was asked of another process")),
            Call::Pull { .. } | Call::PullWhole { .. } | Call::Push { .. } => {
                Err(Fault::internal("a call of a request stream was to be made without one"))
            }
        }
    }

    /// Asks for rows of `dim` values each.
    async fn read(
        &self,
        stream: &RequestStream,
        wire: Wire,
        keys: Vec<u64>,
        mut values: Vec<f32>,
        dim: usize,
        after: Option<AfterRound>,
    ) -> Result<BoxFuture<'static, Result<Reply, Fault>>, Fault> {
        let count = keys.len();
        // A table with groups is not asked for whole rows, which are wider.
        let begins = self.layout.own_widths(&keys);
        let batch = Some(batch(vec![key_field()], vec![keys_column(keys)])?);
        let metadata = after.map_or_else(Bytes::new, |after| PullHeader { seen: 0, after: Some(after) }.write());
        let request = Message { batch, metadata };
        let (asked, pulled) = (Instant::now(), Arc::clone(&self.pulled));
        let (answered, ps) = (stream.begin(request, Resend::Yes).await?, self.ps.clone());
        Ok(Box::pin(async move {
            let (request, answer) = answered.await?;
            let replied = asked.elapsed();
            let (Answer { held, .. }, tail) = Answer::read(&answer.metadata).map_err(|fault| ps.wrong_answer(fault))?;
            // A pull is held until the slowest trainer has pushed: this time does not count for the ps.
            pulled.add(replied.saturating_sub(held));
            match (answer.batch, tail) {
                (Some(columns), Tail::Exponents(exponents)) => wire
                    .decode_into(&columns, "row", shape(begins.as_deref(), dim), &exponents, &mut values)
                    .map_err(|fault| ps.wrong_answer(fault))?,
                (_, Tail::Floats(floats)) => values = floats,
                (None, Tail::Exponents(_)) => values.clear(),
            }
            if let Some(begins) = begins.filter(|begins| begins.last() == Some(&(values.len() as i32))) {
                let own = std::mem::take(&mut values);
                pad(&own, dim, &begins, &mut values);
            }
            if values.len() != count * dim {
                let found = values.len();
                let fault = Fault::external(format!("{found} weights came for {count} keys of {dim} each"));
                return Err(ps.wrong_answer(fault));
            }
            Ok(Reply::Rows((reclaim(request).0, values)))
        }))
    }

    async fn push(
        &self,
        keys: Vec<u64>,
        mut grads: Vec<f32>,
        step: u64,
        stamp: Option<Stamp>,
    ) -> Result<BoxFuture<'static, Result<Reply, Fault>>, Fault> {
        let (header, wire, dim) = (Header { step, stamp }, self.wire, self.layout.row_dim);
        let begins = self.layout.own_widths(&keys);
        if let Some(begins) = &begins {
            cut(&mut grads, dim, begins);
        }
        let shape = shape(begins.as_deref(), dim);
        let pushed = self.ps.begin_push(&self.push, wire, header, Some(keys), &mut grads, shape).await?;
        Ok(Box::pin(async move {
            let (request, outcome) = pushed.await?;
            let (keys, moved) = reclaim(request);
            Ok(Reply::Pushed(PushAnswer::Done((keys, if wire == Wire::F32 { moved } else { grads }), outcome)))
        }))
    }

    async fn import(&self, keys: Vec<u64>, weights: Vec<f32>, state: Option<Vec<f32>>) -> Result<Reply, Fault> {
        let (dim, state_dim) = (self.layout.row_dim, self.layout.state_dim);
        let mut fields = vec![key_field(), list_field("weight", DataType::Float32, dim)];
        let mut columns = vec![keys_column(keys), rows_column::<Float32Type>(weights, dim)?];
        let stream = if state.is_some() { &self.import } else { &self.import_weights };
        if let Some(state) = state
            && state_dim > 0
        {
            fields.push(list_field("state", DataType::Float32, state_dim));
            columns.push(rows_column::<Float32Type>(state, state_dim)?);
        }
        stream.ask(Message::columns(batch(fields, columns)?), Resend::Yes).await?;
        Ok(Reply::Done)
    }

    async fn export(&self, shard: usize, from: usize, at_most: usize) -> Result<Reply, Fault> {
        let ticket = self.ticket(shard, from, at_most, false)?;
        let (peer, layout) = (self.ps.peer.clone(), self.layout.clone());
        let ask = move || exported(peer.clone(), layout.clone(), ticket.clone());
        Ok(Reply::Export(self.ps.retried("export", ask).await?))
    }

    async fn export_absent(&self, shard: usize, from: usize, at_most: usize) -> Result<Reply, Fault> {
        let (peer, ticket) = (self.ps.peer.clone(), self.ticket(shard, from, at_most, true)?);
        let ask = move || exported_absent(peer.clone(), ticket.clone());
        Ok(Reply::Absent(self.ps.retried("export", ask).await?))
    }

    fn ticket(&self, shard: usize, from: usize, at_most: usize, absent: bool) -> Result<Vec<u8>, Fault> {
        let (table, shard, at_most) = (self.layout.table.clone(), Some(shard), Some(at_most));
        serde_json::to_vec(&Ticket { table, shard, from, at_most, absent })
            .map_err(|e| Fault::internal("a ticket").because(e))
    }
}

/// The shape of rows of `dim` values, or of lists that begin at these places.
pub(crate) fn shape(begins: Option<&[i32]>, dim: usize) -> Shape<'_> {
    begins.map_or(Shape::Rows(dim), Shape::Lists)
}

/// The keys without a row of a ticket.
async fn exported_absent(peer: Peer, ticket: Vec<u8>) -> Result<Vec<Absent>, Fault> {
    let (mut all, mut incoming) = (Vec::new(), peer.get(ticket, DEADLINE).await?);
    while let Some(message) = incoming.next().await? {
        let Some(columns) = message.batch else { continue };
        let counts = plain::<UInt32Type>(&columns, "count")?.iter().zip(plain::<UInt32Type>(&columns, "seen")?);
        let keys = row_columns::keys(&columns)?.iter().zip(counts);
        all.extend(keys.map(|(key, (count, seen))| Absent { key: *key, count: *count, seen: *seen }));
    }
    Ok(all)
}

/// The rows of a ticket.
async fn exported(peer: Peer, layout: Arc<Layout>, ticket: Vec<u8>) -> Result<ExportBlock, Fault> {
    let mut block = ExportBlock::default();
    let mut incoming = peer.get(ticket, DEADLINE).await?;
    while let Some(message) = incoming.next().await? {
        let Some(columns) = message.batch else { continue };
        block.keys.extend_from_slice(row_columns::keys(&columns)?);
        block.weights.extend_from_slice(rows::<Float32Type>(&columns, "weight", layout.row_dim)?);
        if layout.state_dim > 0 {
            block.state.extend_from_slice(rows::<Float32Type>(&columns, "state", layout.state_dim)?);
        }
        if columns.column_by_name("seen").is_some() {
            let (seen, score) = (plain::<UInt32Type>(&columns, "seen")?, plain::<Float32Type>(&columns, "score")?);
            block
                .usages
                .extend(seen.iter().zip(score).map(|(seen, score)| RowUsage { last_seen: *seen, score: *score }));
        }
    }
    Ok(block)
}

/// The buffers of a request that was answered, unless their memory is still shared.
fn reclaim(request: Message) -> (Vec<u64>, Vec<f32>) {
    let Some(batch) = request.batch else { return Default::default() };
    let (keys, values) = (reclaim_keys(&batch), reclaim_rows(&batch, "grad"));
    drop(batch);
    (own(keys), own(values))
}

fn own<T: arrow::datatypes::ArrowNativeType>(buffer: Option<Buffer>) -> Vec<T> {
    buffer.and_then(|buffer| buffer.into_vec().ok()).unwrap_or_default()
}
