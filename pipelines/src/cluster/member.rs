//! The client of the coordinator in every process: it joins, sends heartbeats, and receives the [`RunStatus`].
//!
//! Every request is retried until the coordinator answers, for at most `placement.timeout_seconds`.

use std::sync::Arc;
use std::time::Duration;

use forebay_actors::{Domain, Fault, FaultKind, IoRuntime};
use forebay_batches::RowCounts;
use forebay_job::Job;
use forebay_net::{Peer, Retry};
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::members::Role;
use super::messages::{
    CannotStartRequest, EvaluationAt, EvaluationReply, FailRequest, Failure, JoinReply, JoinRequest, LeaveRequest,
    MemberId, MemberRequest, PlanReply, ProcessRequest, RunPhase, RunStatus, StopEarlyRequest,
};
use super::over_before::{OverBefore, run_over};
use super::refusals::Refusals;
use crate::checkpoint::{MadeCheckpoints, OriginCheckpoint, WindowLog};
use crate::columns::sampled_settings::SampledSettings;

/// A live coordinator answers a request within this time.
const DEADLINE: Duration = Duration::from_secs(10);

/// A process that ends before it has joined says so within this time.
const GONE_DEADLINE: Duration = Duration::from_secs(1);

/// The time between two requests for a plan.
const PLAN_POLL: Duration = Duration::from_millis(100);

/// The time between two log lines about missing members.
const MISSING_LOG_INTERVAL: Duration = Duration::from_secs(3);

/// A process that has joined a run. Clones are the same member; heartbeats stop when the last clone is dropped.
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

/// Tells the coordinator again and again that this process runs, before and after it has joined; and both tell each other whether the run
/// has `made` checkpoints.
pub(super) async fn send_signs_of_life(peer: Peer, process: ProcessRequest, made: MadeCheckpoints, lease: Duration) {
    let every = heartbeat_interval(lease);
    let deadline = DEADLINE.min(lease);
    loop {
        // This request ignores errors: other requests find out why the coordinator does not answer, or refuses.
        let process = ProcessRequest { made_under: made.under(), ..process.clone() };
        match peer.action::<_, Option<u64>>("coordinator.alive", &process, deadline).await {
            Ok(start) => start.into_iter().for_each(|start| made.are_there(start)),
            Err(fault) => tracing::debug!("{} {} could not say that it runs: {fault}", process.role, process.rank),
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = made.first() => {}
        }
    }
}

/// Several times within `placement.lease_seconds`.
fn heartbeat_interval(lease: Duration) -> Duration {
    (lease / 4).clamp(Duration::from_millis(50), Duration::from_millis(500))
}

impl Member {
    /// Asks the coordinator what this process continues from, until the coordinator knows. Returns the attempt and the checkpoint, in a run
    /// that is under way with the checkpoint's manifest as JSON. Waits for a coordinator that has never answered, because it may be started
    /// later. While the coordinator cannot be reached, asks `over` whether the run has ended.
    ///
    /// # Errors
    /// The coordinator does not answer within the job's timeout, or refuses: another job, another run, a wrong token. The coordinator has
    /// answered this reader before, and has ended since. The run is over, as the coordinator or `over` says: [`FaultKind::RunOver`].
    pub(super) async fn plan(
        peer: &Peer,
        process: &ProcessRequest,
        job: &Job,
        over: &OverBefore,
    ) -> Result<(u64, Option<(OriginCheckpoint, Option<String>)>), Fault> {
        let what = coordinator(peer);
        let mut refusals = Refusals::never();
        loop {
            let retry = Retry::within(job.placement.timeout());
            let asked = retry.run(&what, || async {
                let answer = ask(peer, "coordinator.plan", process, &refusals).await;
                let is_away = answer.as_ref().is_err_and(|fault| fault.retryable);
                if is_away {
                    over.check().await?
                }
                answer
            });
            let reply = asked.await?;
            refusals = Refusals::seen_by(process.role, job);
            match reply {
                PlanReply::Plan { attempt, checkpoint, manifest } => {
                    return Ok((attempt, checkpoint.map(|checkpoint| (checkpoint, manifest))));
                }
                PlanReply::Failed(failure) => return Err(failure.fault()),
                PlanReply::Over => return Err(run_over("the run has ended, and its model is saved")),
                PlanReply::Wait => tokio::time::sleep(PLAN_POLL).await,
            }
        }
    }

    /// Reports that this process cannot load what the attempt continues from because of `fault`, unless `fault` may pass. The run then
    /// fails, or begins a new attempt from an older checkpoint. Returns the fault to end with. Its kind is [`FaultKind::RolledBack`] if
    /// this process must ask for a plan again: after damage, even if the report did not arrive, because the coordinator's server cannot be
    /// reached for a moment whenever an attempt begins.
    pub(crate) async fn cannot_start(peer: &Peer, role: Role, rank: u32, attempt: u64, fault: Fault) -> Fault {
        if fault.domain == Domain::External {
            return fault;
        }
        let damaged = fault.kind == FaultKind::Damaged;
        let request = CannotStartRequest { role, rank, attempt, failure: Failure::of(&fault) };
        let what = coordinator(peer);
        let retry = Retry::within(DEADLINE);
        let told = retry.run(&what, || peer.action::<_, ()>("coordinator.cannot_start", &request, DEADLINE)).await;
        if let Err(unheard) = told {
            tracing::warn!(%unheard, %fault, "the coordinator could not be told that this process cannot start");
        }
        if damaged { Failure::rolled_back().fault() } else { fault }
    }

    /// Joins an attempt.
    ///
    /// # Errors
    /// As [`plan`](Self::plan). A fault of the kind [`FaultKind::RolledBack`] if the attempt is over.
    pub(crate) async fn join(peer: Peer, join: JoinRequest, job: &Job) -> Result<Self, Fault> {
        let (role, timeout) = (join.role, job.placement.timeout());
        let what = coordinator(&peer);
        let retry = Retry::within(timeout);
        // The coordinator has answered the request for a plan.
        let refusals = Refusals::seen_by(role, job);
        let reply = retry.run(&what, || ask(&peer, "coordinator.join", &join, &refusals)).await?;
        let id = match reply {
            JoinReply::Joined(id) => id,
            JoinReply::AttemptIsOver => return Err(Failure::rolled_back().fault()),
            JoinReply::Failed(failure) => return Err(failure.fault()),
        };
        // The coordinator may die between the two answers; its successor refuses the attempt that is over.
        let heartbeat = MemberRequest { member: id };
        let first: RunStatus = retry.run(&what, || ask(&peer, "coordinator.heartbeat", &heartbeat, &refusals)).await?;
        if first.attempt != id.attempt {
            return Err(Failure::rolled_back().fault());
        }
        let (sender, status) = watch::channel(first);
        let every = heartbeat_interval(Duration::from_secs_f64(job.placement.lease_seconds));
        let heartbeats = tokio::spawn(send_heartbeats(peer.clone(), id, every, timeout, refusals, sender));
        let heartbeats = heartbeats.abort_handle();
        Ok(Self { inner: Arc::new(Inner { id, peer, timeout, status, heartbeats }) })
    }

    /// This process's role, rank and incarnation.
    pub(crate) fn id(&self) -> MemberId {
        self.inner.id
    }

    /// The threads that requests run on.
    pub(crate) fn io(&self) -> &IoRuntime {
        self.inner.peer.io()
    }

    /// The last status received.
    pub(crate) fn status(&self) -> RunStatus {
        self.inner.status.borrow().clone()
    }

    /// Receives every new status.
    pub(crate) fn subscribe(&self) -> watch::Receiver<RunStatus> {
        self.inner.status.clone()
    }

    /// Waits until the status fulfils `holds`, or the run has failed. Cancel safe.
    ///
    /// # Errors
    /// Why the run has failed.
    pub(crate) async fn wait_until(&self, holds: impl Fn(&RunStatus) -> bool) -> Result<RunStatus, Fault> {
        let mut status = self.subscribe();
        let status = status
            .wait_for(|status| matches!(status.phase, RunPhase::Failed(_)) || holds(status))
            .await
            .map_err(|_| Fault::internal("a member receives no run status any more"))?
            .clone();
        match &status.phase {
            RunPhase::Failed(failure) => Err(failure.fault()),
            _ => Ok(status),
        }
    }

    /// Waits until all members have joined, and logs the names of those that have not.
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
            () = log_missing => unreachable!("it loops forever"),
        }
    }

    /// What a sample of the rows decided in this run, once it has started.
    pub(crate) async fn sampled_settings(&self) -> Result<SampledSettings, Fault> {
        self.request("sampled_settings", &MemberRequest { member: self.inner.id }).await
    }

    /// Reports that this process cannot go on because of `fault`. Returns the fault to end with. If the run has begun a new attempt, that
    /// is not `fault`.
    pub(crate) async fn fail(&self, fault: Fault) -> Fault {
        if fault.kind == FaultKind::RolledBack {
            return fault;
        }
        let failure = Failure::of(&fault);
        let Err(unheard) = self.request::<_, ()>("fail", &FailRequest { member: self.inner.id, failure }).await else {
            return fault;
        };
        tracing::debug!(%unheard, "a fault could not be reported to the coordinator");
        match self.request::<_, RunStatus>("heartbeat", &MemberRequest { member: self.inner.id }).await {
            Ok(status) if status.attempt != self.inner.id.attempt => {
                tracing::info!(%fault, "this process could not go on, and the run has begun a new attempt");
                Failure::rolled_back().fault()
            }
            _ => fault,
        }
    }

    /// As [`cannot_start`](Self::cannot_start), of a process that has joined.
    pub(crate) async fn report_failure(&self, fault: Fault) -> Fault {
        let Inner { id, peer, .. } = &*self.inner;
        Self::cannot_start(peer, id.role, id.rank, id.attempt, fault).await
    }

    /// Says that a process that was asked to shut down does so before it has joined, unless the coordinator does not answer at once.
    pub(super) async fn gone(peer: &Peer, process: &ProcessRequest) {
        if let Err(fault) = peer.action::<_, ()>("coordinator.gone", process, GONE_DEADLINE).await {
            tracing::debug!(%fault, "the coordinator could not be told that this process ends");
        }
    }

    /// Asks whether this process, which was asked to shut down, may leave while the run goes on. Else the run must drain.
    pub(super) async fn leaving(&self) -> Result<bool, Fault> {
        self.request("leaving", &MemberRequest { member: self.inner.id }).await
    }

    /// Reports that this process ends. `done`: see [`LeaveRequest`].
    pub(super) async fn leave(&self, done: Vec<WindowLog>) -> Result<(), Fault> {
        self.request("leave", &LeaveRequest { member: self.inner.id, done }).await
    }

    /// Asks all readers to take no more leases.
    pub(crate) async fn drain(&self) -> Result<(), Fault> {
        self.request("drain", &MemberRequest { member: self.inner.id }).await
    }

    /// Returns a function that tells the coordinator that the last checkpoint of the run cannot be written, so that the run ends as one
    /// without checkpoints. The function returns at once, and does not keep the heartbeats alive.
    pub(crate) fn drains_without_checkpoint(&self) -> Box<dyn Fn() + Send + Sync> {
        let Inner { id, peer, timeout, .. } = &*self.inner;
        let (request, peer, timeout) = (MemberRequest { member: *id }, peer.clone(), *timeout);
        Box::new(move || {
            let peer = peer.clone();
            peer.io().clone().spawn(async move {
                let (what, kind) = (coordinator(&peer), "coordinator.without_checkpoint");
                let tell = || peer.action::<_, ()>(kind, &request, DEADLINE);
                if let Err(fault) = Retry::within(timeout).run(&what, tell).await {
                    tracing::warn!(
                        "the coordinator could not be told that the last checkpoint is not written: {fault}"
                    );
                }
            });
        })
    }

    /// Says that the trainers train on no more batches. `trained`: what the run has trained on.
    pub(crate) async fn stop_early(&self, trained: RowCounts) -> Result<(), Fault> {
        self.request("stop_early", &StopEarlyRequest { member: self.inner.id, trained }).await
    }

    /// Says that this process, the first trainer, has evaluated the model after `rows` rows, or goes on without.
    pub(super) async fn evaluated(&self, rows: u64) -> Result<(), Fault> {
        self.request("evaluated", &EvaluationAt { member: self.inner.id, rows }).await
    }

    /// Returns a function that waits until the first trainer has evaluated the model after so many rows, and returns whether the training
    /// stops there. The function does not keep the heartbeats alive.
    pub(crate) fn awaits_evaluations(
        &self,
    ) -> impl Fn(u64) -> BoxFuture<'static, Result<bool, Fault>> + Send + Sync + use<> {
        let Inner { id: member, peer, timeout, status, .. } = &*self.inner;
        let (member, peer, timeout, status) = (*member, peer.clone(), *timeout, status.clone());
        move |rows| {
            let (request, peer, status) = (EvaluationAt { member, rows }, peer.clone(), status.clone());
            let failed = move || match &status.borrow().phase {
                RunPhase::Failed(failure) => Some(failure.fault()),
                _ => None,
            };
            let (io, retry) = (peer.io().clone(), Retry::within(timeout).unless(failed));
            // The caller's thread has no runtime of its own.
            let answered = AbortOnDropHandle::new(io.spawn(async move {
                let what = coordinator(&peer);
                loop {
                    let ask = || peer.action("coordinator.await_evaluation", &request, DEADLINE);
                    match retry.run(&what, ask).await? {
                        EvaluationReply::Wait => {}
                        EvaluationReply::GoOn => return Ok(false),
                        EvaluationReply::Stop => return Ok(true),
                    }
                }
            }));
            let panicked = |e| Fault::of_task("the request for the end of an evaluation panicked", e);
            Box::pin(async move { answered.await.map_err(panicked)? })
        }
    }

    /// The model is saved: all processes may end.
    pub(crate) async fn over(&self) -> Result<(), Fault> {
        self.request("over", &MemberRequest { member: self.inner.id }).await
    }

    /// Sends a request to the coordinator once.
    pub(crate) async fn request_once<B: Serialize, R: DeserializeOwned>(
        &self,
        kind: &str,
        body: &B,
    ) -> Result<R, Fault> {
        self.inner.peer.action(&format!("coordinator.{kind}"), body, DEADLINE).await
    }

    /// Sends a request to the coordinator, and retries it within the job's timeout.
    pub(super) async fn request<B: Serialize, R: DeserializeOwned>(&self, kind: &str, body: &B) -> Result<R, Fault> {
        let Inner { peer, timeout, .. } = &*self.inner;
        let (what, kind) = (coordinator(peer), format!("coordinator.{kind}"));
        Retry::within(*timeout).run(&what, || peer.action(&kind, body, DEADLINE)).await
    }
}

/// The coordinator as messages name it.
fn coordinator(peer: &Peer) -> String {
    format!("the coordinator at {}", peer.address())
}

/// Sends a request to the coordinator once.
///
/// # Errors
/// An external fault that is not retryable if the coordinator has ended.
async fn ask<B: Serialize + ?Sized, R: DeserializeOwned>(
    peer: &Peer,
    kind: &str,
    body: &B,
    refusals: &Refusals,
) -> Result<R, Fault> {
    let answer = peer.action(kind, body, DEADLINE).await;
    let is_away = answer.as_ref().is_err_and(|fault: &Fault| fault.retryable);
    match refusals.coordinator_has_ended(peer, is_away).await {
        true => Err(Fault::external(has_ended(peer))),
        false => answer,
    }
}

fn has_ended(peer: &Peer) -> String {
    format!("{} has ended, and so has the run: its log says how", coordinator(peer))
}

/// Time between two warnings that the coordinator does not answer.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Sends heartbeats and passes on the statuses that come back, until the coordinator refuses, has ended, or does not answer for `timeout`.
async fn send_heartbeats(
    peer: Peer,
    member: MemberId,
    every: Duration,
    timeout: Duration,
    refusals: Refusals,
    status: watch::Sender<RunStatus>,
) {
    let (mut silent_since, mut warned) = (None, None);
    loop {
        tokio::time::sleep(every).await;
        let answer = peer.action::<_, RunStatus>("coordinator.heartbeat", &MemberRequest { member }, DEADLINE).await;
        let is_away = answer.as_ref().is_err_and(|fault| fault.retryable);
        let ended = refusals.coordinator_has_ended(&peer, is_away).await;
        let failure = match answer {
            Ok(latest) if latest.attempt != member.attempt => Failure::rolled_back(),
            Ok(latest) => {
                (silent_since, warned) = (None, None);
                status.send_if_modified(|known| std::mem::replace(known, latest) != *known);
                continue;
            }
            Err(fault) if fault.retryable => {
                let now = Instant::now();
                let no_answer = now - *silent_since.get_or_insert(now);
                // Once the run is over, the coordinator may end first.
                if matches!(status.borrow().phase, RunPhase::Over) {
                    return;
                }
                let message = if no_answer >= timeout {
                    format!("{} has not answered for {:.0} s: {fault}", coordinator(&peer), timeout.as_secs_f64())
                } else if ended {
                    has_ended(&peer)
                } else {
                    if now - *warned.get_or_insert(now) >= WARN_EVERY {
                        warned = Some(now);
                        let (seconds, most) = (no_answer.as_secs(), timeout.as_secs_f64());
                        tracing::warn!(
                            "{} has not answered for {seconds} s; this process waits for up to {most:.0} s",
                            coordinator(&peer)
                        );
                    }
                    continue;
                };
                Failure { kind: FaultKind::Unreachable, ..Failure::new(Domain::External, message) }
            }
            Err(fault) => Failure::of(&fault),
        };
        status.send_modify(|known| known.phase = RunPhase::Failed(failure));
        return;
    }
}

#[cfg(test)]
mod tests;
