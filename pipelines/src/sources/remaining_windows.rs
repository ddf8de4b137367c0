//! The leases of a process that reads all rows by itself and continues from a checkpoint: the windows that are not trained on yet.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use forebay_actors::Fault;
use forebay_connectors::{DataPlan, Lease, Leases};

use crate::checkpointer::cut::CutPoint;

/// Grants all windows that were not done before this process began, in the order of the data.
pub(crate) struct RemainingWindows {
    cut_point: Arc<CutPoint>,
    /// (epoch, window) after the last lease.
    next: Mutex<(u32, u64)>,
}

impl RemainingWindows {
    pub(crate) fn new(cut_point: Arc<CutPoint>) -> Self {
        Self { cut_point, next: Mutex::default() }
    }
}

#[async_trait]
impl Leases for RemainingWindows {
    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        self.cut_point.reads(data)?;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        while next.0 < data.epochs {
            let (epoch, mut from) = *next;
            let mut to = data.windows;
            for done in self.cut_point.before().windows_of(epoch) {
                if done.start <= from {
                    from = from.max(done.end);
                } else {
                    to = to.min(done.start);
                    break;
                }
            }
            if from >= to {
                *next = (epoch + 1, 0);
                continue;
            }
            *next = if to == data.windows { (epoch + 1, 0) } else { (epoch, to) };
            return Ok(Some(Lease { epoch, windows: from..to, term: 0 }));
        }
        Ok(None)
    }

    fn has_one_source(&self) -> bool {
        true
    }
}
