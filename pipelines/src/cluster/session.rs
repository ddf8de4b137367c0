//! A process joins a run: its role, rank and addresses ([`ProcessConfig`]), and its membership with server and connections
//! ([`ClusterSession`]). `session/ending.rs` ends it.

mod ending;

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_actors::{Control, Fault, FaultKind, IoRuntime};
use forebay_job::Job;
use forebay_net::{
    Dialer, Handler, Health, Identity, Limits, Peer, Retry, Security, SecurityFiles, Server, raise_descriptor_limit,
};
use forebay_ps::{TableClient, TableConfig, remote};
use futures::FutureExt as _;
use tokio_util::task::AbortOnDropHandle;

use super::TICK;
use super::coordinator::Coordinator;
use super::departure::Departure;
use super::listen::listen;
use super::member::{Member, send_signs_of_life};
use super::members::{self, Role};
use super::messages::{Failure, JoinRequest, ProcessRequest, RunPhase, RunStatus, job_digest};
use super::over_before::OverBefore;
use super::ps_snapshots::PsSnapshots;
use super::start_state::StartState;
use super::timelines::{self, ProcessTimeline};
use crate::checkpoint::MadeCheckpoints;
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;

/// The coordinator's default port.
pub const DEFAULT_PORT: u16 = 7600;

/// A process that was asked to shut down, and took part in an earlier attempt, asks for this long how the run has ended.
const END_OF_THE_RUN: Duration = Duration::from_secs(3);

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
    /// Whether the run may go on from the newest checkpoint in `checkpoint.to`, as the coordinator asks; and whether this process may be
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

    /// Runs `attempt`, and again each time that the run begins anew. `attempt` joins the run and takes part until it is over.
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

/// Returns when the run begins anew, if the coordinator is in this process, which then finds what the attempt goes on from.
async fn begins_anew(coordinator: Option<&Coordinator>, stop: impl Fn() -> bool) {
    let Some(coordinator) = coordinator else { return std::future::pending().await };
    while stop() || !coordinator.lacks_origin() {
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
    /// Starts a server for `handlers` (none without handlers), calls `load` with the checkpoint or the model that the run goes on from (not
    /// in a reader), and joins. `load` returns what a sample of the rows decides, if this is the first trainer. Waits for the coordinator.
    ///
    /// # Errors
    /// What `load` returns; the coordinator does not answer or refuses. A fault of the kind [`FaultKind::RolledBack`] if the run
    /// began a new attempt meanwhile, and of the kind [`FaultKind::RunOver`] if it has ended with its model.
    pub(crate) fn join(
        context: &Context,
        cluster_process: &ClusterProcess,
        job: &Job,
        mut handlers: Vec<Arc<dyn Handler>>,
        load: impl FnOnce(Option<StartState>) -> Result<SampledSettings, Fault>,
    ) -> Result<Self, Fault> {
        let io = &context.io;
        let process = &cluster_process.config;
        let placement = &job.placement;
        // Sockets to and from every other process, a few of each, and the files of the data.
        raise_descriptor_limit(256 + 10 * (placement.readers + placement.ps + placement.trainers) as u64);
        let security = Security::load(&process.security)?;
        let limits = Limits { compression: placement.compress, ..Limits::default() };
        let mut identity = Identity {
            run: process.run.clone(),
            role: format!("{} {}", process.role, process.rank),
            incarnation: 0,
            attempt: 0,
        };
        let begin = || Coordinator::new(job, boot()).draining(process.drains).with_checkpoints(process.has_checkpoints);
        let coordinator = process.coordinates(job).then(|| cluster_process.coordinator.get_or_init(begin).clone());
        if let Some(coordinator) = &coordinator {
            handlers.push(Arc::new(coordinator.clone()));
        }
        let health = Health::new();
        let again = cluster_process.has_joined_before();
        let server = match handlers.is_empty() {
            true => None,
            false => {
                let start = || {
                    let (identity, handlers, health) = (identity.clone(), handlers.clone(), health.clone());
                    Server::start(io, process.listen, &security, identity, &limits, handlers, health)
                };
                // If this process has listened there before, or a program chose the address, the address will be free again.
                Some(io.block_on(listen(process.listen, again || process.supervised, start))?)
            }
        };
        // From here on, an error stops the server before the address is listened at again.
        let server = StoppedOnDrop { io: io.clone(), server };
        let address = server.server.as_ref().map(|server| advertised(process, server.address()));
        let ticks = coordinator.clone().map(|coordinator| AbortOnDropHandle::new(io.spawn(coordinator.tick())));
        let at = match (&coordinator, &address) {
            // The process calls its own server by the name in the certificate, as other processes do.
            (Some(_), Some(address)) => address.clone(),
            _ => process.coordinator.clone(),
        };
        if let Some(address) = &address {
            tracing::info!(%address, "{} listens", identity.role);
        }
        // Before this process ends, the others hear why.
        let after_others_know = |fault: Fault| {
            if let Some(coordinator) = &coordinator {
                io.block_on(coordinator.wait_until_others_notified(process.role, process.rank));
            }
            fault
        };
        let peer = Dialer::new(io, &security, &identity, &limits)?.peer(&at)?;
        let (role, rank, nonce) = (process.role, process.rank, cluster_process.nonce);
        let made = &cluster_process.made;
        let this = ProcessRequest { role, rank, job: job_digest(job), nonce, made_under: made.under() };
        // The signs of life go on through all attempts: the coordinator must not count a process that loads as hung or missing.
        cluster_process.signs_of_life.get_or_init(|| {
            let lease = Duration::from_secs_f64(placement.lease_seconds);
            AbortOnDropHandle::new(io.spawn(send_signs_of_life(peer.clone(), this.clone(), made.clone(), lease)))
        });
        if let Some(coordinator) = &coordinator {
            health.waiting("the newest checkpoint");
            coordinator.find_origin(job, process.resume, &*cluster_process.stop, context).map_err(after_others_know)?;
        }
        health.waiting(format!("the coordinator at {at}"));
        let over = OverBefore::new(job, process.resume, context);
        // In a run that drains, the process learns at once how the run ends, and the coordinator learns that the process knows it.
        let grace = if again { END_OF_THE_RUN } else { Duration::ZERO };
        let planned = io.block_on(async {
            tokio::select! {
                planned = Member::plan(&peer, &this, job, &over) => planned,
                () = begins_anew(coordinator.as_ref(), &*cluster_process.stop) => Err(Failure::rolled_back().fault()),
                () = asked_to_shut_down(&*cluster_process.stop, grace) => {
                    match &coordinator {
                        Some(coordinator) => coordinator.drain_before_join(role, rank),
                        None => Member::gone(&peer, &this).await,
                    }
                    Err(ended_before_the_run(format_args!("{role} {rank}")))
                }
            }
        });
        let (attempt, checkpoint) = planned.map_err(after_others_know)?;
        let loaded = StartState::find(job, role, checkpoint, context).and_then(|start| {
            if start.is_some() {
                health.waiting("its part of a checkpoint or model");
            }
            load(start)
        });
        let cannot_start = |fault| io.block_on(Member::cannot_start(&peer, role, rank, attempt, fault));
        let sampled_settings = loaded.map_err(cannot_start).map_err(after_others_know)?;
        let join = JoinRequest { role, rank, address, attempt, job: job_digest(job), nonce, sampled_settings };
        let joined = io.block_on(Member::join(peer, join, job));
        let member = joined.map_err(after_others_know)?;
        (identity.incarnation, identity.attempt) = (member.id().incarnation, attempt);
        if let Some(server) = &server.server {
            server.set_attempt(attempt);
        }
        let dialer = Dialer::new(io, &security, &identity, &limits)?;
        health.ready();
        let stop = Arc::clone(&cluster_process.stop);
        let may_leave = process.may_leave(job);
        let made = made.clone();
        Ok(Self { io: io.clone(), member, dialer, server, _ticks: ticks, coordinator, made, health, stop, may_leave })
    }

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

fn advertised(process: &ProcessConfig, bound: SocketAddr) -> String {
    match &process.advertise {
        Some(name) if name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => name.clone(),
        Some(name) => format!("{name}:{}", bound.port()),
        None => bound.to_string(),
    }
}

/// A number that differs between starts of a process.
fn boot() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(40)
}

#[cfg(test)]
mod tests;
