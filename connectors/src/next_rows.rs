//! The next batch of a source that decodes in parallel: in the order of the data, with its number.

use std::sync::Arc;

use forebay_actors::Fault;

use crate::decode_pool::DecodePool;
use crate::lease::{Leases, wanted};
use crate::prefetch::Prefetch;
use crate::rows::Rows;

/// Returns the next batch with number `seq`, and adds 1 to `seq`. Returns `None` at the end, and when the leases do not want the batch's
/// window.
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
