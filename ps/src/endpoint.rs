//! One way to rows: a shard in this process, or all the shards of another one.
//!
//! Comes in: a [`Call`]. Goes out: its [`Reply`]. Waits for room and for the answer; nothing blocks the thread.

use forebay_actors::{Client, Fault, PendingReply};

use crate::push::PushOutcome;
use crate::remote::Process;
use crate::shard::{Call, Reply};

/// Takes calls for some of the shards of a table.
pub(crate) enum Endpoint {
    /// An actor of this process.
    Shard(Client<Call, Reply>),
    /// Behind the network.
    Process(Box<Process>),
}

impl Endpoint {
    pub(crate) async fn call(&self, call: Call) -> Result<Reply, Fault> {
        self.ask(call).await?.reply().await
    }

    /// Hands a call over, after all that were handed over before it.
    pub(crate) async fn ask(&self, call: Call) -> Result<PendingCall, Fault> {
        Ok(match self {
            Self::Shard(shard) => PendingCall::Shard(shard.ask(call).await?),
            // Who must not ask out of order waits for each answer.
            Self::Process(process) => PendingCall::Answered(process.call(call).await?),
        })
    }
}

/// A call that was handed over.
pub(crate) enum PendingCall {
    Shard(PendingReply<Reply>),
    Answered(Reply),
}

impl PendingCall {
    pub(crate) async fn reply(self) -> Result<Reply, Fault> {
        match self {
            Self::Shard(asked) => asked.reply().await,
            Self::Answered(reply) => Ok(reply),
        }
    }

    /// The reply to a pull or a push: its buffers, and what became of it. Waits for the end of a round.
    pub(crate) async fn buffers(self) -> Result<(Vec<u64>, Vec<f32>, PushOutcome), Fault> {
        match self.reply().await? {
            Reply::Buffers { keys, values, pushed } => Ok((keys, values, pushed)),
            Reply::Held(promise) => match promise.await {
                Ok(pushed) => Ok((Vec::new(), Vec::new(), pushed?)),
                Err(_) => Err(Fault::internal("a shard ended with a round that was not whole")),
            },
            _ => Err(confused()),
        }
    }
}

pub(crate) fn confused() -> Fault {
    Fault::internal("a shard answered another question than it was asked")
}
