//! One block of dense values as a service: an actor that owns the values and the rule that changes them.
//!
//! Comes in: a [`Call`]. Goes out: a [`Reply`]. Calls are worked off one at a time on the block's own thread; the push of
//! a round that is not whole is answered with a promise.

use std::hash::{BuildHasher, RandomState};

use forebay_actors::{Client, Fault, Host, PendingReply, Place, Service, StageCx};

use crate::exactly_once::{ExactlyOnce, Next, Promise, tell};
use crate::merge::merge_flat;
use crate::push::{PushOutcome, Stamp};

/// How gradients change a block of values: an optimizer with its state.
pub trait DenseRule: Send {
    /// One step with the gradients of all values, in their order: as many, and all finite.
    ///
    /// # Errors
    /// Whatever the rule says; the values are then as they were.
    fn apply(&mut self, grads: &[f32]) -> Result<(), Fault>;

    /// The values, always as many.
    fn values(&self) -> &[f32];
}

/// What a block is asked. Lengths and numbers were checked by whoever asks.
pub(super) enum Call {
    /// Give the values unless they are those of this version.
    Pull { known: u64 },
    /// Apply gradients once; none at all are of a trainer without rows, in a round.
    Push { grads: Vec<f32>, step: u64, stamp: Stamp },
    /// Count all pushes of lower sources as applied.
    AcknowledgeBefore { before: u64 },
}

/// What a block answers.
pub(super) enum Reply {
    Pulled { version: u64, values: Option<Vec<f32>> },
    PushOutcome(PushOutcome),
    Held(Promise<String>),
    Done,
}

/// A block of dense values that stands in this process. Clones reach the same one.
#[derive(Clone)]
pub struct DenseBlock {
    pub(super) client: Client<Call, Reply>,
    pub(super) len: usize,
}

impl DenseBlock {
    /// Starts a block of `len` values on `host`, on a thread of its own, where `rule` is made.
    pub fn start(
        host: &Host,
        len: usize,
        rule: impl FnOnce() -> Result<Box<dyn DenseRule>, Fault> + Send + 'static,
    ) -> Self {
        let rule = Box::new(rule);
        let client = host.serve("ps-dense", Place::Own, 8, move || Block { len, make: Some(rule), ..Block::default() });
        Self { client, len }
    }

    /// Values of the block.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) async fn push(&self, grads: Vec<f32>, step: u64, stamp: Stamp) -> Result<PushOutcome, Fault> {
        pushed(self.ask_push(grads, step, stamp).await?).await
    }

    /// The first half of a push: hands it over to the block. [`pushed`] is the second.
    pub(super) async fn ask_push(
        &self,
        grads: Vec<f32>,
        step: u64,
        stamp: Stamp,
    ) -> Result<PendingReply<Reply>, Fault> {
        let (found, len) = (grads.len(), self.len);
        if found != len && !(found == 0 && stamp.round.is_some()) {
            return Err(Fault::user(format!("{found} dense gradients came for a block of {len}")));
        }
        self.client.ask(Call::Push { grads, step, stamp }).await
    }

    /// Says that all pushes of sources below this one have been made: from now on they count as applied, and their ids
    /// take no memory. Cancelled or failed, it may be said again.
    ///
    /// # Errors
    /// Internal: the block has died.
    pub async fn acknowledge_before(&self, source: u64) -> Result<(), Fault> {
        match self.client.call(Call::AcknowledgeBefore { before: source }).await? {
            Reply::Done => Ok(()),
            _ => Err(confused()),
        }
    }

    /// The values and their version, unless that is `known`.
    pub(super) async fn pull(&self, known: u64) -> Result<(u64, Option<Vec<f32>>), Fault> {
        pulled(self.ask_pull(known).await?).await
    }

    /// The first half of a pull: hands it over to the block. [`pulled`] is the second.
    pub(super) async fn ask_pull(&self, known: u64) -> Result<PendingReply<Reply>, Fault> {
        self.client.ask(Call::Pull { known }).await
    }
}

/// Waits until a push is applied, or for the end of its round.
pub(super) async fn pushed(asked: PendingReply<Reply>) -> Result<PushOutcome, Fault> {
    match asked.reply().await? {
        Reply::PushOutcome(pushed) => Ok(pushed),
        Reply::Held(promise) => match promise.await {
            Ok(pushed) => pushed.map_err(Fault::internal),
            Err(_) => Err(Fault::internal("the dense block ended with a round that was not whole")),
        },
        _ => Err(confused()),
    }
}

/// Waits for the version, and for the values if they are another's.
pub(super) async fn pulled(asked: PendingReply<Reply>) -> Result<(u64, Option<Vec<f32>>), Fault> {
    match asked.reply().await? {
        Reply::Pulled { version, values } => Ok((version, values)),
        _ => Err(confused()),
    }
}

fn confused() -> Fault {
    Fault::internal("a dense block answered another question than it was asked")
}

type Make = Box<dyn FnOnce() -> Result<Box<dyn DenseRule>, Fault> + Send>;

#[derive(Default)]
struct Block {
    len: usize,
    make: Option<Make>,
    rule: Option<Box<dyn DenseRule>>,
    /// Another with each step, and in each process.
    version: u64,
    once: ExactlyOnce<Vec<f32>, String>,
}

impl Block {
    fn rule(&mut self) -> Result<&mut Box<dyn DenseRule>, Fault> {
        self.rule.as_mut().ok_or_else(|| Fault::internal("a dense block was asked before it was opened"))
    }

    fn apply(&mut self, grads: &[f32]) -> Result<PushOutcome, Fault> {
        self.rule()?.apply(grads)?;
        self.version = self.version.wrapping_add(1);
        Ok(PushOutcome::Applied)
    }

    fn push(&mut self, grads: Vec<f32>, step: u64, stamp: Stamp) -> Result<Reply, Fault> {
        Ok(match self.once.offer(Some(stamp), step, grads)? {
            Next::Already(_) => Reply::PushOutcome(PushOutcome::Already),
            Next::Apply(grads) => Reply::PushOutcome(self.apply(&grads)?),
            Next::Held(promise) => Reply::Held(promise),
            Next::Whole(whole, promise) => {
                let grads = merge_flat(whole.shares);
                // A round of no rows at all is no step.
                let pushed = if grads.is_empty() { Ok(PushOutcome::Applied) } else { self.apply(&grads) };
                tell(whole.waiting, &pushed.map_err(|fault| fault.to_string()));
                Reply::Held(promise)
            }
        })
    }
}

impl Service for Block {
    type Call = Call;
    type Reply = Reply;

    fn describe(&self) -> String {
        format!("dense block, {} values", self.len)
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        let make = self.make.take().ok_or_else(|| Fault::internal("a dense block was opened twice"))?;
        let rule = make()?;
        if rule.values().len() != self.len {
            let found = rule.values().len();
            return Err(Fault::internal(format!("a dense rule has {found} values; expected {}", self.len)));
        }
        self.rule = Some(rule);
        // So that nobody takes the values of this process for those of one before it. 0 is nobody's.
        self.version = RandomState::new().hash_one(0_u8) | 1 << 63;
        Ok(())
    }

    async fn call(&mut self, call: Call) -> Result<Reply, Fault> {
        match call {
            Call::Pull { known } => {
                let version = self.version;
                let values = (known != version).then(|| self.rule().map(|rule| rule.values().to_vec())).transpose()?;
                Ok(Reply::Pulled { version, values })
            }
            Call::Push { grads, step, stamp } => self.push(grads, step, stamp),
            Call::AcknowledgeBefore { before } => {
                self.once.acknowledge_before(before);
                Ok(Reply::Done)
            }
        }
    }
}
