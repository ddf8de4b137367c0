//! Dense parameters beside the sparse rows: one flat vector of f32 in even blocks, one per process.
//!
//! ```text
//!   DenseClient ── blocks ──┬─ pull: values, if they are new ─→ DenseBlock { DenseRule }   process 0
//!    values f32[len]        └─ push: gradients, once         ─→ DenseBlock { DenseRule }   process 1
//! ```
//!
//! The caller's [`DenseRule`] changes the values: this crate knows no model. Pushes are applied once, fenced, and merged in rounds, as for
//! tables.

mod block;
mod partition;
mod service;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::datatypes::Float32Type;
use forebay_actors::Fault;
use forebay_base::LrReductions;
use forebay_net::{Message, Peer, RequestStream, Resend, Retry};
use futures::future::{BoxFuture, try_join_all};

use crate::push::{AfterRound, PushId, PushOutcome, Round, Stamp, Trainer};
use crate::wire::messages::{Shape, Wire};
use crate::wire::metadata::{Answer, Header, PullHeader};
use crate::wire::remote_ps::{DEADLINE, RemotePs};
use crate::wire::row_columns::plain;
use block::pushed;
pub use block::{DenseBlock, DenseRule, NamedValues};
pub use partition::blocks;
use partition::check_finite;
use service::{AcknowledgeDense, DenseExport, ExportRequest, HeldBlock};
pub use service::{DenseService, FirstValue};

enum BlockEndpoint {
    Local(DenseBlock),
    /// Pulls that wait for a round have a stream of their own, so that other pulls do not wait behind them.
    Remote {
        ps: Box<RemotePs>,
        pull: RequestStream,
        pull_after: RequestStream,
        push: RequestStream,
        wire: Wire,
    },
}

/// One trainer's client of the dense values. It keeps the values and pulls only blocks that have changed. Any number of
/// pulls and pushes may be pending.
pub struct DenseClient {
    endpoints: Vec<BlockEndpoint>,
    blocks: Vec<Range<usize>>,
    pulled: Mutex<Pulled>,
    trainer: Option<Trainer>,
}

/// The newest values that were pulled.
struct Pulled {
    /// The version of each block.
    seen: Vec<u64>,
    values: Arc<Vec<f32>>,
}

/// Connects to the processes that hold the blocks of `len` values, in their order. Gradients travel by `wire`, values
/// always in f32. After a lost connection, pending requests are sent again for as long as `retry` says.
///
/// # Errors
/// External: a peer could not be reached within `retry`'s time. User: a peer refuses us, or holds another block.
pub async fn connect(peers: &[Peer], len: usize, wire: Wire, retry: Retry) -> Result<DenseClient, Fault> {
    let blocks = blocks(len, peers.len());
    let mut endpoints = Vec::with_capacity(peers.len());
    for (rank, (peer, block)) in peers.iter().zip(&blocks).enumerate() {
        let ps = RemotePs::new(rank, peer, "dense values", &retry);
        let held: HeldBlock = ps.act("dense.config", &()).await?;
        if held.block != *block || held.len != len {
            return Err(Fault::user(format!(
                "{} holds the dense values {:?} of {}; expected {block:?} of {len}: start all processes with one job file",
                ps.name, held.block, held.len
            )));
        }
        let pull = || ps.stream(&[&["dense", "pull"]]);
        let (pull, pull_after, push) = (pull(), pull(), ps.stream(&[&["dense", "push"], wire.path()]));
        endpoints.push(BlockEndpoint::Remote { ps: Box::new(ps), pull, pull_after, push, wire });
    }
    DenseClient::new(endpoints, blocks)
}

impl DenseClient {
    /// The values in blocks of this process, as [`blocks`] cuts them.
    ///
    /// # Errors
    /// User: the blocks are not of the lengths that [`blocks`] gives.
    pub fn local(blocks: &[DenseBlock]) -> Result<Self, Fault> {
        let cut = self::blocks(blocks.iter().map(DenseBlock::len).sum(), blocks.len());
        if let Some((block, cut)) = blocks.iter().zip(&cut).find(|(block, cut)| block.len() != cut.len()) {
            let (found, expected) = (block.len(), cut.len());
            return Err(Fault::user(format!("a dense block has {found} values; expected {expected}")));
        }
        Self::new(blocks.iter().cloned().map(BlockEndpoint::Local).collect(), cut)
    }

    fn new(endpoints: Vec<BlockEndpoint>, blocks: Vec<Range<usize>>) -> Result<Self, Fault> {
        let Some(last) = blocks.last().filter(|_| !endpoints.is_empty()) else {
            return Err(Fault::user("the dense values have no processes; expected at least one"));
        };
        let pulled = Mutex::new(Pulled { seen: vec![0; endpoints.len()], values: Arc::new(vec![0.0; last.end]) });
        Ok(Self { endpoints, blocks, pulled, trainer: None })
    }

    /// This client, as `trainer`: its pushes are refused once a newer incarnation of the trainer has pushed.
    #[must_use]
    pub fn of_trainer(self, trainer: Trainer) -> Self {
        Self { trainer: Some(trainer), ..self }
    }

    fn pulled(&self) -> MutexGuard<'_, Pulled> {
        self.pulled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current values, `[len]`: fetches the blocks that have changed since the last pull. If none has, returns the vector of that pull.
    /// Cancel safe.
    ///
    /// # Errors
    /// External: a process is gone. Internal: a block has died.
    pub async fn pull(&self) -> Result<Arc<Vec<f32>>, Fault> {
        self.fetch(None).await
    }

    /// As [`pull`](Self::pull), the values as they are when the round of `step` is applied: waits for the other trainers. The trainer must
    /// have handed over its share of the round ([`begin_push_round`](Self::begin_push_round)). The pull may be sent before that push has an
    /// answer. Cancel safe.
    ///
    /// # Errors
    /// As [`pull`](Self::pull). A user fault: this client is no trainer's, its trainer is fenced, or the round is a later one than the
    /// next. The fault of the round, if it failed.
    pub async fn pull_after(&self, step: u64) -> Result<Arc<Vec<f32>>, Fault> {
        self.fetch(Some(AfterRound::of_client(step, self.trainer, "dense values")?)).await
    }

    async fn fetch(&self, after: Option<AfterRound>) -> Result<Arc<Vec<f32>>, Fault> {
        let seen = self.pulled().seen.clone();
        let endpoints = self.endpoints.iter().zip(seen);
        let asked: Vec<_> = endpoints.map(|(endpoint, seen)| endpoint.pull(seen, after)).collect();
        let pulled = try_join_all(asked).await?;
        for (block, (_, values)) in self.blocks.iter().zip(&pulled) {
            if let Some(values) = values.as_ref().filter(|values| values.len() != block.len()) {
                let (found, expected) = (values.len(), block.len());
                return Err(Fault::external(format!("{found} dense values came for a block of {expected}")));
            }
        }
        let mut newest = self.pulled();
        let Pulled { seen, values: all } = &mut *newest;
        for ((block, seen), (version, values)) in self.blocks.iter().zip(seen).zip(pulled) {
            // A later pull may have been answered before this one.
            if let Some(values) = values.filter(|_| version > *seen) {
                // Callers that compute with the older values keep them.
                Arc::make_mut(all)[block.clone()].copy_from_slice(&values);
                *seen = version;
            }
        }
        Ok(Arc::clone(all))
    }

    /// Applies the gradients of all values, at most once: a block that has applied the push of this id before changes nothing. A push that
    /// was cancelled or failed may be repeated.
    ///
    /// # Errors
    /// A user fault: another number of gradients than values, one that is NaN or infinite, a trainer that is fenced.
    pub async fn push_once(&self, id: PushId, grads: &[f32]) -> Result<PushOutcome, Fault> {
        self.begin_push_once(id, grads).await?.await
    }

    /// The first half of [`push_once`](Self::push_once): hands the push over. The future that it returns waits until the push is applied.
    ///
    /// # Errors
    /// As [`push_once`](Self::push_once).
    pub async fn begin_push_once(
        &self,
        id: PushId,
        grads: &[f32],
    ) -> Result<impl Future<Output = Result<PushOutcome, Fault>> + Send + 'static + use<>, Fault> {
        self.begin_push(grads, 0, Stamp { id, trainer: self.trainer, round: None }).await
    }

    /// As [`push_once`](Self::push_once), as one trainer's part of the round of `step`: the blocks wait for all trainers
    /// and apply the mean of their gradients, weighted by rows. A trainer without rows pushes no gradients at all. Waits
    /// for all the other trainers, without an end.
    ///
    /// # Errors
    /// As [`push_once`](Self::push_once). A user fault also when this client is no trainer's, or the trainers do not take
    /// the same steps.
    pub async fn push_round(&self, id: PushId, round: Round, grads: &[f32], step: u64) -> Result<PushOutcome, Fault> {
        self.begin_push_round(id, round, grads, step).await?.await
    }

    /// The first half of [`push_round`](Self::push_round): hands the push over. The future that it returns waits until the round is
    /// applied. The next push must wait for that.
    ///
    /// # Errors
    /// As [`push_round`](Self::push_round).
    pub async fn begin_push_round(
        &self,
        id: PushId,
        round: Round,
        grads: &[f32],
        step: u64,
    ) -> Result<impl Future<Output = Result<PushOutcome, Fault>> + Send + 'static + use<>, Fault> {
        self.begin_push(grads, step, Stamp::of_round(id, self.trainer, round, "dense values")?).await
    }

    /// What each block saves, in the order of the blocks: its values, the optimizer's state and its number of steps. For one moment of all
    /// blocks, no push may be under way. Cancel safe.
    ///
    /// # Errors
    /// A user fault: the rule of a block cannot be saved. External: a process is gone. Internal: a block has died.
    pub async fn save(&self) -> Result<Vec<Vec<NamedValues>>, Fault> {
        try_join_all(self.endpoints.iter().map(BlockEndpoint::save)).await
    }

    /// Sets one of the values before the first step: the process that holds it ignores this once it has applied gradients, or if it
    /// continues from saved values. It may be repeated.
    ///
    /// # Errors
    /// External: the process is gone. User: there is no such value, or it is not finite. Internal: the block has died.
    pub async fn set_first(&self, first: FirstValue) -> Result<(), Fault> {
        match self.blocks.iter().zip(&self.endpoints).find(|(block, _)| block.contains(&first.place)) {
            Some((block, endpoint)) => endpoint.set_first(block, first).await,
            None => Err(Fault::user(format!("there is no dense value {}", first.place))),
        }
    }

    /// Declares all pushes of series below this one applied, so that their ids take no memory. It may be repeated.
    ///
    /// # Errors
    /// External: a process is gone. Internal: a block has died.
    pub async fn acknowledge_before(&self, series: u64) -> Result<(), Fault> {
        let asked: Vec<_> = self.endpoints.iter().map(|endpoint| endpoint.acknowledge_before(series)).collect();
        try_join_all(asked).await.map(drop)
    }

    /// Reduces the learning rate of later steps, by their numbers. Replaces earlier reductions, and may be repeated.
    ///
    /// # Errors
    /// External: a process is gone. User: the rule of a block does not take it. Internal: a block has died.
    pub async fn reduce_lr(&self, reductions: &LrReductions) -> Result<(), Fault> {
        try_join_all(self.endpoints.iter().map(|endpoint| endpoint.reduce_lr(reductions))).await.map(drop)
    }

    async fn begin_push(
        &self,
        grads: &[f32],
        step: u64,
        stamp: Stamp,
    ) -> Result<impl Future<Output = Result<PushOutcome, Fault>> + Send + 'static + use<>, Fault> {
        let empty = grads.is_empty() && stamp.round.is_some();
        let expected = self.blocks.last().map_or(0, |last| last.end);
        if grads.len() != expected && !empty {
            let found = grads.len();
            return Err(Fault::user(format!("{found} dense gradients came for {expected} values")));
        }
        check_finite(grads)?;
        let part = |block: &Range<usize>| if empty { Vec::new() } else { grads[block.clone()].to_vec() };
        let endpoints = self.endpoints.iter().zip(&self.blocks);
        let asked: Vec<_> = endpoints.map(|(endpoint, block)| endpoint.begin_push(part(block), step, stamp)).collect();
        let pushed = try_join_all(asked).await?;
        Ok(async move { Ok(PushOutcome::of_all(&try_join_all(pushed).await?)) })
    }
}

impl BlockEndpoint {
    /// The version of the values, and the values unless that version is `seen`.
    async fn pull(&self, seen: u64, after: Option<AfterRound>) -> Result<(u64, Option<Vec<f32>>), Fault> {
        let (ps, stream) = match self {
            Self::Local(block) => return block.begin_pull(seen, after).await?.await,
            Self::Remote { ps, pull_after, .. } if after.is_some() => (ps, pull_after),
            Self::Remote { ps, pull, .. } => (ps, pull),
        };
        let request = Message::metadata(PullHeader { seen, after }.write());
        let (_, answer) = stream.ask(request, Resend::Yes).await?;
        let wrong = |fault| ps.wrong_answer(fault);
        let (metadata, _) = Answer::read(&answer.metadata).map_err(wrong)?;
        let values = answer.batch.as_ref().map(|batch| plain::<Float32Type>(batch, "value").map(<[f32]>::to_vec));
        Ok((metadata.number, values.transpose().map_err(wrong)?))
    }

    async fn save(&self) -> Result<Vec<NamedValues>, Fault> {
        let ps = match self {
            Self::Local(block) => return block.save().await,
            Self::Remote { ps, .. } => ps,
        };
        let ticket = serde_json::to_vec(&ExportRequest { dense: DenseExport::State })
            .map_err(|e| Fault::internal("cannot encode a ticket as JSON").because(e))?;
        let ask = {
            let ps = ps.clone();
            move || saved(ps.clone(), ticket.clone())
        };
        ps.retried("state", ask).await
    }

    async fn set_first(&self, block: &Range<usize>, first: FirstValue) -> Result<(), Fault> {
        match self {
            Self::Local(here) => here.set_first(first.place - block.start, first.value).await,
            Self::Remote { ps, .. } => ps.act("dense.set_first", &first).await,
        }
    }

    async fn acknowledge_before(&self, series: u64) -> Result<(), Fault> {
        match self {
            Self::Local(block) => block.acknowledge_before(series).await,
            Self::Remote { ps, .. } => ps.act("dense.acknowledge", &AcknowledgeDense { before: series }).await,
        }
    }

    async fn reduce_lr(&self, reductions: &LrReductions) -> Result<(), Fault> {
        match self {
            Self::Local(block) => block.reduce_lr(reductions).await,
            Self::Remote { ps, .. } => ps.act("dense.reduce_lr", reductions).await,
        }
    }

    async fn begin_push(
        &self,
        mut grads: Vec<f32>,
        step: u64,
        stamp: Stamp,
    ) -> Result<BoxFuture<'static, Result<PushOutcome, Fault>>, Fault> {
        Ok(match self {
            Self::Local(block) => Box::pin(pushed(block.ask_push(grads, step, stamp).await?)),
            Self::Remote { ps, push, wire, .. } => {
                let header = Header { step, stamp: Some(stamp) };
                let pushed = ps.begin_push(push, *wire, header, None, &mut grads, Shape::Flat).await?;
                Box::pin(async move { Ok(pushed.await?.1) })
            }
        })
    }
}

/// What the block of a ps process saves.
async fn saved(ps: Box<RemotePs>, ticket: Vec<u8>) -> Result<Vec<NamedValues>, Fault> {
    let (mut saved, mut incoming) = (Vec::new(), ps.peer.get(ticket, DEADLINE).await?);
    let wrong = |fault| ps.wrong_answer(fault);
    while let Some(Message { batch, metadata }) = incoming.next().await? {
        let name = String::from_utf8(metadata.into())
            .map_err(|e| wrong(Fault::external("a name that is no text").because(e)))?;
        let values = match &batch {
            Some(batch) => plain::<Float32Type>(batch, "value").map_err(wrong)?.to_vec(),
            None => Vec::new(),
        };
        saved.push(NamedValues { name, values });
    }
    Ok(saved)
}
