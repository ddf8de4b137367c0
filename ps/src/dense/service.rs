//! The block of one process as a part of its server.
//!
//! Comes in: exchanges and actions of anybody. Goes out: values, and what became of pushes. Waits for the block and for
//! the network; nothing blocks the thread.
//!
//! ```text
//!   exchange ["dense", "pull"]         a header whose step is the known version, or nothing → {value: f32}, if it is another
//!   exchange ["dense", "push"]         {grad: f32} + header                                 → metadata
//!   exchange ["dense", "push", "f16"]  {grad: f16} + header and exponents                   → metadata
//!   action dense.config                                                                     → {"block", "len"}
//!   action dense.acknowledge  {"before": source}                                                 → null
//! ```

use std::ops::Range;

use arrow::datatypes::{DataType, Field, Float16Type, Float32Type};
use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_net::{Caller, Handler, Incoming, Message, Outgoing, PendingAnswer, answer_in_order};
use futures::future::ready;
use serde::{Deserialize, Serialize};

use super::block::{DenseBlock, pulled, pushed};
use super::{blocks, check_finite};
use crate::half_block;
use crate::push::PushOutcome;
use crate::remote::columns::{batch, plain, plain_column};
use crate::remote::metadata::{Answer, Header, Tail};
use crate::remote::{MOST_VALUES, known};

/// What a process holds of the dense values.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) block: Range<usize>,
    /// Of all of them.
    pub(super) len: usize,
}

/// The body of `acknowledge`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcknowledgeBefore {
    pub(super) before: u64,
}

/// The dense block of a process, for its [`Server`](forebay_net::Server).
pub struct DenseService {
    block: DenseBlock,
    held: Held,
}

impl DenseService {
    /// Serves `block`, which is process `rank`'s of `len` values over `processes`.
    ///
    /// # Errors
    /// User: the block is not as long as [`blocks`] says, or there is no such process.
    pub fn new(block: DenseBlock, len: usize, rank: usize, processes: usize) -> Result<Self, Fault> {
        match blocks(len, processes).get(rank) {
            Some(range) if range.len() == block.len() => Ok(Self { block, held: Held { block: range.clone(), len } }),
            range => Err(Fault::user(format!(
                "a dense block of {} values was given to process {rank} of {processes}; expected that of {range:?}",
                block.len()
            ))),
        }
    }

    async fn pull<'a>(&self, message: Message) -> Result<PendingAnswer<'a>, Fault> {
        let known = if message.metadata.is_empty() { 0 } else { Header::read(&message.metadata)?.0.step };
        let asked = self.block.ask_pull(known).await?;
        Ok(Box::pin(async move {
            let (version, values) = pulled(asked).await?;
            let metadata = Answer { pushed: PushOutcome::Already, number: version }.write(&Tail::Exponents(Vec::new()));
            let field = || vec![Field::new("value", DataType::Float32, false)];
            let batch = values.map(|values| batch(field(), vec![plain_column::<Float32Type>(values)])).transpose()?;
            Ok(Message { batch, metadata })
        }))
    }

    async fn push<'a>(&self, message: Message, half: bool) -> Result<PendingAnswer<'a>, Fault> {
        let (header, exponents) = Header::read(&message.metadata)?;
        let stamp = header.stamp.ok_or_else(|| Fault::user("a dense push came without an id"))?;
        let columns = message.batch.ok_or_else(|| Fault::user("a dense push came without columns"))?;
        let mut grads = Vec::new();
        if half {
            let halves = plain::<Float16Type>(&columns, "grad")?;
            half_block::decode(halves, &exponents, &mut grads).map_err(Fault::user)?;
        } else {
            grads.extend_from_slice(plain::<Float32Type>(&columns, "grad")?);
        }
        check_finite(&grads)?;
        let asked = self.block.ask_push(grads, header.step, stamp).await?;
        let answer = async move {
            let pushed = pushed(asked).await?;
            Ok(Message::metadata(Answer { pushed, number: 0 }.write(&Tail::Exponents(Vec::new()))))
        };
        if stamp.round.is_some() {
            // Of two rounds the block takes one after the other: the next push may be of the next.
            return Ok(Box::pin(ready(answer.await)));
        }
        Ok(Box::pin(answer))
    }
}

#[async_trait]
impl Handler for DenseService {
    fn name(&self) -> &'static str {
        "dense"
    }

    fn actions(&self) -> Vec<(String, String)> {
        let acknowledge = "pushes of sources below `before` are done with; body {\"before\": source}";
        vec![
            ("config".to_owned(), "which of how many dense values are here, as JSON".to_owned()),
            ("acknowledge".to_owned(), acknowledge.to_owned()),
        ]
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        let answer = match kind {
            "config" => serde_json::to_vec(&self.held),
            "acknowledge" => {
                known(caller)?;
                let acknowledge: AcknowledgeBefore =
                    serde_json::from_slice(&body).map_err(|e| Fault::user("the body of an action").because(e))?;
                serde_json::to_vec(&self.block.acknowledge_before(acknowledge.before).await?)
            }
            other => {
                let other = other.escape_debug();
                return Err(Fault::user(format!("`dense` has no action `{other}`; it has `config` and `acknowledge`")));
            }
        };
        Ok(answer.map_err(|e| Fault::internal("an answer is no JSON").because(e))?.into())
    }

    async fn exchange(
        &self,
        caller: Caller,
        path: Vec<String>,
        incoming: Incoming,
        outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        // Whether it is a push, and of halves.
        let push = match path[..] {
            ["dense", "pull"] => None,
            ["dense", "push"] => Some(false),
            ["dense", "push", "f16"] => Some(true),
            _ => {
                let path = path.join("/");
                return Err(Fault::user(format!(
                    "there is no exchange `{}`; there are dense/pull, dense/push and dense/push/f16",
                    path.escape_debug()
                )));
            }
        };
        if push.is_some() {
            known(&caller)?;
        }
        let ask = |message| async move {
            match push {
                None => self.pull(message).await,
                Some(half) => self.push(message, half).await,
            }
        };
        answer_in_order(incoming, outgoing, MOST_VALUES, |_| self.block.len(), ask).await
    }
}
