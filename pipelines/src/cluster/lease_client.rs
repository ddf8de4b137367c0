//! The leases of one process: it takes them one after the other, and reports windows whose batches are all done.
//!
//! It sends a report when a lease ends, otherwise at most one a second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forebay_actors::Fault;
use forebay_batches::{BatchId, TrainBatch};
use forebay_connectors::{DataPlan, Lease, Leases, WindowMark};
use forebay_job::Job;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::batches::lease_progress::{LeaseProgress, Report};
use super::leases::LeaseReply;
use super::member::Member;
use super::messages::{CompletedWindows, LeaseRequest, RunPhase, RunStatus};
use super::receives_in_order;
use crate::order::batch_record::BatchRecord;

/// The time between two requests for a lease while none is available.
const LEASE_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The most leases with unsent batches: one to read, one to read ahead. A reader with more would take them from readers without any.
const MAX_UNSENT_LEASES: usize = 2;

/// The time between two reports while no lease ends.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Takes leases one after the other, and reports windows as completed when all their batches are done. Clones share both.
#[derive(Clone)]
pub(crate) struct LeaseClient {
    member: Member,
    progress: Arc<LeaseProgress>,
    failed: Arc<Mutex<Option<Fault>>>,
    lost: LostLeases,
    status: watch::Receiver<RunStatus>,
    /// The run has checkpoints. When it drains, it makes one more and ends its readers, unless the checkpoint cannot be written.
    checkpoints: bool,
    /// Requests for a lease.
    requests: Arc<AtomicU64>,
    _reports: Arc<AbortOnDropHandle<()>>,
}

/// Tells when leases of lost readers can be taken.
#[derive(Clone)]
pub(crate) struct LostLeases(pub(crate) watch::Receiver<RunStatus>);

impl LostLeases {
    /// Waits until a lost reader's lease can be taken. Cancel safe.
    pub(crate) async fn wait(&self) {
        if self.0.clone().wait_for(|status| status.returned_leases > 0).await.is_err() {
            // The run is ending.
            std::future::pending::<()>().await;
        }
    }
}

impl LeaseClient {
    /// The leases of a member in a run of `job`.
    pub(crate) fn new(member: Member, job: &Job) -> Self {
        let (progress, failed) = (Arc::new(LeaseProgress::new(receives_in_order(job))), Arc::default());
        let reports = member.io().spawn(send_reports(member.clone(), Arc::clone(&progress), Arc::clone(&failed)));
        let status = member.subscribe();
        let checkpoints = job.checkpoint.to.is_some();
        let reports = Arc::new(AbortOnDropHandle::new(reports));
        let lost = LostLeases(status.clone());
        Self { member, progress, failed, lost, status, checkpoints, requests: Arc::default(), _reports: reports }
    }

    pub(crate) fn progress(&self) -> &Arc<LeaseProgress> {
        &self.progress
    }

    pub(crate) fn lost(&self) -> &LostLeases {
        &self.lost
    }

    /// Records that a batch is done. If it was the last of its window, a report follows.
    pub(crate) fn batch_done(&self, id: BatchId) {
        self.progress.batch_done(id);
    }

    /// Whether rows of a window may become batches: see [`LeaseProgress::begin`].
    pub(crate) fn begin_window(&self, epoch: u32, mark: &WindowMark) -> bool {
        self.close_if_draining();
        self.progress.begin(epoch, mark.window, mark.term)
    }

    fn close_if_draining(&self) {
        if self.status.borrow().begins_no_windows(self.checkpoints) {
            self.progress.close();
        }
    }

    /// Waits until every window that is done is reported: the coordinator gives unreported windows of a process that leaves to
    /// other readers. Cancel safe.
    ///
    /// # Errors
    /// A report failed.
    pub(crate) async fn wait_until_reported(&self) -> Result<(), Fault> {
        tokio::select! {
            () = self.progress.wait_until_reported() => {}
            // A run is over only after all its windows are reported.
            _ = self.member.wait_until(|status| status.phase == RunPhase::Over) => {}
        }
        self.check_reported()
    }

    /// After [`LeaseProgress::close`] and the end of the pipeline: waits until the windows that are done are reported, and the rest of the
    /// leases is given back. Cancel safe.
    ///
    /// # Errors
    /// A report failed.
    pub(crate) async fn wait_until_given_back(&self) -> Result<(), Fault> {
        tokio::select! {
            () = self.progress.wait_until_given_back() => {}
            _ = self.member.wait_until(|status| status.phase == RunPhase::Over) => {}
        }
        self.check_reported()
    }

    /// Returns the fault of a failed report, once.
    fn check_reported(&self) -> Result<(), Fault> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    /// Asks for a lease until there is one, or there are no more.
    async fn wait_for_lease(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        self.member.wait_until_started().await?;
        loop {
            let returned_only = tokio::select! {
                biased;
                () = self.progress.wait_until_closed() => return Ok(None),
                () = self.progress.wait_for_room(MAX_UNSENT_LEASES) => false,
                // All trainers may wait for the rows of a lost lease, and then take no batches of this reader.
                () = self.lost.wait() => true,
            };
            self.check_reported()?;
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            let ask = LeaseRequest { member: self.member.id(), data: data.clone(), returned_only, number };
            match self.member.request("lease", &ask).await? {
                LeaseReply::Lease(lease) => {
                    tracing::debug!(?lease, returned_only, "leased");
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

/// Reports windows that are done, one report after the other: the coordinator takes the windows of a lease in their order.
async fn send_reports(member: Member, progress: Arc<LeaseProgress>, failed: Arc<Mutex<Option<Fault>>>) {
    loop {
        progress.wait_for_report().await;
        tokio::select! {
            () = progress.wait_for_urgent_report() => {}
            () = tokio::time::sleep(REPORT_INTERVAL) => {}
        }
        let Report { done: windows, gives_back } = progress.take_report();
        tracing::debug!(?windows, gives_back, "done");
        let completed = CompletedWindows { member: member.id(), windows, gives_back };
        if let Err(fault) = member.request::<_, ()>("complete", &completed).await {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
        }
        progress.reported();
    }
}

impl BatchRecord for LeaseClient {
    fn window_begins(&self, epoch: u32, mark: &WindowMark) -> bool {
        self.begin_window(epoch, mark)
    }

    fn batch_started(&self, batch: &TrainBatch) {
        let (id, rows) = (BatchId::of(batch), batch.rows as u64);
        // A batch of an earlier term is trained on, too: shards apply each batch once.
        self.progress.batch_sent(id, batch.window.term, rows, batch.closes);
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
    fn wants(&self, epoch: u32, window: u64) -> bool {
        self.close_if_draining();
        self.progress.wants(epoch, window)
    }

    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        tokio::select! {
            // The coordinator may have ended before it answers that there are no more leases.
            Ok(_) = self.member.wait_until(|status| status.phase == RunPhase::Over) => Ok(None),
            lease = self.wait_for_lease(data) => lease,
        }
    }
}
