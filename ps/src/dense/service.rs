//! The dense block of one process as a handler of its server.
//!
//! ```text
//!   exchange ["dense", "pull"]         the version seen and perhaps a round, or nothing → {value: f32}, if there is another
//!   exchange ["dense", "push"]         {grad: f32} + header                                 → metadata
//!   exchange ["dense", "push", "f16"]  {grad: f16} + header and exponents                   → metadata
//!   get {"dense": "state"}             all that later steps depend on: for each name, its name → {value: f32}
//!   action dense.config                                                                     → {"block", "len"}
//!   action dense.set_first  {"place", "value"}                                                   → null
//!   action dense.acknowledge  {"before": series}                                                 → null
//!   action dense.reduce_lr  {factor, min_lr, after}                                              → null
//! ```

use std::ops::Range;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Float32Type};
use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_base::LrReductions;
use forebay_net::{Caller, Handler, Incoming, Message, Outgoing, PendingAnswer, answer_in_order};
use serde::{Deserialize, Serialize};

use super::block::{DenseBlock, NamedValues, pushed};
use super::partition::{blocks, check_finite};
use crate::push::{PushOutcome, Sender};
use crate::remote::{REDUCES, check_acknowledge, check_member, check_trainer, sender};
use crate::wire::messages::{MOST_VALUES, Shape, Wire, push_answer, read_push};
use crate::wire::metadata::{Answer, PullHeader, Tail};
use crate::wire::row_columns::{batch, plain_column};

/// The dense values that a process holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HeldBlock {
    pub(super) block: Range<usize>,
    /// The number of all dense parameters.
    pub(super) len: usize,
}

/// The body of `dense.set_first`: one of the dense values has this value before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstValue {
    /// Its place among all dense values.
    pub place: usize,
    /// The value.
    pub value: f32,
}

/// The body of `dense.acknowledge`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcknowledgeDense {
    pub(super) before: u64,
}

/// The ticket of an export of the dense block.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportRequest {
    pub(super) dense: DenseExport,
}

/// The part of the dense block to export.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DenseExport {
    /// All that later steps depend on.
    State,
}

/// The dense block of a process, for its [`Server`](forebay_net::Server).
pub struct DenseService {
    block: DenseBlock,
    held: HeldBlock,
    trainers: Option<u32>,
    trainers_acknowledge: bool,
}

impl DenseService {
    /// Serves `block`, which is process `rank`'s of `len` values over `processes`.
    ///
    /// # Errors
    /// User: the block is not as long as [`blocks`] says, or there is no such process.
    pub fn new(block: DenseBlock, len: usize, rank: usize, processes: usize) -> Result<Self, Fault> {
        match blocks(len, processes).get(rank) {
            Some(range) if range.len() == block.len() => {
                let held = HeldBlock { block: range.clone(), len };
                Ok(Self { block, held, trainers: None, trainers_acknowledge: true })
            }
            range => Err(Fault::user(format!(
                "a dense block of {} values was given to process {rank} of {processes}; expected that of {range:?}",
                block.len()
            ))),
        }
    }

    /// Takes the pushes of this many trainers, each as itself, and rounds of all of them.
    #[must_use]
    pub fn of_trainers(self, trainers: u32) -> Self {
        Self { trainers: Some(trainers), ..self }
    }

    /// As [`TableService::trainers_acknowledge`](crate::remote::TableService::trainers_acknowledge).
    #[must_use]
    pub fn trainers_acknowledge(self, do_they: bool) -> Self {
        Self { trainers_acknowledge: do_they, ..self }
    }

    async fn pull<'a>(
        &self,
        caller: &Caller,
        message: Message,
        sender: Option<&Sender>,
    ) -> Result<PendingAnswer<'a>, Fault> {
        let PullHeader { seen, after } = PullHeader::read(&message.metadata, sender)?;
        if after.is_some() {
            check_member(caller)?;
        }
        let pulled = self.block.begin_pull(seen, after).await?;
        Ok(Box::pin(async move {
            let (version, values) = pulled.await?;
            let metadata = Answer { pushed: PushOutcome::Already, held: Duration::ZERO, number: version };
            let metadata = metadata.write(&Tail::Exponents(Vec::new()));
            Ok(Message { batch: values.map(value_column).transpose()?, metadata })
        }))
    }

    async fn push<'a>(
        &self,
        message: Message,
        wire: Wire,
        sender: Option<&Sender>,
    ) -> Result<PendingAnswer<'a>, Fault> {
        let (columns, header, exponents) = read_push(message, sender)?;
        let stamp = header.stamp.ok_or_else(|| Fault::user("a dense push came without an id"))?;
        let mut grads = Vec::new();
        wire.decode_into(&columns, "grad", Shape::Flat, &exponents, &mut grads)?;
        check_finite(&grads)?;
        let pending = self.block.ask_push(grads, header.step, stamp).await?;
        push_answer(header, pushed(pending)).await
    }
}

fn value_column(values: Vec<f32>) -> Result<RecordBatch, Fault> {
    batch(vec![Field::new("value", DataType::Float32, false)], vec![plain_column::<Float32Type>(values)])
}

#[async_trait]
impl Handler for DenseService {
    fn name(&self) -> &'static str {
        "dense"
    }

    fn actions(&self) -> Vec<(String, String)> {
        let acknowledge = "declares all pushes of series before `before` applied; body {\"before\": series}";
        vec![
            (
                "config".to_owned(),
                "the range of the dense values here, and the number of all dense values, as JSON".to_owned(),
            ),
            (
                "set_first".to_owned(),
                "sets a value before the first step; body {\"place\": number, \"value\": number}".to_owned(),
            ),
            ("acknowledge".to_owned(), acknowledge.to_owned()),
            (
                "reduce_lr".to_owned(),
                "reduces the learning rate of later steps; body {\"factor\": number, \"min_lr\": number, \"after\": [step, ...]}"
                    .to_owned(),
            ),
        ]
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        let answer = match kind {
            "config" => serde_json::to_vec(&self.held),
            "set_first" => {
                check_member(caller)?;
                let FirstValue { place, value } =
                    serde_json::from_slice(&body).map_err(|e| Fault::user("the body of an action").because(e))?;
                let Some(place) = place.checked_sub(self.held.block.start).filter(|at| *at < self.block.len()) else {
                    let (len, block) = (self.held.len, &self.held.block);
                    return Err(Fault::user(format!(
                        "this process holds the dense values {block:?} of {len}, not {place}"
                    )));
                };
                if !value.is_finite() {
                    return Err(Fault::user(format!(
                        "the first value of a dense parameter is {value}, expected a finite number"
                    )));
                }
                serde_json::to_vec(&self.block.set_first(place, value).await?)
            }
            "acknowledge" => {
                check_acknowledge(caller, self.trainers, self.trainers_acknowledge)?;
                let AcknowledgeDense { before } =
                    serde_json::from_slice(&body).map_err(|e| Fault::user("the body of an action").because(e))?;
                serde_json::to_vec(&match self.trainers {
                    Some(_) => self.block.acknowledge_applied_before(before).await?,
                    None => self.block.acknowledge_before(before).await?,
                })
            }
            "reduce_lr" => {
                check_trainer(caller, self.trainers, REDUCES)?;
                let reductions: LrReductions =
                    serde_json::from_slice(&body).map_err(|e| Fault::user("the body of an action").because(e))?;
                reductions.check().map_err(Fault::user)?;
                serde_json::to_vec(&self.block.reduce_lr(&reductions).await?)
            }
            other => {
                let other = other.escape_debug();
                return Err(Fault::user(format!(
                    "`dense` has no action `{other}`; it has `config`, `set_first`, `acknowledge` and `reduce_lr`"
                )));
            }
        };
        Ok(answer.map_err(|e| Fault::internal("cannot encode an answer as JSON").because(e))?.into())
    }

    async fn exchange(
        &self,
        caller: Caller,
        path: Vec<String>,
        incoming: Incoming,
        outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let push = match path[..] {
            ["dense", "pull"] => None,
            ["dense", "push"] => Some(Wire::F32),
            ["dense", "push", "f16"] => Some(Wire::F16),
            _ => {
                let path = path.join("/");
                return Err(Fault::user(format!(
                    "there is no exchange `{}`; there are dense/pull, dense/push and dense/push/f16",
                    path.escape_debug()
                )));
            }
        };
        if push.is_some() {
            check_member(&caller)?;
        }
        let sender = sender(&caller, self.trainers);
        let (caller, sender) = (&caller, sender.as_ref());
        let begin = |message| async move {
            match push {
                None => self.pull(caller, message, sender).await,
                Some(wire) => self.push(message, wire, sender).await,
            }
        };
        answer_in_order(incoming, outgoing, MOST_VALUES, |_| self.block.len(), begin).await
    }

    async fn get(&self, _: Caller, ticket: Bytes, mut outgoing: Outgoing) -> Result<(), Fault> {
        let ExportRequest { dense: DenseExport::State } = serde_json::from_slice(&ticket)
            .map_err(|e| Fault::user("`dense` has the ticket {\"dense\": \"state\"} alone").because(e))?;
        for NamedValues { name, values } in self.block.save().await? {
            outgoing.send(Message { batch: Some(value_column(values)?), metadata: name.into() }).await?;
        }
        Ok(())
    }
}
