//! How a process ends its membership: it leaves, cannot go on, has saved the model, or the run is over.

use std::pin::pin;
use std::time::Duration;

use forebay_actors::{Domain, Fault, FaultKind};
use forebay_batches::RowCounts;

use super::super::TICK;
use super::super::departure::Departure;
use super::super::members::Role;
use super::super::messages::RunPhase;
use super::ClusterSession;
use crate::checkpoint::WindowLog;

/// Requests in flight when a process ends may take this long.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

impl ClusterSession {
    /// Leaves the run, which goes on: this trainer has done all that it has taken, `done` in windows that may be open. Returns the fault to
    /// end with: of the kind [`FaultKind::Drained`], or why the run has failed or has begun a new attempt.
    pub(crate) fn leave_early(&self, done: Vec<WindowLog>, departure: &Departure) -> Fault {
        let fault = match self.io.block_on(self.left(done)) {
            Ok(()) => {
                let name = self.name();
                let left = format!("{name} was asked to shut down and has left the run, which goes on without it");
                Fault::external(left).kind(FaultKind::Drained)
            }
            Err(fault) => fault,
        };
        departure.close();
        fault
    }

    /// Reports that the run cannot go on because of `fault`: all members end with it. Returns the fault that this process ends
    /// with, which is of the kind [`FaultKind::RolledBack`] if the run has begun a new attempt.
    pub fn fail(&self, fault: Fault) -> Fault {
        self.io.block_on(async {
            let fault = match self.status().phase {
                // The coordinator knows the failure, and may have ended since.
                RunPhase::Failed(failure) if failure.kind == FaultKind::RolledBack => {
                    tracing::info!(%fault, "this process could not go on, and the run has begun a new attempt");
                    failure.fault()
                }
                RunPhase::Failed(_) => fault,
                _ => {
                    let reported = tokio::time::timeout(SHUTDOWN_DEADLINE, self.member.fail(fault.clone())).await;
                    reported.unwrap_or_else(|_| {
                        tracing::debug!("the coordinator does not answer");
                        fault
                    })
                }
            };
            if let Some(coordinator) = &self.coordinator {
                coordinator.wait_until_notified().await;
            }
            fault
        })
    }

    /// Reports that this process has joined, has trained on nothing, and cannot start because of `fault`. A trainer that the run can do
    /// without leaves after a fault of a disk or a network, and when it is asked to shut down: a later process of its rank may join.
    /// Returns the fault to end with, as [`fail`](Self::fail).
    pub(crate) fn cannot_start(&self, fault: Fault) -> Fault {
        // A run that has failed because of damage has said so to its other processes, whose own parts are whole.
        let of_run = || matches!(self.status().phase, RunPhase::Failed(failure) if failure.kind == FaultKind::Damaged);
        match fault.kind {
            FaultKind::Damaged if !of_run() => self.io.block_on(self.member.report_failure(fault)),
            FaultKind::RolledBack => self.fail(fault),
            _ if self.may_leave && fault.domain == Domain::External => self.leave_unused(fault),
            _ => self.fail(fault),
        }
    }

    fn leave_unused(&self, fault: Fault) -> Fault {
        if matches!(self.status().phase, RunPhase::Failed(_)) {
            return self.fail(fault);
        }
        let name = self.name();
        let left = self.io.block_on(async {
            let left = tokio::time::timeout(SHUTDOWN_DEADLINE, self.left(Vec::new())).await;
            left.unwrap_or_else(|_| Err(Fault::external("the coordinator does not answer")))
        });
        match left {
            Ok(()) => tracing::info!("{name} has left before its first batch: the run goes on without it"),
            Err(rolled_back) if rolled_back.kind == FaultKind::RolledBack => return rolled_back,
            Err(unheard) => tracing::debug!(%unheard, "the coordinator could not be told that this process ends"),
        }
        fault
    }

    /// Reports that this trainer has left, and has done `done` in windows that may be open.
    ///
    /// # Errors
    /// Why the run has failed or has begun a new attempt; else why the coordinator was not told.
    async fn left(&self, done: Vec<WindowLog>) -> Result<(), Fault> {
        let mut failed = pin!(self.member.wait_until(|_| false));
        let left = tokio::select! {
            biased;
            Err(failed) = &mut failed => return Err(failed),
            left = self.member.leave(done) => left,
        };
        match left {
            Ok(()) => Ok(()),
            // If the run has begun a new attempt, a heartbeat says so.
            Err(fault) => match tokio::time::timeout(SHUTDOWN_DEADLINE, failed).await {
                Ok(Err(failed)) => Err(failed),
                _ => Err(fault),
            },
        }
    }

    /// Returns a function that tells the other trainers that the evaluation after so many rows is over. The function blocks.
    pub(crate) fn evaluated(&self) -> impl Fn(u64) -> Result<(), Fault> + Send + use<> {
        let (io, member) = (self.io.clone(), self.member.clone());
        move |rows| io.block_on(member.evaluated(rows))
    }

    /// Returns a function that ends the training of the run, whose only or first trainer is this process, after so many rows and batches.
    /// The function returns at once.
    pub(crate) fn stops_early(&self) -> impl Fn(RowCounts) + Send + use<> {
        let (io, member) = (self.io.clone(), self.member.clone());
        move |trained| {
            let member = member.clone();
            io.spawn(async move {
                match member.stop_early(trained).await {
                    Err(fault) if fault.kind != FaultKind::RolledBack => {
                        tracing::warn!(
                            "the coordinator could not be told that the training has stopped early: {fault}"
                        );
                    }
                    _ => {}
                }
            });
        }
    }

    /// Reports that the model is saved, so that all processes may end; then ends this one.
    ///
    /// # Errors
    /// Why the run has failed meanwhile; else why the coordinator was not told.
    pub fn over(self) -> Result<(), Fault> {
        self.io.block_on(async {
            tokio::select! {
                biased;
                failed = self.member.wait_until(|status| status.phase == RunPhase::Over) => failed.map(drop),
                over = self.member.over() => over,
            }
        })?;
        self.end();
        Ok(())
    }

    /// Ends this process; the run goes on.
    pub fn leave(self) {
        let knows_the_end = match self.member.status().phase {
            // Others wait for this process to listen again: it drops its connections at once.
            RunPhase::Failed(failure) if failure.kind == FaultKind::RolledBack => return,
            // The coordinator has said so, and may have ended since.
            RunPhase::Over | RunPhase::Failed(_) => true,
            _ => false,
        };
        if !knows_the_end {
            let left = self
                .io
                .block_on(async { tokio::time::timeout(SHUTDOWN_DEADLINE, self.member.leave(Vec::new())).await });
            if !matches!(left, Ok(Ok(()))) {
                tracing::debug!("the coordinator could not be told that this process ends");
            }
        }
        self.end();
    }

    /// Waits until the run is over or `stop`, which it calls several times a second, returns true; then ends this process. A trainer ends
    /// only when every row is trained on: until then, others may wait for its part of a checkpoint. If a process with state is lost before
    /// the model is saved, the run needs this process again.
    ///
    /// # Errors
    /// Why the run has failed; a fault of the kind [`FaultKind::RolledBack`] if the run has begun a new attempt.
    pub fn stay_until_over(self, stop: impl Fn() -> bool) -> Result<(), Fault> {
        self.health.waiting("the end of the run");
        self.io.block_on(async {
            let mut over = pin!(self.member.wait_until(|status| status.phase == RunPhase::Over));
            let may_leave = || self.member.id().role == Role::Reader || self.status().phase == RunPhase::Finished;
            while !(stop() && may_leave()) {
                tokio::select! {
                    ended = &mut over => return ended.map(drop),
                    () = tokio::time::sleep(TICK) => {}
                }
            }
            Ok(())
        })?;
        self.leave();
        Ok(())
    }

    pub(crate) fn end(mut self) {
        self.health.waiting("ending");
        self.io.block_on(async {
            if let Some(coordinator) = &self.coordinator {
                coordinator.wait_until_notified().await;
            }
            if let Some(server) = self.server.server.take() {
                server.stop(SHUTDOWN_DEADLINE).await;
            }
        });
    }
}
