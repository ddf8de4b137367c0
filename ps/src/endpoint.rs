//! Where a client sends the calls for some of its keys: a shard in this process, or all the shards of another process.

use std::time::{Duration, Instant};

use forebay_actors::{Client, Fault, PendingReply};
use futures::future::BoxFuture;

use crate::held_pulls::round_ended;
use crate::merge::Rows;
use crate::push::PushOutcome;
use crate::shard::{Call, Reply};
use crate::wire::messages::Wire;
use crate::wire::process::Process;
use crate::wire::reply_times::PsReplies;

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

    /// The shards behind it.
    pub(crate) fn shards(&self) -> usize {
        match self {
            Self::Shard(_) => 1,
            Self::Process(process) => process.shards(),
        }
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

/// What a pull or a push returns.
pub(crate) struct Returned {
    pub(crate) rows: Rows,
    pub(crate) pushed: PushOutcome,
    /// When the round ended, if a shard of this process held the pull for it.
    pub(crate) held_until: Option<Instant>,
}

/// A call that was handed over.
pub(crate) enum PendingCall {
    Shard(Client<Call, Reply>, PendingReply<Reply>),
    Process(BoxFuture<'static, Result<Reply, Fault>>),
}

impl PendingCall {
    /// Waits for the end of a round, if the call is one of a round or must see one.
    pub(crate) async fn reply(self) -> Result<Reply, Fault> {
        Ok(self.reply_after().await?.0)
    }

    /// The reply, and when the round ended that a pull was held for.
    async fn reply_after(self) -> Result<(Reply, Option<Instant>), Fault> {
        match self {
            Self::Shard(shard, asked) => match asked.reply().await? {
                Reply::Held(end, call) => {
                    round_ended(end).await?;
                    let ended = Instant::now();
                    Ok((shard.call(*call).await?, Some(ended)))
                }
                reply => Ok((reply, None)),
            },
            Self::Process(asked) => Ok((asked.await?, None)),
        }
    }

    /// The buffers of a pull or a push, and the outcome.
    pub(crate) async fn buffers(self) -> Result<Returned, Fault> {
        let (reply, held_until) = self.reply_after().await?;
        let (rows, pushed) = match reply {
            Reply::Rows(rows) => (rows, PushOutcome::Already),
            Reply::Pushed(pushed) => pushed.outcome().await?,
            _ => return Err(wrong_reply()),
        };
        Ok(Returned { rows, pushed, held_until })
    }
}

pub(crate) fn wrong_reply() -> Fault {
    Fault::internal("a shard sent the reply of another call")
}
