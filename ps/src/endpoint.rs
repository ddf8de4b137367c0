//! Where a client sends the calls for some of its keys: a shard in this process, or all the shards of another one.

use std::time::Duration;

use forebay_actors::{Client, Fault, PendingReply};
use futures::future::BoxFuture;

use crate::held_pulls::round_ended;
use crate::merge::Rows;
use crate::push::PushOutcome;
use crate::remote::{Process, PsReplies, Wire};
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

    /// How values travel there. `None`: they stay in this process.
    pub(crate) fn wire(&self) -> Option<Wire> {
        match self {
            Self::Shard(_) => None,
            Self::Process(process) => Some(process.wire()),
        }
    }

    /// The round trip of a small request; none to a shard in this process.
    pub(crate) async fn round_trip(&self) -> Result<Duration, Fault> {
        match self {
            Self::Shard(_) => Ok(Duration::ZERO),
            Self::Process(process) => process.round_trip().await,
        }
    }

    /// How the process behind the network has answered pulls so far; none of a shard in this process.
    pub(crate) fn replies(&self) -> Option<PsReplies> {
        match self {
            Self::Shard(_) => None,
            Self::Process(process) => Some(process.replies()),
        }
    }

    /// Hands a call over, after all that were handed over before it.
    pub(crate) async fn ask(&self, call: Call) -> Result<PendingCall, Fault> {
        Ok(match self {
            Self::Shard(shard) => PendingCall::Shard(shard.clone(), shard.ask(call).await?),
            Self::Process(process) => PendingCall::Process(process.ask(call).await?),
        })
    }
}

/// A call that was handed over.
pub(crate) enum PendingCall {
    Shard(Client<Call, Reply>, PendingReply<Reply>),
    Process(BoxFuture<'static, Result<Reply, Fault>>),
}

impl PendingCall {
    /// Waits for the end of a round, if the call is one of a round or must see one.
    pub(crate) async fn reply(self) -> Result<Reply, Fault> {
        match self {
            Self::Shard(shard, asked) => match asked.reply().await? {
                Reply::Held(end, call) => {
                    round_ended(end).await?;
                    shard.call(*call).await
                }
                reply => Ok(reply),
            },
            Self::Process(asked) => asked.await,
        }
    }

    /// The buffers of a pull or a push, and what became of the push.
    pub(crate) async fn buffers(self) -> Result<(Rows, PushOutcome), Fault> {
        match self.reply().await? {
            Reply::Rows(rows) => Ok((rows, PushOutcome::Already)),
            Reply::Pushed(pushed) => pushed.outcome().await,
            _ => Err(confused()),
        }
    }
}

pub(crate) fn confused() -> Fault {
    Fault::internal("a shard sent the reply of another call")
}
