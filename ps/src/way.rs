//! One way to rows: a shard in this process, or all the shards of another one.
//!
//! Comes in: a [`Call`]. Goes out: its [`Reply`]. Waits for room and for the answer; nothing blocks the thread.

use forebay_actors::{Client, Fault};

use crate::once::Pushed;
use crate::remote::Process;
use crate::shard::{Call, Reply};

/// Takes calls for some of the shards of a table.
pub(crate) enum Way {
    /// An actor of this process.
    Shard(Client<Call, Reply>),
    /// Behind the network.
    Process(Box<Process>),
}

impl Way {
    pub(crate) async fn call(&self, call: Call) -> Result<Reply, Fault> {
        match self {
            Self::Shard(shard) => shard.call(call).await,
            Self::Process(process) => process.call(call).await,
        }
    }

    /// Makes a pull or a push, and puts its buffers back where they came from. Waits for the end of a round.
    pub(crate) async fn fill(&self, call: Call, keys: &mut Vec<u64>, values: &mut Vec<f32>) -> Result<Pushed, Fault> {
        match self.call(call).await? {
            Reply::Buffers { keys: k, values: v, pushed } => {
                (*keys, *values) = (k, v);
                Ok(pushed)
            }
            Reply::Held(promise) => match promise.await {
                Ok(pushed) => Ok(pushed?),
                Err(_) => Err(Fault::internal("a shard ended with a round that was not whole")),
            },
            _ => Err(confused()),
        }
    }
}

pub(crate) fn confused() -> Fault {
    Fault::internal("a shard answered another question than it was asked")
}
