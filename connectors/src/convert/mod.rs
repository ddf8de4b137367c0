//! Rows of any source into a folder of files: Parquet, or Criteo text.
//!
//! Comes in: a source. Goes out: a folder, in any store, that appears whole or not at all. The functions await the source
//! and block on the store, so that they belong on a thread of their own (or in [`block_on`]), not on an arbiter.

mod column;
mod encode;
mod parquet;
mod text;

use std::future::Future;

use forebay_actors::{Fault, Source, StageCx};
use serde::{Deserialize, Serialize};

pub use self::parquet::{Encoding, ParquetOptions, to_parquet};
pub use self::text::{TextOptions, to_criteo_text};
use crate::rows::Rows;

/// How far a conversion is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvertProgress {
    /// Rows written.
    pub rows: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// What a conversion left.
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
    runtime.block_on(future)
}

/// Hands every batch of a source to `take`, with the ledger kept; gives back the rows that were rejected.
async fn each<S: Source<Out = Rows>>(
    source: &mut S,
    cx: &StageCx,
    mut take: impl AsyncFnMut(Rows) -> Result<(), Fault>,
) -> Result<u64, Fault> {
    source.open(cx, None).await?;
    while let Some(rows) = source.next().await? {
        let n = rows.batch.num_rows() as u64;
        cx.ledger().read(n);
        take(rows).await?;
        cx.ledger().delivered(n);
    }
    Ok(cx.ledger().snapshot().rejected_total())
}
