//! The leases of one process: it takes them one after the other, and reports each as completed when all its batches are done.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forebay_actors::Fault;
use forebay_connectors::{DataPlan, Lease, Leases};
use tokio::sync::watch;

use super::batches::lease_progress::LeaseProgress;
use super::leases::LeaseReply;
use super::member::Member;
use super::messages::{CompletedLease, LeaseRequest, RunPhase};
use crate::flow::{BatchId, TrainBatch};
use crate::participation::BatchRecord;

/// The time between two requests for a lease while none is available.
const LEASE_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The leases of a reader with unsent batches: one to read, one to read ahead. More would be taken from readers without any.
const MAX_UNSENT_LEASES: usize = 2;

/// Takes leases one after the other, and reports each as completed when all its batches are done.
#[derive(Clone)]
pub(crate) struct LeaseClient {
    member: Member,
    progress: Arc<LeaseProgress>,
    failed: Arc<Mutex<Option<Fault>>>,
    /// Leases that are done but not yet reported to the coordinator.
    unreported: Arc<watch::Sender<usize>>,
}

impl LeaseClient {
    pub(crate) fn new(member: Member) -> Self {
        Self { member, progress: Arc::default(), failed: Arc::default(), unreported: Arc::default() }
    }

    pub(crate) fn progress(&self) -> &LeaseProgress {
        &self.progress
    }

    /// Waits until a lost reader's lease can be taken. Cancel safe.
    pub(crate) async fn wait_for_lost_lease(&self) {
        if self.member.subscribe().wait_for(|status| status.lost_leases > 0).await.is_err() {
            // The run is ending.
            std::future::pending::<()>().await;
        }
    }

    /// Records that a batch is done. If its lease is done with it, reports the lease as completed in the background.
    pub(crate) fn batch_done(&self, id: BatchId) {
        let Some((lease, counts)) = self.progress.batch_done(id) else { return };
        let (member, failed, unreported) =
            (self.member.clone(), Arc::clone(&self.failed), Arc::clone(&self.unreported));
        tracing::debug!(?lease, ?counts, "done");
        let completed = CompletedLease { member: member.id(), lease, counts };
        unreported.send_modify(|leases| *leases += 1);
        self.member.io().spawn(async move {
            if let Err(fault) = member.request::<_, ()>("complete", &completed).await {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
            }
            unreported.send_modify(|leases| *leases -= 1);
        });
    }

    /// Waits until every lease that is done is reported: the coordinator gives unreported leases of a process that leaves to
    /// other readers. Cancel safe.
    ///
    /// # Errors
    /// A lease could not be reported.
    pub(crate) async fn wait_until_reported(&self) -> Result<(), Fault> {
        let mut unreported = self.unreported.subscribe();
        tokio::select! {
            reported = unreported.wait_for(|leases| *leases == 0) => drop(reported),
            // A run is over only after all its leases are reported.
            _ = self.member.wait_until(|status| status.phase == RunPhase::Over) => {}
        }
        self.check_reported()
    }

    /// Returns the fault of a failed report, once.
    fn check_reported(&self) -> Result<(), Fault> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl BatchRecord for LeaseClient {
    fn batch_started(&self, batch: &TrainBatch) {
        let (id, rows) = (BatchId::of(batch), batch.labels.len() as u64);
        self.progress.batch_sent(id, rows, batch.closes);
        if rows == 0 {
            self.batch_done(id);
        }
    }

    fn batch_done(&self, id: BatchId) {
        self.batch_done(id);
    }
}

#[async_trait]
impl Leases for LeaseClient {
    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        self.member.wait_until_started().await?;
        loop {
            let lost_only = tokio::select! {
                biased;
                () = self.progress.wait_until_closed() => return Ok(None),
                () = self.progress.wait_for_room(MAX_UNSENT_LEASES) => false,
                // All trainers may wait for the rows of a lost lease, so this reader's batches may wait for them, too.
                () = self.wait_for_lost_lease() => true,
            };
            self.check_reported()?;
            let ask = LeaseRequest { member: self.member.id(), data: data.clone(), lost_only };
            match self.member.request("lease", &ask).await? {
                LeaseReply::Lease(lease) => {
                    tracing::debug!(?lease, lost_only, "leased");
                    self.progress.add(&lease);
                    return Ok(Some(lease));
                }
                LeaseReply::Finished => return Ok(None),
                LeaseReply::Wait => tokio::select! {
                    () = self.progress.wait_until_closed() => {}
                    () = tokio::time::sleep(LEASE_RETRY_DELAY) => {}
                },
            }
        }
    }
}
