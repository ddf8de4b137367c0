//! One block of dense parameters as a service: an actor that owns the values and the rule that changes them. It works on
//! one call at a time, on its own thread.

use forebay_actors::{Client, Fault, Host, PendingReply, Place, Service, StageCx};
use forebay_base::LrReductions;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::exactly_once::{ExactlyOnce, PushAnswer};
use crate::held_pulls::round_ended;
use crate::merge::merge_flat;
use crate::push::{AfterRound, PushOutcome, Stamp};

/// How gradients change a block of values: an optimizer with its state.
pub trait DenseRule: Send {
    /// One step with a gradient for each value, in the order of the values; all are finite.
    ///
    /// # Errors
    /// The fault of the rule; then the values are unchanged.
    fn apply(&mut self, grads: &[f32]) -> Result<(), Fault>;

    /// Replaces one value, before the first step.
    ///
    /// # Errors
    /// A user fault: this rule does not take it, as by default.
    fn set(&mut self, _place: usize, _value: f32) -> Result<(), Fault> {
        Err(Fault::user("the rule of a dense block takes no first value; expected one with `set`"))
    }

    /// Reduces the learning rate of later steps, by their numbers. Replaces earlier reductions.
    ///
    /// # Errors
    /// A user fault: this rule does not take it, as by default.
    fn reduce_lr(&mut self, _reductions: &LrReductions) -> Result<(), Fault> {
        Err(Fault::user("the rule of a dense block cannot reduce its learning rate; expected one with `reduce_lr`"))
    }

    /// The values. Their number never changes.
    fn values(&self) -> &[f32];

    /// All that later steps depend on: the values, the optimizer's state and its number of steps.
    ///
    /// # Errors
    /// A user fault: this rule cannot be saved, as it is by default.
    fn save(&self) -> Result<Vec<NamedValues>, Fault> {
        Err(Fault::user("the rule of a dense block cannot be saved for a checkpoint; expected one with `save`"))
    }

    /// Replaces all that [`save`](Self::save) gives.
    ///
    /// # Errors
    /// A user fault, with nothing changed: what was saved is of another rule or another number of values.
    fn restore(&mut self, _saved: Vec<NamedValues>) -> Result<(), Fault> {
        Err(Fault::user("the rule of a dense block cannot be restored; expected one with `restore`"))
    }
}

/// Numbers of a saved block, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedValues {
    /// The rule chooses it.
    pub name: String,
    /// In the order of the block's values, if there is one for each.
    pub values: Vec<f32>,
}

/// A call to a block. The client has checked lengths and numbers.
pub(super) enum BlockCall {
    /// Returns the values unless their version is `seen`. `after`: as they are when this round is applied.
    Pull { seen: u64, after: Option<AfterRound> },
    /// Applies gradients once. A trainer without rows in a round sends none.
    Push { grads: Vec<f32>, step: u64, stamp: Stamp },
    /// Counts all pushes of lower series as applied.
    AcknowledgeBefore { before: u64 },
    /// As `AcknowledgeBefore`, at most up to the highest series of a push that was applied.
    AcknowledgeApplied { before: u64 },
    /// Saves the rule.
    Save,
    /// Restores the rule.
    Restore(Vec<NamedValues>),
    /// Reduces the learning rate of later steps.
    ReduceLr(LrReductions),
    /// Replaces a value, unless the rule was restored or has applied gradients.
    SetFirst { place: usize, value: f32 },
}

/// The reply of a block.
pub(super) enum BlockReply {
    Pulled {
        version: u64,
        values: Option<Vec<f32>>,
    },
    /// The round that a pull must see is not applied yet. Pull again when the receiver says that the round is applied.
    Held(oneshot::Receiver<Result<(), Fault>>),
    Pushed(PushAnswer<Vec<f32>>),
    Saved(Vec<NamedValues>),
    Done,
}

/// A block of dense values in this process. Clones reach the same block.
#[derive(Clone)]
pub struct DenseBlock {
    pub(super) client: Client<BlockCall, BlockReply>,
    pub(super) len: usize,
}

impl DenseBlock {
    /// Starts the block of the ps process of this `rank`, of `len` values, on `host`, on a thread of its own, where `rule` is made.
    pub fn start(
        host: &Host,
        rank: usize,
        len: usize,
        rule: impl FnOnce() -> Result<Box<dyn DenseRule>, Fault> + Send + 'static,
    ) -> Self {
        let rule = Box::new(rule);
        // Reports and metrics tell the blocks of a run apart by their names, as the shards of a table.
        let name = format!("ps{rank}-dense");
        let client = host.serve(&name, Place::Own, 8, move || Block { len, make: Some(rule), ..Block::default() });
        Self { client, len }
    }

    /// Values of the block.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the block has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first half of a push: sends it to the block. [`pushed`] is the second.
    pub(super) async fn ask_push(
        &self,
        grads: Vec<f32>,
        step: u64,
        stamp: Stamp,
    ) -> Result<PendingReply<BlockReply>, Fault> {
        let (found, len) = (grads.len(), self.len);
        if found != len && !(found == 0 && stamp.round.is_some()) {
            return Err(Fault::user(format!("{found} dense gradients came for a block of {len}")));
        }
        self.client.ask(BlockCall::Push { grads, step, stamp }).await
    }

    /// Declares all pushes of series below this one applied, so that their ids take no memory. It may be repeated.
    ///
    /// # Errors
    /// Internal: the block has died.
    pub async fn acknowledge_before(&self, series: u64) -> Result<(), Fault> {
        self.acknowledge(BlockCall::AcknowledgeBefore { before: series }).await
    }

    /// As [`acknowledge_before`](Self::acknowledge_before), for another process: at most up to the highest series of a push that was
    /// applied.
    pub(crate) async fn acknowledge_applied_before(&self, series: u64) -> Result<(), Fault> {
        self.acknowledge(BlockCall::AcknowledgeApplied { before: series }).await
    }

    async fn acknowledge(&self, call: BlockCall) -> Result<(), Fault> {
        match self.client.call(call).await? {
            BlockReply::Done => Ok(()),
            _ => Err(wrong_reply()),
        }
    }

    /// All that later steps of the block depend on, as it is when the call reaches the block. For the same moment as a snapshot of the
    /// table, no push may be under way. Cancel safe.
    ///
    /// # Errors
    /// A user fault: the rule cannot be saved. Internal: the block has died.
    pub async fn save(&self) -> Result<Vec<NamedValues>, Fault> {
        match self.client.call(BlockCall::Save).await? {
            BlockReply::Saved(saved) => Ok(saved),
            _ => Err(wrong_reply()),
        }
    }

    /// Replaces the value at `place`, unless the block was restored or has applied gradients. Clients pull the values anew.
    ///
    /// # Errors
    /// A user fault: the rule does not take it. Internal: the block has died.
    pub(super) async fn set_first(&self, place: usize, value: f32) -> Result<(), Fault> {
        match self.client.call(BlockCall::SetFirst { place, value }).await? {
            BlockReply::Done => Ok(()),
            _ => Err(wrong_reply()),
        }
    }

    /// Reduces the learning rate of later steps, by their numbers. Replaces earlier reductions, and may be repeated.
    ///
    /// # Errors
    /// A user fault: the rule does not take it. Internal: the block has died.
    pub async fn reduce_lr(&self, reductions: &LrReductions) -> Result<(), Fault> {
        match self.client.call(BlockCall::ReduceLr(reductions.clone())).await? {
            BlockReply::Done => Ok(()),
            _ => Err(wrong_reply()),
        }
    }

    /// Restores the result of [`save`](Self::save). Later steps give the same bits, and clients pull the values anew.
    ///
    /// # Errors
    /// A user fault: the rule cannot be restored, or was saved by another rule. Internal: the block has died.
    pub async fn restore(&self, saved: Vec<NamedValues>) -> Result<(), Fault> {
        match self.client.call(BlockCall::Restore(saved)).await? {
            BlockReply::Done => Ok(()),
            _ => Err(wrong_reply()),
        }
    }

    /// The first half of a pull: sends it to the block. The future that it returns waits for the version, and the values unless that
    /// version was `seen`.
    pub(super) async fn begin_pull(
        &self,
        seen: u64,
        after: Option<AfterRound>,
    ) -> Result<impl Future<Output = Result<(u64, Option<Vec<f32>>), Fault>> + Send + 'static + use<>, Fault> {
        let (block, asked) = (self.client.clone(), self.client.ask(BlockCall::Pull { seen, after }).await?);
        Ok(async move {
            let reply = match asked.reply().await? {
                BlockReply::Held(end) => {
                    round_ended(end).await?;
                    block.call(BlockCall::Pull { seen, after: None }).await?
                }
                reply => reply,
            };
            match reply {
                BlockReply::Pulled { version, values } => Ok((version, values)),
                _ => Err(wrong_reply()),
            }
        })
    }
}

/// The second half of a push: waits until the push is applied, or for the end of its round.
pub(super) async fn pushed(pending: PendingReply<BlockReply>) -> Result<PushOutcome, Fault> {
    match pending.reply().await? {
        BlockReply::Pushed(pushed) => Ok(pushed.outcome().await?.1),
        _ => Err(wrong_reply()),
    }
}

fn wrong_reply() -> Fault {
    Fault::internal("a dense block sent the reply of another call")
}

type Make = Box<dyn FnOnce() -> Result<Box<dyn DenseRule>, Fault> + Send>;

#[derive(Default)]
struct Block {
    len: usize,
    make: Option<Make>,
    rule: Option<Box<dyn DenseRule>>,
    /// The block was restored, or has applied gradients.
    has_begun: bool,
    /// Differs after each step, and from process to process.
    version: u64,
    once: ExactlyOnce<Vec<f32>>,
}

impl Block {
    fn restore(&mut self, saved: Vec<NamedValues>) -> Result<BlockReply, Fault> {
        let rule = self.rule.as_mut().ok_or_else(not_open)?;
        rule.restore(saved)?;
        let found = rule.values().len();
        if found != self.len {
            return Err(Fault::internal(format!("a restored dense rule has {found} values; expected {}", self.len)));
        }
        self.has_begun = true;
        self.version = self.version.wrapping_add(1);
        Ok(BlockReply::Done)
    }

    fn set_first(&mut self, place: usize, value: f32) -> Result<BlockReply, Fault> {
        let rule = self.rule.as_mut().ok_or_else(not_open)?;
        if !self.has_begun && rule.values().get(place).is_some_and(|old| old.to_bits() != value.to_bits()) {
            rule.set(place, value)?;
            self.version = self.version.wrapping_add(1);
        }
        Ok(BlockReply::Done)
    }

    fn pull(&self, seen: u64) -> Result<BlockReply, Fault> {
        let (version, rule) = (self.version, self.rule.as_ref().ok_or_else(not_open)?);
        let values = (seen != version).then(|| rule.values().to_vec());
        Ok(BlockReply::Pulled { version, values })
    }

    fn push(&mut self, grads: Vec<f32>, step: u64, stamp: Stamp) -> Result<BlockReply, Fault> {
        let rule = self.rule.as_mut().ok_or_else(not_open)?;
        let (version, has_begun) = (&mut self.version, &mut self.has_begun);
        let apply = |grads: &Vec<f32>, _| {
            // A round without any rows is no step.
            if !grads.is_empty() {
                rule.apply(grads)?;
                *has_begun = true;
                *version = version.wrapping_add(1);
            }
            Ok(())
        };
        self.once.push(Some(stamp), step, grads, merge_flat, apply).map(BlockReply::Pushed)
    }
}

fn not_open() -> Fault {
    Fault::internal("a dense block was asked before it was opened")
}

impl Service for Block {
    type Call = BlockCall;
    type Reply = BlockReply;

    fn describe(&self) -> String {
        format!("dense block, {} values", self.len)
    }

    fn name_of(call: &BlockCall) -> (&'static str, usize) {
        match call {
            BlockCall::Pull { .. } => ("pull", 1),
            BlockCall::Push { .. } => ("push", 1),
            BlockCall::AcknowledgeBefore { .. } | BlockCall::AcknowledgeApplied { .. } => ("acknowledge", 0),
            BlockCall::Save => ("save", 1),
            BlockCall::Restore(_) => ("restore", 1),
            BlockCall::ReduceLr(_) => ("reduce lr", 0),
            BlockCall::SetFirst { .. } => ("set_first", 1),
        }
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        let make = self.make.take().ok_or_else(|| Fault::internal("a dense block was opened twice"))?;
        let rule = make()?;
        if rule.values().len() != self.len {
            let found = rule.values().len();
            return Err(Fault::internal(format!("a dense rule has {found} values; expected {}", self.len)));
        }
        self.rule = Some(rule);
        // A random version, so that no client takes the values of an earlier process for these. 0 means that the client has none.
        self.version = forebay_base::random_seed() | 1 << 63;
        Ok(())
    }

    async fn call(&mut self, call: BlockCall) -> Result<BlockReply, Fault> {
        match call {
            BlockCall::Pull { seen, after: None } => self.pull(seen),
            BlockCall::Pull { seen, after: Some(after) } => match self.once.pull(after)? {
                Some(end) => Ok(BlockReply::Held(end)),
                None => self.pull(seen),
            },
            BlockCall::Push { grads, step, stamp } => self.push(grads, step, stamp),
            BlockCall::AcknowledgeBefore { before } => {
                self.once.acknowledge_before(before);
                Ok(BlockReply::Done)
            }
            BlockCall::AcknowledgeApplied { before } => {
                self.once.acknowledge_applied_before(before);
                Ok(BlockReply::Done)
            }
            BlockCall::Save => Ok(BlockReply::Saved(self.rule.as_ref().ok_or_else(not_open)?.save()?)),
            BlockCall::Restore(saved) => self.restore(saved),
            BlockCall::ReduceLr(reductions) => {
                self.rule.as_mut().ok_or_else(not_open)?.reduce_lr(&reductions)?;
                Ok(BlockReply::Done)
            }
            BlockCall::SetFirst { place, value } => self.set_first(place, value),
        }
    }
}
