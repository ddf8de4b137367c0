//! One way to rows: a shard in this process, or all the shards of another one.
//!
//! Comes in: a [`Call`]. Goes out: its [`Reply`]. Waits for room and for the answer; nothing blocks the thread.

use forebay_actors::{Client, Fault};

use crate::shard::{Call, Reply};

/// Takes calls for some of the shards of a table.
pub(crate) enum Way {
    /// An actor of this process.
    Shard(Client<Call, Reply>),
}

impl Way {
    pub(crate) async fn call(&self, call: Call) -> Result<Reply, Fault> {
        match self {
            Self::Shard(shard) => shard.call(call).await,
        }
    }
}
