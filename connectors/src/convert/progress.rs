//! The progress of a conversion, and the loop of every conversion.

use std::future::Future;

use forebay_actors::{Fault, Source, StageCx};
use futures::FutureExt as _;
use serde::{Deserialize, Serialize};

use crate::rows::Rows;

/// How far a conversion is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvertProgress {
    /// Rows written.
    pub rows: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// The result of a conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Files in the folder.
    pub files: u64,
    /// Rows in all files.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Rows of the source that were left out.
    pub rejected: u64,
}

/// Runs a future on this thread, for programs without a runtime of their own.
pub fn block_on<T>(future: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Fault::external("cannot start a runtime").because(e))?;
    runtime.block_on(future.boxed_local())
}

/// Passes every batch of a source to `take` and keeps the ledger. Returns the rows that were rejected.
pub(super) async fn for_each_batch<S: Source<Out = Rows>>(
    source: &mut S,
    cx: &StageCx,
    mut take: impl AsyncFnMut(Rows) -> Result<(), Fault>,
) -> Result<u64, Fault> {
    source.open(cx).await?;
    while let Some(rows) = source.next(cx).await? {
        let n = rows.batch.num_rows() as u64;
        cx.ledger().read(n);
        take(rows).await?;
        cx.ledger().delivered(n);
    }
    Ok(cx.ledger().snapshot().rejected_total())
}
