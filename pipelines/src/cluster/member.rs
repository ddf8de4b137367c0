//! A process of a run, as seen by itself: it joins, says that it lives, and hears how far the run is.
//!
//! Comes in: the coordinator's address. Goes out: the process's incarnation, [`RunStatus`], leases. [`Member::join`] waits for the
//! coordinator; everything else asks it and waits for the answer, within the job's patience.

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

use super::batches::tracker::Tracker;
use super::coordinator::digest;
use super::leases::RowCounts;
use super::members::Role;
use super::messages::{Ask, Beat, Complete, Fail, Failure, Given, Join, MemberId, RunPhase, RunStatus};
use crate::flow::BatchId;
use crate::job::Job;

/// A coordinator that is alive answers within this.
const DEADLINE: Duration = Duration::from_secs(10);

/// Between two looks at who is missing.
const TELLING: Duration = Duration::from_secs(3);

/// Between two asks for work that may come back from a lost reader.
const AGAIN: Duration = Duration::from_millis(200);

/// Leases that a reader has at a time whose batches have not all left: one to read, one to read ahead. More would be taken
/// from readers that have none.
const AHEAD: usize = 2;

/// A process that has joined a run. Clones are the same member; it stops saying that it lives with the last of them.
#[derive(Clone)]
pub(crate) struct Member {
    inner: Arc<Inner>,
}

struct Inner {
    me: MemberId,
    peer: Peer,
    patience: Duration,
    news: watch::Receiver<RunStatus>,
    beats: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.beats.abort();
    }
}

impl Member {
    /// Joins as `rank` of `role`, reached by the others at `address`. Waits for the coordinator, with a log line every ten
    /// seconds, for as long as the job's patience lasts.
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
        let patience = job.placement.timeout();
        let join = Join { role, rank, address, job: digest(job) };
        let what = format!("the coordinator at {}", peer.address());
        let me: MemberId =
            Retry::within(patience).run(&what, || peer.action("coordinator.join", &join, DEADLINE)).await?;
        let first: RunStatus = peer.action("coordinator.beat", &Beat { me }, DEADLINE).await?;
        let (sender, news) = watch::channel(first);
        let lease = Duration::from_secs_f64(job.placement.lease_seconds);
        let every = (lease / 4).clamp(Duration::from_millis(50), Duration::from_millis(500));
        // A reader that nobody has heard of for a lease has lost its rows, so that it leaves nothing undone.
        let refused = (role == Role::Reader).then_some(lease);
        let beats = tokio::spawn(beat(peer.clone(), me, every, Patience { silent: patience, refused }, sender));
        let beats = beats.abort_handle();
        Ok(Self { inner: Arc::new(Inner { me, peer, patience, news, beats }) })
    }

    /// Role, rank, incarnation.
    pub(crate) fn me(&self) -> MemberId {
        self.inner.me
    }

    /// What was last heard.
    pub(crate) fn news(&self) -> RunStatus {
        self.inner.news.borrow().clone()
    }

    /// Hears on.
    pub(crate) fn watch(&self) -> watch::Receiver<RunStatus> {
        self.inner.news.clone()
    }

    /// Waits until `holds`, or the run has failed.
    ///
    /// # Errors
    /// Why the run has failed.
    pub(crate) async fn until(&self, holds: impl Fn(&RunStatus) -> bool) -> Result<RunStatus, Fault> {
        let mut news = self.watch();
        let news = news
            .wait_for(|news| matches!(news.phase, RunPhase::Failed(_)) || holds(news))
            .await
            .map_err(|_| Fault::internal("a member hears no news any more"))?
            .clone();
        match &news.phase {
            RunPhase::Failed(failure) => Err(failure.fault()),
            _ => Ok(news),
        }
    }

    /// Waits until all are there.
    pub(crate) async fn begun(&self) -> Result<RunStatus, Fault> {
        let mut news = self.watch();
        let mut told = Vec::new();
        let tell = async {
            loop {
                let missing = news.borrow_and_update().missing.clone();
                if !missing.is_empty() && missing != told {
                    tracing::info!("waiting for {}", missing.join(", "));
                    told = missing;
                }
                tokio::time::sleep(TELLING).await;
            }
        };
        tokio::select! {
            begun = self.until(|news| news.phase != RunPhase::Gathering) => begun,
            () = tell => unreachable!("it tells for ever"),
        }
    }

    /// The run cannot go on because of `fault`.
    pub(crate) async fn fail(&self, fault: &Fault) {
        let failure = Failure { domain: fault.domain, message: fault.to_string() };
        if let Err(unheard) = self.ask::<_, ()>("fail", &Fail { me: self.inner.me, failure }).await {
            tracing::debug!(%unheard, "the coordinator does not hear of a fault");
        }
    }

    /// This process ends.
    pub(crate) async fn leave(&self) -> Result<(), Fault> {
        self.ask("leave", &Beat { me: self.inner.me }).await
    }

    /// Has all readers take no more.
    pub(crate) async fn drain(&self) -> Result<(), Fault> {
        self.ask("drain", &Beat { me: self.inner.me }).await
    }

    /// The model is saved: all processes may end.
    pub(crate) async fn over(&self) -> Result<(), Fault> {
        self.ask("over", &Beat { me: self.inner.me }).await
    }

    async fn complete(&self, lease: Lease, account: RowCounts) -> Result<(), Fault> {
        self.ask("complete", &Complete { me: self.inner.me, lease, account }).await
    }

    async fn ask<B: Serialize, R: DeserializeOwned>(&self, kind: &str, body: &B) -> Result<R, Fault> {
        let Inner { peer, patience, .. } = &*self.inner;
        let (what, kind) = (format!("the coordinator at {}", peer.address()), format!("coordinator.{kind}"));
        Retry::within(*patience).run(&what, || peer.action(&kind, body, DEADLINE)).await
    }
}

/// How long a member waits for a coordinator that does not answer.
struct Patience {
    /// Whatever the reason.
    silent: Duration,
    /// While its host says that nobody listens there; `None`: no less.
    refused: Option<Duration>,
}

/// Says that the process lives, and passes on what comes back.
async fn beat(peer: Peer, me: MemberId, every: Duration, patience: Patience, news: watch::Sender<RunStatus>) {
    let (mut silent_since, mut refused_since) = (None, None);
    let coordinator = format!("the coordinator at {}", peer.address());
    loop {
        tokio::time::sleep(every).await;
        let failure = match peer.action::<_, RunStatus>("coordinator.beat", &Beat { me }, DEADLINE).await {
            Ok(latest) => {
                (silent_since, refused_since) = (None, None);
                news.send_if_modified(|known| std::mem::replace(known, latest) != *known);
                continue;
            }
            Err(fault) if fault.retryable => {
                let now = tokio::time::Instant::now();
                let silent = now - *silent_since.get_or_insert(now);
                let refused = match patience.refused {
                    Some(most) => {
                        refused_since = peer.refuses(every).await.then(|| refused_since.unwrap_or(now));
                        refused_since.is_some_and(|since| now - since >= most)
                    }
                    None => false,
                };
                // Once all is done, nobody need be there any more.
                if matches!(news.borrow().phase, RunPhase::Over) {
                    return;
                }
                let message = if silent >= patience.silent {
                    format!("{coordinator} has not answered for {:.0} s: {fault}", patience.silent.as_secs_f64())
                } else if refused {
                    format!("{coordinator} has ended, and so has the run: its log says how")
                } else {
                    continue;
                };
                Failure { domain: Domain::External, message }
            }
            Err(fault) => Failure { domain: fault.domain, message: fault.to_string() },
        };
        news.send_modify(|known| known.phase = RunPhase::Failed(failure));
        return;
    }
}

/// The leases of this process: asked for one after the other, completed when all their batches are done.
#[derive(Clone)]
pub(crate) struct Leaseholder {
    member: Member,
    tracker: Arc<Tracker>,
    failed: Arc<Mutex<Option<Fault>>>,
    /// Leases that are done and that the coordinator has not heard of.
    untold: Arc<watch::Sender<usize>>,
}

impl Leaseholder {
    pub(crate) fn new(member: Member) -> Self {
        Self { member, tracker: Arc::default(), failed: Arc::default(), untold: Arc::default() }
    }

    pub(crate) fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Waits until there are leases that a reader has lost and nobody has taken. Cancel safe.
    pub(crate) async fn lost(&self) {
        if self.member.watch().wait_for(|news| news.lost > 0).await.is_err() {
            // No news any more: the run is ending.
            std::future::pending::<()>().await;
        }
    }

    /// A batch is done; the lease that is done with it is completed, in the background.
    pub(crate) fn done(&self, id: BatchId) {
        let Some((lease, account)) = self.tracker.done(id) else { return };
        let (member, failed, untold) = (self.member.clone(), Arc::clone(&self.failed), Arc::clone(&self.untold));
        tracing::debug!(?lease, ?account, "done");
        untold.send_modify(|leases| *leases += 1);
        runtime().spawn(async move {
            if let Err(fault) = member.complete(lease, account).await {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
            }
            untold.send_modify(|leases| *leases -= 1);
        });
    }

    /// Waits until the coordinator has heard of every lease that is done: what it has not heard of when this process leaves, it
    /// gives to another. Cancel safe.
    ///
    /// # Errors
    /// It could not be told of one.
    pub(crate) async fn told(&self) -> Result<(), Fault> {
        let mut untold = self.untold.subscribe();
        tokio::select! {
            told = untold.wait_for(|leases| *leases == 0) => drop(told),
            // Whoever ended the run knew of all.
            _ = self.member.until(|news| news.phase == RunPhase::Over) => {}
        }
        self.check_told()
    }

    /// The fault of a completion that could not be told, once.
    fn check_told(&self) -> Result<(), Fault> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

#[async_trait]
impl Leases for Leaseholder {
    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        self.member.begun().await?;
        loop {
            let lost_only = tokio::select! {
                biased;
                () = self.tracker.closed() => return Ok(None),
                () = self.tracker.room(AHEAD) => false,
                // All may wait for what another has lost, this reader's batches included.
                () = self.lost() => true,
            };
            self.check_told()?;
            let ask = Ask { me: self.member.me(), data: data.clone(), lost_only };
            match self.member.ask("lease", &ask).await? {
                Given::Lease(lease) => {
                    tracing::debug!(?lease, lost_only, "leased");
                    self.tracker.begin(&lease);
                    return Ok(Some(lease));
                }
                Given::Finished => return Ok(None),
                Given::Wait => tokio::select! {
                    () = self.tracker.closed() => {}
                    () = tokio::time::sleep(AGAIN) => {}
                },
            }
        }
    }
}
