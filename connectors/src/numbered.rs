//! The batches of a source that decodes in parallel, in their order and numbered.

use std::sync::Arc;

use forebay_actors::Fault;

use crate::decode_pool::DecodePool;
use crate::lease::{Leases, wanted};
use crate::prefetch::Prefetch;
use crate::rows::Rows;

/// The next batch, numbered `seq`, which then counts it; `None` at the end, or once the leases want none of its window.
///
/// # Errors
/// The fault of the batch. An internal fault if the source was not opened.
pub(crate) async fn next(
    running: &mut Option<(DecodePool<Rows>, Prefetch)>,
    leases: Option<&Arc<dyn Leases>>,
    seq: &mut u64,
) -> Result<Option<Rows>, Fault> {
    let Some((pool, _)) = running else {
        return Err(Fault::internal("`next` was called before `open`"));
    };
    let Some(mut rows) = pool.next().await? else {
        return Ok(None);
    };
    if !wanted(leases, &rows) {
        return Ok(None);
    }
    rows.lineage.seq = *seq;
    *seq += 1;
    Ok(Some(rows))
}
