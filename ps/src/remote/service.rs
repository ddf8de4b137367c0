//! The shards of one process as a handler of its server, for other processes and for stock Flight clients.
//!
//! ```text
//!   exchange ["table", NAME, "pull" | "peek"]      {key: u64}                     →  {row: f32[dim]}
//!   exchange ["table", NAME, "pull" | "peek", "f16"]  the same                    →  {row: f16[dim]}, exponents in the metadata
//!   exchange ["table", NAME, "pull", ...]          {key: u64} + the round to see  →  the same, when the round is applied
//!   exchange ["table", NAME, "push"]               {key: u64, grad: f32[dim]} + header →  metadata
//!   exchange ["table", NAME, "push", "f16"]        {key: u64, grad: f16[dim]} + header and exponents →  metadata
//!   exchange ["table", NAME, "import"]             {key: u64, weight: f32[dim], state: f32[state]} →  metadata
//!   exchange ["table", NAME, "import", "weights"]  {key: u64, weight: f32[dim]}   →  metadata
//!   get {"table": NAME, "shard", "from", "at_most"}                               →  {key, weight, state, seen, score}
//!   get {..., "absent": true}                                                     →  {key, count, seen}
//!   action table.stats, table.config  {"table": NAME}                             →  JSON
//!   action table.acknowledge  {"table": NAME, "before": series}                        →  null
//!   action table.reduce_lr  {"table": NAME, "reductions": {factor, min_lr, after}}     →  null
//! ```
//!
//! A caller that is not a member of the run (a stock client) may read. Its pulls return zeros for keys without a row, as
//! peeks do, so that they do not change the table. It may not push, import, acknowledge or reduce
//! learning rates.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Field, Float32Type, Schema};
use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_net::{Caller, FlightInfo, Handler, Incoming, Message, Outgoing, answer_in_order, flight_info};
use serde::Deserialize;

use super::request_handler::{Kind, RequestHandler};
use crate::client::TableClient;
use crate::lifetime::Absent;
use crate::push::Sender;
use crate::table::ExportBlock;
use crate::wire::messages::{MOST_VALUES, Wire};
use crate::wire::requests::{AcknowledgeTable, HeldShards, ReduceTableLr, TableName, Ticket};
use crate::wire::row_columns::{batch, key_field, keys_column, list_field, rows_column};

/// Floats of one message of an export.
const PAGE_VALUES: usize = 1 << 20;

/// The tables of a process, for its [`Server`](forebay_net::Server).
#[derive(Debug)]
pub struct TableService {
    tables: Vec<TableClient>,
    trainers: Option<u32>,
    trainers_acknowledge: bool,
}

impl TableService {
    /// Serves these tables: clients of their shards in this process ([`start_shards`](crate::start_shards)).
    pub fn new(tables: Vec<TableClient>) -> Self {
        Self { tables, trainers: None, trainers_acknowledge: true }
    }

    /// Takes the pushes of this many trainers, each as itself, and rounds of all of them.
    #[must_use]
    pub fn of_trainers(self, trainers: u32) -> Self {
        Self { trainers: Some(trainers), ..self }
    }

    /// Whether trainers acknowledge pushes. If not, the process of the shards does.
    #[must_use]
    pub fn trainers_acknowledge(self, do_they: bool) -> Self {
        Self { trainers_acknowledge: do_they, ..self }
    }

    fn table(&self, name: &str) -> Result<&TableClient, Fault> {
        self.tables.iter().find(|table| table.table() == name).ok_or_else(|| {
            let there: Vec<String> = self.tables.iter().map(|table| format!("`{}`", table.table())).collect();
            Fault::user(format!("there is no table `{}` here: there is {}", name.escape_debug(), there.join(", ")))
        })
    }
}

#[async_trait]
impl Handler for TableService {
    fn name(&self) -> &'static str {
        "table"
    }

    fn actions(&self) -> Vec<(String, String)> {
        let of = |kind: &str, what: &str| (kind.to_owned(), format!("{what} of {{\"table\": NAME}}, as JSON"));
        let acknowledge =
            "declares all pushes of series before `before` applied; body {\"table\": NAME, \"before\": series}";
        vec![
            of("stats", "rows, bytes and counts"),
            of("config", "the configuration and the shards here"),
            ("acknowledge".to_owned(), acknowledge.to_owned()),
            (
                "reduce_lr".to_owned(),
                "reduces the learning rates of later pushes, by their steps; body {\"table\": NAME, \"reductions\": \
                 {\"factor\": number, \"min_lr\": number, \"after\": [step, ...]}}"
                    .to_owned(),
            ),
        ]
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        let named = || -> Result<&TableClient, Fault> { self.table(&json::<TableName>(&body, "an action")?.table) };
        let answer = match kind {
            "stats" => serde_json::to_vec(&named()?.stats().await?),
            "config" => {
                let table = named()?;
                let (config, (rank, processes)) = (table.config().clone(), table.route().process());
                serde_json::to_vec(&HeldShards { config, rank, processes, shards: table.shards() })
            }
            "acknowledge" => {
                check_acknowledge(caller, self.trainers, self.trainers_acknowledge)?;
                let AcknowledgeTable { table, before } = json(&body, "an action")?;
                let table = self.table(&table)?;
                serde_json::to_vec(&match self.trainers {
                    Some(_) => table.acknowledge_applied_before(before).await?,
                    None => table.acknowledge_before(before).await?,
                })
            }
            "reduce_lr" => {
                check_trainer(caller, self.trainers, REDUCES)?;
                let ReduceTableLr { table, reductions } = json(&body, "an action")?;
                reductions.check().map_err(Fault::user)?;
                serde_json::to_vec(&self.table(&table)?.reduce_lr(&reductions).await?)
            }
            other => {
                let other = other.escape_debug();
                let there = "`stats`, `config`, `acknowledge` and `reduce_lr`";
                return Err(Fault::user(format!("a table has no action `{other}`; it has {there}")));
            }
        };
        Ok(answer.map_err(|e| Fault::internal("cannot encode an answer as JSON").because(e))?.into())
    }

    async fn list(&self) -> Result<Vec<FlightInfo>, Fault> {
        let mut infos = Vec::with_capacity(self.tables.len());
        for table in &self.tables {
            let ticket = serde_json::json!({ "table": table.table() }).to_string();
            let rows = table.stats().await?.rows();
            infos.push(flight_info(&["table", table.table()], &export_schema(table), ticket, Some(rows))?);
        }
        Ok(infos)
    }

    async fn exchange(
        &self,
        caller: Caller,
        path: Vec<String>,
        incoming: Incoming,
        outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let member = caller.identity.is_some();
        let (name, kind) = match path[..] {
            ["table", name, "pull"] => (name, Kind::Read { insert: member, wire: Wire::F32 }),
            ["table", name, "pull", "f16"] => (name, Kind::Read { insert: member, wire: Wire::F16 }),
            ["table", name, "pull", "whole"] => (name, Kind::ReadWhole),
            ["table", name, "peek"] => (name, Kind::Read { insert: false, wire: Wire::F32 }),
            ["table", name, "peek", "f16"] => (name, Kind::Read { insert: false, wire: Wire::F16 }),
            ["table", name, "push"] => (name, Kind::Push { wire: Wire::F32 }),
            ["table", name, "push", "f16"] => (name, Kind::Push { wire: Wire::F16 }),
            ["table", name, "import"] => (name, Kind::Import { state: true }),
            ["table", name, "import", "weights"] => (name, Kind::Import { state: false }),
            _ => {
                let path = path.join("/");
                return Err(Fault::user(format!(
                    "a table has no exchange `{}`: it has table/NAME/KIND, of the kinds pull, peek and push, each also with \
                     /f16, pull/whole, and import, also with /weights",
                    path.escape_debug()
                )));
            }
        };
        if !matches!(kind, Kind::Read { .. }) {
            check_member(&caller)?;
        }
        let requests = RequestHandler::new(self.table(name)?, sender(&caller, self.trainers));
        let size = |message: &Message| requests.size(message, kind);
        answer_in_order(incoming, outgoing, MOST_VALUES, size, |message| requests.ask(message, kind)).await
    }

    async fn get(&self, _: Caller, ticket: Bytes, mut outgoing: Outgoing) -> Result<(), Fault> {
        let ticket: Ticket = json(&ticket, "a ticket")?;
        let table = self.table(&ticket.table)?;
        let first = table.held().start;
        let one = |shard: usize| first.saturating_add(shard)..first.saturating_add(shard).saturating_add(1);
        let shards = ticket.shard.map_or(table.held(), one);
        let page = (PAGE_VALUES / (table.row_dim() + table.state_dim())).max(1);
        let mut left = ticket.at_most.unwrap_or(usize::MAX);
        let mut sent = false;
        for shard in shards {
            let mut from = ticket.from;
            while left > 0 {
                let batch = match ticket.absent {
                    true => absent_batch(&table.export_absent(shard, from, page.min(left)).await?)?,
                    false => export_batch(table, table.export(shard, from, page.min(left)).await?)?,
                };
                if batch.num_rows() == 0 {
                    break;
                }
                from = from.saturating_add(batch.num_rows());
                left -= batch.num_rows();
                outgoing.send(Message::columns(batch)).await?;
                sent = true;
            }
        }
        if !sent {
            // A stock client expects a schema even without rows.
            let empty = if ticket.absent { absent_batch(&[])? } else { export_batch(table, ExportBlock::default())? };
            outgoing.send(Message::columns(empty)).await?;
        }
        Ok(())
    }
}

/// The trainer that pushes, if a service knows how many `trainers` there are.
pub(crate) fn sender(caller: &Caller, trainers: Option<u32>) -> Option<Sender> {
    let role = caller.identity.as_ref().map(|identity| identity.role.clone()).unwrap_or_default();
    trainers.map(|trainers| Sender { role, trainers })
}

/// Only trainers may do what `does` says, if a service knows how many `trainers` there are.
pub(crate) fn check_trainer(caller: &Caller, trainers: Option<u32>, does: &str) -> Result<(), Fault> {
    check_member(caller)?;
    sender(caller, trainers).map_or(Ok(()), |sender| sender.check_trainer(does))
}

/// Only trainers may acknowledge pushes, and only in a run where they do (`do_they`).
pub(crate) fn check_acknowledge(caller: &Caller, trainers: Option<u32>, do_they: bool) -> Result<(), Fault> {
    check_member(caller)?;
    sender(caller, trainers).map_or(Ok(()), |sender| sender.check_acknowledge(do_they))
}

/// What a fault says that a process does which reduces learning rates.
pub(crate) const REDUCES: &str = "reduces learning rates";

/// Only members of the run may change anything.
pub(crate) fn check_member(caller: &Caller) -> Result<(), Fault> {
    match &caller.identity {
        Some(_) => Ok(()),
        None => Err(Fault::user(format!(
            "{} is not a process of this run, and only those may change anything here; others may only read",
            caller.peer
        ))),
    }
}

fn json<T: for<'de> Deserialize<'de>>(bytes: &[u8], what: &str) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|e| {
        Fault::user(format!("the body of {what} is not what a table takes, {{\"table\": NAME}}")).because(e)
    })
}

fn export_schema(table: &TableClient) -> Schema {
    let mut fields = vec![key_field(), list_field("weight", DataType::Float32, table.row_dim())];
    if table.state_dim() > 0 {
        fields.push(list_field("state", DataType::Float32, table.state_dim()));
    }
    if table.config().has_lifetime() {
        fields.push(Field::new("seen", DataType::UInt32, false));
        fields.push(Field::new("score", DataType::Float32, false));
    }
    Schema::new(fields)
}

fn export_batch(table: &TableClient, block: ExportBlock) -> Result<RecordBatch, Fault> {
    let mut columns = vec![keys_column(block.keys), rows_column::<Float32Type>(block.weights, table.row_dim())?];
    if table.state_dim() > 0 {
        columns.push(rows_column::<Float32Type>(block.state, table.state_dim())?);
    }
    if table.config().has_lifetime() {
        columns.push(Arc::new(UInt32Array::from_iter_values(block.usages.iter().map(|usage| usage.last_seen))));
        columns.push(Arc::new(Float32Array::from_iter_values(block.usages.iter().map(|usage| usage.score))));
    }
    batch(export_schema(table).fields().iter().map(|field| field.as_ref().clone()).collect(), columns)
}

fn absent_batch(absent: &[Absent]) -> Result<RecordBatch, Fault> {
    let number = |name: &str| Field::new(name, DataType::UInt32, false);
    let column =
        |of: fn(&Absent) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(absent.iter().map(of))) };
    let keys = keys_column(absent.iter().map(|absent| absent.key).collect());
    let columns = vec![keys, column(|absent| absent.count), column(|absent| absent.seen)];
    batch(vec![key_field(), number("count"), number("seen")], columns)
}
