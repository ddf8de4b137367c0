//! A process of a run, as seen by itself: it joins, says that it lives, and hears how far the run is.
//!
//! Comes in: the coordinator's address. Goes out: the process's incarnation, [`RunStatus`], leases. [`Member::join`] waits for the
//! coordinator; everything else asks it and waits for the answer, within the job's timeout.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forebay_actors::{Domain, Fault};
use forebay_connectors::{DataPlan, Lease, Leases};
use forebay_net::{Peer, Retry, runtime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::batches::lease_progress::LeaseProgress;
use super::leases::{LeaseReply, RowCounts};
use super::members::Role;
use super::messages::{
    CompletedLease, FailRequest, Failure, JoinRequest, LeaseRequest, MemberId, MemberRequest, RunPhase, RunStatus,
    job_digest,
};
use crate::flow::{BatchId, TrainBatch};
use crate::job::Job;
use crate::participation::BatchRecord;

/// A coordinator that is alive answers within this.
const DEADLINE: Duration = Duration::from_secs(10);

/// Between two looks at who is missing.
const MISSING_LOG_INTERVAL: Duration = Duration::from_secs(3);

/// Between two asks for work that may come back from a lost reader.
const LEASE_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Leases that a reader has at a time whose batches have not all left: one to read, one to read ahead. More would be taken
/// from readers that have none.
const MAX_UNSENT_LEASES: usize = 2;

/// A process that has joined a run. Clones are the same member; it stops saying that it lives with the last of them.
#[derive(Clone)]
pub(crate) struct Member {
    inner: Arc<Inner>,
}

struct Inner {
    id: MemberId,
    peer: Peer,
    timeout: Duration,
    status: watch::Receiver<RunStatus>,
    heartbeats: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.heartbeats.abort();
    }
}

impl Member {
    /// Joins as `rank` of `role`, reached by the others at `address`. Waits for the coordinator, with a log line every ten
    /// seconds, for as long as the job's timeout lasts.
    ///
    /// # Errors
    /// The coordinator does not answer, or refuses: another job, another run, a wrong token.
    pub(crate) async fn join(
        peer: Peer,
        role: Role,
        rank: u32,
        address: Option<String>,
        job: &Job,
    ) -> Result<Self, Fault> {
        let timeout = job.placement.timeout();
        let join = JoinRequest { role, rank, address, job: job_digest(job) };
        let what = format!("the coordinator at {}", peer.address());
        let id: MemberId =
            Retry::within(timeout).run(&what, || peer.action("coordinator.join", &join, DEADLINE)).await?;
        let first: RunStatus = peer.action("coordinator.heartbeat", &MemberRequest { member: id }, DEADLINE).await?;
        let (sender, status) = watch::channel(first);
        let lease = Duration::from_secs_f64(job.placement.lease_seconds);
        let every = (lease / 4).clamp(Duration::from_millis(50), Duration::from_millis(500));
        // A reader that nobody has heard of for a lease has lost its rows, so that it leaves nothing undone.
        let refused = (role == Role::Reader).then_some(lease);
        let heartbeats = tokio::spawn(send_heartbeats(
            peer.clone(),
            id,
            every,
            HeartbeatTimeouts { no_answer: timeout, refused },
            sender,
        ));
        let heartbeats = heartbeats.abort_handle();
        Ok(Self { inner: Arc::new(Inner { id, peer, timeout, status, heartbeats }) })
    }

    /// Role, rank, incarnation.
    pub(crate) fn id(&self) -> MemberId {
        self.inner.id
    }

    /// What was last heard.
    pub(crate) fn status(&self) -> RunStatus {
        self.inner.status.borrow().clone()
    }

    /// Hears on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<RunStatus> {
        self.inner.status.clone()
    }

    /// Waits until `holds`, or the run has failed.
    ///
    /// # Errors
    /// Why the run has failed.
    pub(crate) async fn wait_until(&self, holds: impl Fn(&RunStatus) -> bool) -> Result<RunStatus, Fault> {
        let mut status = self.subscribe();
        let status = status
            .wait_for(|status| matches!(status.phase, RunPhase::Failed(_)) || holds(status))
            .await
            .map_err(|_| Fault::internal("a member hears no status any more"))?
            .clone();
        match &status.phase {
            RunPhase::Failed(failure) => Err(failure.fault()),
            _ => Ok(status),
        }
    }

    /// Waits until all are there.
    pub(crate) async fn wait_until_started(&self) -> Result<RunStatus, Fault> {
        let mut status = self.subscribe();
        let mut logged = Vec::new();
        let log_missing = async {
            loop {
                let missing = status.borrow_and_update().missing.clone();
                if !missing.is_empty() && missing != logged {
                    tracing::info!("waiting for {}", missing.join(", "));
                    logged = missing;
                }
                tokio::time::sleep(MISSING_LOG_INTERVAL).await;
            }
        };
        tokio::select! {
            started = self.wait_until(|status| status.phase != RunPhase::Gathering) => started,
            () = log_missing => unreachable!("it loops for ever"),
        }
    }

    /// The run cannot go on because of `fault`.
    pub(crate) async fn fail(&self, fault: &Fault) {
        let failure = Failure { domain: fault.domain, message: fault.to_string() };
        if let Err(unheard) = self.ask::<_, ()>("fail", &FailRequest { member: self.inner.id, failure }).await {
            tracing::debug!(%unheard, "the coordinator does not hear of a fault");
        }
    }

    /// This process ends.
    pub(crate) async fn leave(&self) -> Result<(), Fault> {
        self.ask("leave", &MemberRequest { member: self.inner.id }).await
    }

    /// Has all readers take no more.
    pub(crate) async fn drain(&self) -> Result<(), Fault> {
        self.ask("drain", &MemberRequest { member: self.inner.id }).await
    }

    /// The model is saved: all processes may end.
    pub(crate) async fn over(&self) -> Result<(), Fault> {
        self.ask("over", &MemberRequest { member: self.inner.id }).await
    }

    async fn complete(&self, lease: Lease, counts: RowCounts) -> Result<(), Fault> {
        self.ask("complete", &CompletedLease { member: self.inner.id, lease, counts }).await
    }

    async fn ask<B: Serialize, R: DeserializeOwned>(&self, kind: &str, body: &B) -> Result<R, Fault> {
        let Inner { peer, timeout, .. } = &*self.inner;
        let (what, kind) = (format!("the coordinator at {}", peer.address()), format!("coordinator.{kind}"));
        Retry::within(*timeout).run(&what, || peer.action(&kind, body, DEADLINE)).await
    }
}

/// How long a member waits for a coordinator that does not answer.
struct HeartbeatTimeouts {
    /// Whatever the reason.
    no_answer: Duration,
    /// While its host says that nobody listens there; `None`: no less.
    refused: Option<Duration>,
}

/// Says that the process lives, and passes on what comes back.
async fn send_heartbeats(
    peer: Peer,
    member: MemberId,
    every: Duration,
    timeout: HeartbeatTimeouts,
    status: watch::Sender<RunStatus>,
) {
    let (mut silent_since, mut refused_since) = (None, None);
    let coordinator = format!("the coordinator at {}", peer.address());
    loop {
        tokio::time::sleep(every).await;
        let failure =
            match peer.action::<_, RunStatus>("coordinator.heartbeat", &MemberRequest { member }, DEADLINE).await {
                Ok(latest) => {
                    (silent_since, refused_since) = (None, None);
                    status.send_if_modified(|known| std::mem::replace(known, latest) != *known);
                    continue;
                }
                Err(fault) if fault.retryable => {
                    let now = tokio::time::Instant::now();
                    let no_answer = now - *silent_since.get_or_insert(now);
                    let refused = match timeout.refused {
                        Some(most) => {
                            refused_since = peer.refuses(every).await.then(|| refused_since.unwrap_or(now));
                            refused_since.is_some_and(|since| now - since >= most)
                        }
                        None => false,
                    };
                    // Once all is done, nobody need be there any more.
                    if matches!(status.borrow().phase, RunPhase::Over) {
                        return;
                    }
                    let message = if no_answer >= timeout.no_answer {
                        format!("{coordinator} has not answered for {:.0} s: {fault}", timeout.no_answer.as_secs_f64())
                    } else if refused {
                        format!("{coordinator} has ended, and so has the run: its log says how")
                    } else {
                        continue;
                    };
                    Failure { domain: Domain::External, message }
                }
                Err(fault) => Failure { domain: fault.domain, message: fault.to_string() },
            };
        status.send_modify(|known| known.phase = RunPhase::Failed(failure));
        return;
    }
}

/// The leases of this process: asked for one after the other, completed when all their batches are done.
#[derive(Clone)]
pub(crate) struct LeaseClient {
    member: Member,
    progress: Arc<LeaseProgress>,
    failed: Arc<Mutex<Option<Fault>>>,
    /// Leases that are done and that the coordinator has not heard of.
    unreported: Arc<watch::Sender<usize>>,
}

impl LeaseClient {
    pub(crate) fn new(member: Member) -> Self {
        Self { member, progress: Arc::default(), failed: Arc::default(), unreported: Arc::default() }
    }

    pub(crate) fn progress(&self) -> &LeaseProgress {
        &self.progress
    }

    /// Waits until there are leases that a reader has lost and nobody has taken. Cancel safe.
    pub(crate) async fn wait_for_lost_lease(&self) {
        if self.member.subscribe().wait_for(|status| status.lost_leases > 0).await.is_err() {
            // No status any more: the run is ending.
            std::future::pending::<()>().await;
        }
    }

    /// A batch is done; the lease that is done with it is completed, in the background.
    pub(crate) fn batch_done(&self, id: BatchId) {
        let Some((lease, counts)) = self.progress.batch_done(id) else { return };
        let (member, failed, unreported) =
            (self.member.clone(), Arc::clone(&self.failed), Arc::clone(&self.unreported));
        tracing::debug!(?lease, ?counts, "done");
        unreported.send_modify(|leases| *leases += 1);
        runtime().spawn(async move {
            if let Err(fault) = member.complete(lease, counts).await {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
            }
            unreported.send_modify(|leases| *leases -= 1);
        });
    }

    /// Waits until the coordinator has heard of every lease that is done: what it has not heard of when this process leaves, it
    /// gives to another. Cancel safe.
    ///
    /// # Errors
    /// It could not be told of one.
    pub(crate) async fn wait_until_reported(&self) -> Result<(), Fault> {
        let mut unreported = self.unreported.subscribe();
        tokio::select! {
            told = unreported.wait_for(|leases| *leases == 0) => drop(told),
            // Whoever ended the run knew of all.
            _ = self.member.wait_until(|status| status.phase == RunPhase::Over) => {}
        }
        self.check_reported()
    }

    /// The fault of a completion that could not be told, once.
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
                // All may wait for what another has lost, this reader's batches included.
                () = self.wait_for_lost_lease() => true,
            };
            self.check_reported()?;
            let ask = LeaseRequest { member: self.member.id(), data: data.clone(), lost_only };
            match self.member.ask("lease", &ask).await? {
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
