//! Dense parameters beside the sparse rows: one flat vector of f32 in even blocks, one per process.
//!
//! ```text
//!   DenseClient ── blocks ──┬─ pull: values, if they are new ─→ DenseBlock { DenseRule }   process 0
//!    values f32[len]        └─ push: gradients, once         ─→ DenseBlock { DenseRule }   process 1
//! ```
//!
//! Comes in: gradients of all values. Goes out: the values. Calls wait for the blocks and, over [`connect`], for the
//! network; nothing blocks the thread. What changes the values is the caller's [`DenseRule`]: this crate knows no model.
//!
//! Pushes are applied once, fenced, and held in rounds as those of tables are.

mod block;
mod service;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::datatypes::{DataType, Field, Float16Type, Float32Type};
use forebay_actors::Fault;
use forebay_net::{Message, Peer, RequestStream, Resend, Retry};
use futures::future::try_join_all;

use crate::half_block;
use crate::push::{PushId, PushOutcome, Round, Stamp, Trainer};
use crate::remote::columns::{batch, plain, plain_column};
use crate::remote::metadata::{Answer, Header};
use crate::remote::{Wire, act, called};
pub use block::{DenseBlock, DenseRule};
pub use service::DenseService;
use service::{AcknowledgeBefore, Held};

/// Blocks begin at multiples of so many values.
const ALIGN: usize = 16;

/// The blocks of `len` values over `processes`: even, one after the other, each but the last of a multiple of 16 values.
pub fn blocks(len: usize, processes: usize) -> Vec<Range<usize>> {
    let (units, processes) = (len.div_ceil(ALIGN), processes.max(1));
    let at = |process: usize| (units * process / processes * ALIGN).min(len);
    (0..processes).map(|process| at(process)..at(process + 1)).collect()
}

enum Endpoint {
    Here(DenseBlock),
    There { peer: Box<Peer>, name: String, pull: RequestStream, push: RequestStream, wire: Wire, retry: Retry },
}

/// One trainer's view of the dense values. It keeps them, and pulls only what has changed; any number of pulls and pushes may
/// be under way.
pub struct DenseClient {
    endpoints: Vec<Endpoint>,
    blocks: Vec<Range<usize>>,
    pulled: Mutex<Pulled>,
    trainer: Option<Trainer>,
}

/// The newest values that have come.
struct Pulled {
    /// Versions of the blocks in them.
    seen: Vec<u64>,
    values: Arc<Vec<f32>>,
}

/// Connects to the processes that hold the blocks of `len` values, in their order. Gradients travel by `wire`, values
/// always in f32. Lost connections are made again, and what was under way is asked again, for as long as `retry` says.
///
/// # Errors
/// External: a peer could not be reached within `retry`'s patience. User: a peer refuses us, or holds another block.
pub async fn connect(peers: &[Peer], len: usize, wire: Wire, retry: Retry) -> Result<DenseClient, Fault> {
    let blocks = blocks(len, peers.len());
    for (rank, (peer, block)) in peers.iter().zip(&blocks).enumerate() {
        let name = called(rank, peer);
        let what = format!("dense values on {name}");
        let held: Held = act(peer, "dense.config", &(), &retry, &what).await?;
        if held.block != *block || held.len != len {
            return Err(Fault::user(format!(
                "{name} holds the dense values {:?} of {}; expected {block:?} of {len}: start all processes with one job \
                 file",
                held.block, held.len
            )));
        }
    }
    let endpoint = |(rank, peer): (usize, &Peer)| {
        let name = called(rank, peer);
        let path: &[&str] = if wire == Wire::F16 { &["dense", "push", "f16"] } else { &["dense", "push"] };
        let line = |path| RequestStream::new(peer.clone(), &name, path, retry.clone());
        let (pull, push) = (line(&["dense", "pull"]), line(path));
        Endpoint::There { peer: Box::new(peer.clone()), name, pull, push, wire, retry: retry.clone() }
    };
    DenseClient::new(peers.iter().enumerate().map(endpoint).collect(), blocks)
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
        Self::new(blocks.iter().cloned().map(Endpoint::Here).collect(), cut)
    }

    fn new(endpoints: Vec<Endpoint>, blocks: Vec<Range<usize>>) -> Result<Self, Fault> {
        let Some(last) = blocks.last().filter(|_| !endpoints.is_empty()) else {
            return Err(Fault::user("dense values were asked for of no process; expected at least one"));
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

    /// The values as they are now, `[len]`: fetches the blocks that have changed since the last pull. When none has, this is
    /// that pull's vector. Cancel safe.
    ///
    /// # Errors
    /// External: a process is gone. Internal: a block has died.
    pub async fn pull(&self) -> Result<Arc<Vec<f32>>, Fault> {
        let seen = self.pulled().seen.clone();
        let asked: Vec<_> = self.endpoints.iter().zip(seen).map(|(endpoint, seen)| endpoint.pull(seen)).collect();
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
            // A pull that was asked later may have been answered before.
            if let Some(values) = values.filter(|_| version > *seen) {
                // Whoever computes with older values keeps them.
                Arc::make_mut(all)[block.clone()].copy_from_slice(&values);
                *seen = version;
            }
        }
        Ok(Arc::clone(all))
    }

    /// Applies the gradients of all values, at most once: a block that has applied the push of this id before changes
    /// nothing. Cancelled or failed, it may be made again.
    ///
    /// # Errors
    /// A user fault: another number of gradients than values, one that is NaN or infinite, a trainer that is fenced.
    pub async fn push_once(&self, id: PushId, grads: &[f32]) -> Result<PushOutcome, Fault> {
        self.push(grads, 0, Stamp { id, trainer: self.trainer, round: None }).await
    }

    /// As [`push_once`](Self::push_once), as one trainer's part of the round of `step`: the blocks wait for all trainers
    /// and apply the mean of their gradients, weighted by rows. A trainer without rows pushes no gradients at all. Waits
    /// for all the other trainers, without an end.
    ///
    /// # Errors
    /// As [`push_once`](Self::push_once). A user fault also when this client is no trainer's, or the trainers do not take
    /// the same steps.
    pub async fn push_round(&self, id: PushId, round: Round, grads: &[f32], step: u64) -> Result<PushOutcome, Fault> {
        if self.trainer.is_none() {
            return Err(Fault::user("a dense push of a round came from no trainer; name one first"));
        }
        self.push(grads, step, Stamp { id, trainer: self.trainer, round: Some(round) }).await
    }

    /// Says that all pushes of sources below this one have been made: from now on they count as applied, and their ids
    /// take no memory. Cancelled or failed, it may be said again.
    ///
    /// # Errors
    /// External: a process is gone. Internal: a block has died.
    pub async fn acknowledge_before(&self, source: u64) -> Result<(), Fault> {
        let asked: Vec<_> = self.endpoints.iter().map(|endpoint| endpoint.acknowledge_before(source)).collect();
        try_join_all(asked).await.map(drop)
    }

    async fn push(&self, grads: &[f32], step: u64, stamp: Stamp) -> Result<PushOutcome, Fault> {
        let empty = grads.is_empty() && stamp.round.is_some();
        let expected = self.blocks.last().map_or(0, |last| last.end);
        if grads.len() != expected && !empty {
            let found = grads.len();
            return Err(Fault::user(format!("{found} dense gradients came for {expected} values")));
        }
        check_finite(grads)?;
        let part = |block: &Range<usize>| if empty { Vec::new() } else { grads[block.clone()].to_vec() };
        let endpoints = self.endpoints.iter().zip(&self.blocks);
        let asked: Vec<_> = endpoints.map(|(endpoint, block)| endpoint.push(part(block), step, stamp)).collect();
        let pushed = try_join_all(asked).await?;
        Ok(if pushed.contains(&PushOutcome::Applied) { PushOutcome::Applied } else { PushOutcome::Already })
    }
}

fn check_finite(grads: &[f32]) -> Result<(), Fault> {
    match grads.iter().filter(|grad| !grad.is_finite()).count() {
        0 => Ok(()),
        bad => Err(Fault::user(format!(
            "{bad} of {} dense gradients are NaN or infinite; nothing was changed; lower the learning rate or clip \
             gradients",
            grads.len()
        ))),
    }
}

impl Endpoint {
    async fn pull(&self, known: u64) -> Result<(u64, Option<Vec<f32>>), Fault> {
        let (name, line) = match self {
            Self::Here(block) => return block.pull(known).await,
            Self::There { name, pull, .. } => (name, pull),
        };
        let question = Message::metadata(Header { step: known, stamp: None }.write(&[]));
        let (_, answer) = line.ask(question, Resend::Yes).await?;
        let wrong = |fault: Fault| Fault::external(format!("{name} gave a wrong answer")).because(fault);
        let (metadata, _) = Answer::read(&answer.metadata).map_err(wrong)?;
        let values = answer.batch.as_ref().map(|batch| plain::<Float32Type>(batch, "value").map(<[f32]>::to_vec));
        Ok((metadata.number, values.transpose().map_err(wrong)?))
    }

    async fn acknowledge_before(&self, source: u64) -> Result<(), Fault> {
        match self {
            Self::Here(block) => block.acknowledge_before(source).await,
            Self::There { peer, name, retry, .. } => {
                let what = format!("dense values on {name}");
                act(peer, "dense.acknowledge", &AcknowledgeBefore { before: source }, retry, &what).await
            }
        }
    }

    async fn push(&self, grads: Vec<f32>, step: u64, stamp: Stamp) -> Result<PushOutcome, Fault> {
        let (name, line, wire) = match self {
            Self::Here(block) => return block.push(grads, step, stamp).await,
            Self::There { name, push, wire, .. } => (name, push, wire),
        };
        let header = Header { step, stamp: Some(stamp) };
        let field = |kind| vec![Field::new("grad", kind, false)];
        let (columns, metadata) = match wire {
            Wire::F32 => {
                let columns = batch(field(DataType::Float32), vec![plain_column::<Float32Type>(grads)])?;
                (columns, header.write(&[]))
            }
            Wire::F16 => {
                let (mut halves, mut exponents) = (Vec::new(), Vec::new());
                if !half_block::encode(&grads, &mut halves, &mut exponents) {
                    return Err(Fault::internal("gradients that are not finite came as far as the wire"));
                }
                let columns = batch(field(DataType::Float16), vec![plain_column::<Float16Type>(halves)])?;
                (columns, header.write(&exponents))
            }
        };
        let (_, answer) = line.ask(Message { batch: Some(columns), metadata }, Resend::Yes).await?;
        match Answer::read(&answer.metadata) {
            Ok((answer, _)) => Ok(answer.pushed),
            Err(fault) => Err(Fault::external(format!("{name} gave a wrong answer")).because(fault)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_are_even_and_aligned(len in 0usize..5000, processes in 1usize..20) {
            let blocks = blocks(len, processes);
            prop_assert_eq!(blocks.len(), processes);
            prop_assert_eq!((blocks[0].start, blocks[processes - 1].end), (0, len));
            prop_assert!(blocks.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(blocks.iter().all(|block| block.start % 16 == 0 || block.start == len));
            let (least, most) = (blocks.iter().map(Range::len).min(), blocks.iter().map(Range::len).max());
            prop_assert!(most.unwrap() - least.unwrap() < 32);
        }
    }
}
