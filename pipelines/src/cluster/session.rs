//! A process joins a run: its role, rank and addresses ([`ProcessConfig`]), and its membership with server and connections
//! ([`ClusterSession`]). `session/joining.rs` begins it, `session/ending.rs` ends it.

mod ending;
mod joining;

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_actors::{Control, Fault, FaultKind, IoRuntime};
use forebay_job::Job;
use forebay_net::{Dialer, Health, Peer, Retry, SecurityFiles, Server};
use forebay_ps::{TableClient, TableConfig, remote};
use futures::FutureExt as _;
use tokio_util::task::AbortOnDropHandle;

use super::TICK;
use super::coordinator::Coordinator;
use super::departure::Departure;
use super::member::Member;
use super::members::{self, Role};
use super::messages::{RunPhase, RunStatus};
use super::ps_snapshots::PsSnapshots;
use super::timelines::{self, ProcessTimeline};
use crate::checkpoint::MadeCheckpoints;
use crate::columns::sampled_settings::SampledSettings;

/// The coordinator's default port.
pub const DEFAULT_PORT: u16 = 7600;

/// A process that does not reach a ps or a trainer goes on trying for this long after the process, or the run, was asked to shut down.
pub(crate) const UNREACHED: Duration = Duration::from_secs(5);

/// The place of one process in a run.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The process's role.
    pub role: Role,
    /// Its rank among the processes of its role, from 0.
    pub rank: u32,
    /// Where it listens. Port 0: any free port. Readers do not listen.
    pub listen: SocketAddr,
    /// Where others reach it, if that is not `listen`: `HOST:PORT`, or `HOST` for the port that it listens on.
    pub advertise: Option<String>,
    /// Where the coordinator is reached: `HOST:PORT`. The coordinator itself ignores it.
    pub coordinator: String,
    /// The name of the run.
    pub run: String,
    /// TLS and token.
    pub security: SecurityFiles,
    /// Whether the run may continue from the newest checkpoint in `checkpoint.to`, as the coordinator asks; and whether this process may be
    /// one that was killed after the end of the run.
    pub resume: bool,
    /// Whether the run was asked to drain before this process was started. Only the coordinator asks.
    pub drains: bool,
    /// Whether the run has made checkpoints before this process was started. Then the coordinator does not begin without one.
    pub has_checkpoints: bool,
    /// Whether a program chose the address and restarts the process. Then no user can correct an address that is taken.
    pub supervised: bool,
}

impl ProcessConfig {
    /// Whether this process runs the coordinator: the first ps does, or the trainer if there is no ps.
    pub fn coordinates(&self, job: &Job) -> bool {
        let first = if job.placement.ps > 0 { Role::Ps } else { Role::Trainer };
        self.role == first && self.rank == 0
    }

    /// Whether the run goes on without this trainer, if it is asked to shut down.
    pub fn may_leave(&self, job: &Job) -> bool {
        self.role == Role::Trainer && self.rank > 0 && job.trainers_may_leave()
    }
}

/// One start of a process, in all attempts of its run.
pub struct ClusterProcess {
    config: ProcessConfig,
    /// A random number of this start.
    nonce: u64,
    /// Lives as long as the process: it knows the members of earlier attempts.
    coordinator: OnceLock<Coordinator>,
    /// Tells the coordinator that this process runs.
    signs_of_life: OnceLock<AbortOnDropHandle<()>>,
    /// What the process knows of the checkpoints of the run.
    made: MadeCheckpoints,
    stop: Stop,
}

/// Whether the process was asked to shut down.
type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

impl ClusterProcess {
    /// A process that has not joined yet.
    pub fn new(config: ProcessConfig) -> Self {
        Self {
            config,
            nonce: forebay_base::random_seed(),
            coordinator: OnceLock::new(),
            signs_of_life: OnceLock::new(),
            made: MadeCheckpoints::default(),
            stop: Arc::new(|| false),
        }
    }

    /// Calls `stop` several times a second while the process waits for others: `stop` says whether the process was asked to shut down. If
    /// so, it ends with a fault of the kind [`FaultKind::Drained`]; a trainer that has joined and that the run cannot do without asks the
    /// run to drain.
    #[must_use]
    pub fn stopped_by(self, stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { stop: Arc::new(stop), ..self }
    }

    /// Its role, rank and addresses.
    pub fn config(&self) -> &ProcessConfig {
        &self.config
    }

    /// Whether the process has taken part in an attempt of the run, or is about to. `attempt` of [`take_part`](Self::take_part) asks.
    pub(crate) fn has_joined_before(&self) -> bool {
        self.signs_of_life.get().is_some()
    }

    /// The fault of a process that was asked to shut down, if it was.
    pub(crate) fn asked_to_shut_down(&self) -> Option<Fault> {
        told((self.stop)(), members::name((self.config.role, self.config.rank)))
    }

    /// Runs `attempt`, and again each time that the run begins a new attempt. `attempt` joins the run and takes part until it is over.
    ///
    /// # Errors
    /// What `attempt` returns, unless its kind is [`FaultKind::RolledBack`]. The kind [`FaultKind::RunOver`] says that the run has ended
    /// with its model, and this process has nothing to do.
    pub fn take_part<T>(&self, mut attempt: impl FnMut(&Self) -> Result<T, Fault>) -> Result<T, Fault> {
        loop {
            match attempt(self) {
                Err(fault) if fault.kind == FaultKind::RolledBack => {
                    tracing::warn!("{} {}: {fault}", self.config.role, self.config.rank);
                }
                ended => return ended,
            }
        }
    }
}

/// A process that has joined a run.
pub struct ClusterSession {
    /// Waits for the sockets of the server and of all peers.
    pub(crate) io: IoRuntime,
    pub(crate) member: Member,
    pub(crate) dialer: Dialer,
    server: StoppedOnDrop,
    /// If the coordinator is in this process, makes it look for missing and silent members.
    _ticks: Option<AbortOnDropHandle<()>>,
    /// The coordinator, if it is in this process.
    pub(crate) coordinator: Option<Coordinator>,
    /// What this process knows of the checkpoints of the run.
    pub(crate) made: MadeCheckpoints,
    health: Health,
    stop: Stop,
    /// The run goes on without this process, if it can.
    may_leave: bool,
}

/// Returns when the process is asked to shut down, but not before `grace` is over.
async fn asked_to_shut_down(stop: impl Fn() -> bool, grace: Duration) {
    tokio::time::sleep(grace).await;
    while !stop() {
        tokio::time::sleep(TICK).await;
    }
}

async fn ask_to_drain(member: Member) {
    if let Err(fault) = member.drain().await {
        tracing::warn!(%fault, "the coordinator could not be asked to drain the run");
    }
}

/// The fault of a process that waits for rows when it is asked to shut down.
fn told(is_told: bool, process: String) -> Option<Fault> {
    is_told.then(|| Fault::external(format!("{process} was asked to shut down")).kind(FaultKind::Drained))
}

fn ended_before_the_run(member: impl Display) -> Fault {
    Fault::external(format!("{member} was asked to shut down before the run began")).kind(FaultKind::Drained)
}

impl ClusterSession {
    /// Waits until all members have joined, and logs the names of those that have not.
    ///
    /// # Errors
    /// The run has failed, or has begun a new attempt. This process was asked to shut down: a reader, or a trainer that the run can do
    /// without, ends without the others; another trainer when the run has drained.
    pub(crate) fn wait_until_started(&self) -> Result<RunStatus, Fault> {
        self.io.block_on(async {
            tokio::select! {
                started = self.member.wait_until_started() => return started,
                () = asked_to_shut_down(&*self.stop, Duration::ZERO) => {}
            }
            if self.member.id().role == Role::Trainer {
                // This request is not given up halfway, unless the run fails: a process that has left may not train.
                let leaves = tokio::select! {
                    leaves = self.leaves_before_the_run() => leaves,
                    Err(failed) = self.member.wait_until(|_| false) => return Err(failed),
                };
                if !leaves {
                    self.drain();
                    return self.member.wait_until_started().await;
                }
            }
            Err(ended_before_the_run(self.member.id()))
        })
    }

    /// What a sample of the rows decided in this run. Waits until all members have joined.
    ///
    /// # Errors
    /// As [`wait_until_started`](Self::wait_until_started).
    pub(crate) fn sampled_settings(&self) -> Result<SampledSettings, Fault> {
        self.wait_until_started()?;
        self.io.block_on(self.member.sampled_settings())
    }

    async fn leaves_before_the_run(&self) -> bool {
        let leaves = matches!(self.member.leaving().await, Ok(true));
        if leaves && let Err(fault) = self.member.leave(Vec::new()).await {
            tracing::debug!(%fault, "the coordinator could not be told that this process has left");
        }
        leaves
    }

    /// A client of the shards in the ps processes.
    pub(crate) fn table(&self, job: &Job, status: &RunStatus, config: &TableConfig) -> Result<TableClient, Fault> {
        let (peers, retry) = self.ps_peers(job, status)?;
        self.connect(remote::connect(&peers, config, job.placement.wire, retry))
    }

    /// Runs `connects`, which waits for the ps processes before this process has trained on anything.
    ///
    /// # Errors
    /// What `connects` returns. A fault of the kind [`FaultKind::Drained`] if this process or the run was asked to shut down, and the ps
    /// are not reached within [`UNREACHED`] after that.
    pub(crate) fn connect<T>(&self, connects: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let ends = || (self.stop)() || matches!(self.status().phase, RunPhase::Draining | RunPhase::Finished);
        self.io.block_on(async {
            tokio::select! {
                connected = connects => connected,
                () = asked_to_shut_down(ends, Duration::ZERO).then(|()| tokio::time::sleep(UNREACHED)) => {
                    let unreached = format!("{} was asked to shut down before it had reached the ps", self.name());
                    Err(Fault::external(unreached).kind(FaultKind::Drained))
                }
            }
        })
    }

    /// The ps processes by rank, and how requests to them are retried.
    pub(crate) fn ps_peers(&self, job: &Job, status: &RunStatus) -> Result<(Vec<Peer>, Retry), Fault> {
        let peers =
            status.ps.iter().flatten().map(|(_, address)| self.dialer.peer(address)).collect::<Result<_, _>>()?;
        let status = self.member.subscribe();
        let failed = move || match &status.borrow().phase {
            RunPhase::Failed(failure) => Some(failure.fault()),
            _ => None,
        };
        Ok((peers, Retry::within(job.placement.timeout()).unless(failed)))
    }

    /// A client of the snapshots in the ps processes. Its requests end when the run has failed, or ends without a checkpoint.
    pub(crate) fn ps_snapshots(&self, job: &Job, status: &RunStatus) -> Result<PsSnapshots, Fault> {
        let (peers, retry) = self.ps_peers(job, status)?;
        let (failed, status) = (retry.given_up.clone(), self.member.subscribe());
        let retry = retry.unless(move || {
            let without_checkpoint = status.borrow().without_checkpoint;
            match without_checkpoint {
                true => Some(Fault::external("the run ends without this checkpoint")),
                false => failed.as_ref().and_then(|failed| failed()),
            }
        });
        Ok(PsSnapshots::new(peers, retry))
    }

    /// The last status of the run that this process received.
    pub fn status(&self) -> RunStatus {
        self.member.status()
    }

    /// Why this process need not wait any more: the run has failed, or this process was asked to shut down.
    pub(crate) fn ends(&self) -> Option<Fault> {
        match self.status().phase {
            RunPhase::Failed(failure) => Some(failure.fault()),
            _ => told((self.stop)(), self.name()),
        }
    }

    /// The role and the rank of this process: `trainer 0`.
    pub fn name(&self) -> String {
        self.member.id().to_string()
    }

    /// The timelines of the other processes that have ended their part of the run, for the first trainer. Blocks for a few seconds at most.
    pub fn timelines(&self) -> Vec<ProcessTimeline> {
        self.io.block_on(timelines::of_others(&self.member))
    }

    /// Kills a pipeline of this process when the run has failed: a look-up or a push may wait for a process that is gone.
    pub(crate) fn kill_when_failed(&self, pipeline: Control) {
        let mut status = self.member.subscribe();
        self.io.spawn(async move {
            // An error means that this process ends.
            let failed = status.wait_for(|status| matches!(status.phase, RunPhase::Failed(_))).await;
            if let Ok(status) = failed
                && let RunPhase::Failed(failure) = &status.phase
            {
                pipeline.kill(failure.fault());
            }
        });
    }

    /// Waits until every row is trained on, by this trainer or another.
    pub(crate) fn wait_until_finished(&self) -> Result<(), Fault> {
        let done = |status: &RunStatus| matches!(status.phase, RunPhase::Finished | RunPhase::Over);
        self.io.block_on(self.member.wait_until(done)).map(drop)
    }

    /// Asks all readers to take no more leases: the run is finished once the current ones are trained on. Returns at once.
    pub fn drain(&self) {
        self.io.spawn(ask_to_drain(self.member.clone()));
    }

    /// Begins the departure of this trainer, if the run goes on without it. Else asks for a drain. Returns at once.
    pub(crate) fn leave_or_drain(&self, departure: Departure) {
        let member = self.member.clone();
        self.io.spawn(async move {
            match member.leaving().await {
                Ok(true) => departure.begin(),
                Ok(false) => ask_to_drain(member).await,
                Err(fault) => {
                    tracing::warn!(%fault, "the coordinator could not be asked whether this trainer may leave")
                }
            }
        });
    }
}

/// A server that is stopped at once when it is dropped: the process may listen at the same address again.
struct StoppedOnDrop {
    io: IoRuntime,
    server: Option<Server>,
}

impl Drop for StoppedOnDrop {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.io.block_on(server.stop(Duration::ZERO));
        }
    }
}

#[cfg(test)]
mod tests;
