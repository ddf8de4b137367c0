//! The end of an import that has begun.

use forebay_actors::Fault;

use crate::endpoint::{PendingCall, wrong_reply};
use crate::shard::Reply;

/// Rows that shards are setting. A drop does not stop the shards.
#[must_use]
pub struct PendingImport(pub(crate) Vec<PendingCall>);

impl PendingImport {
    /// Waits until all rows are set.
    ///
    /// # Errors
    /// An external fault when memory ran out; an internal one when a shard died.
    pub async fn done(self) -> Result<(), Fault> {
        for call in self.0 {
            if !matches!(call.reply().await?, Reply::Done) {
                return Err(wrong_reply());
            }
        }
        Ok(())
    }
}
