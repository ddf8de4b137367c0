//! How a process joins a run: it listens, learns what the attempt begins with, loads that, and becomes a member.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_actors::{Fault, IoRuntime};
use forebay_job::Job;
use forebay_net::{Dialer, Handler, Health, Identity, Limits, Peer, Security, Server, raise_descriptor_limit};
use tokio_util::task::AbortOnDropHandle;

use super::super::TICK;
use super::super::coordinator::Coordinator;
use super::super::listen::listen;
use super::super::member::{Member, send_signs_of_life};
use super::super::messages::{Failure, JoinRequest, ProcessRequest, job_digest};
use super::super::over_before::OverBefore;
use super::super::start_state::StartState;
use super::{ClusterProcess, ClusterSession, ProcessConfig, StoppedOnDrop, asked_to_shut_down, ended_before_the_run};
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;

/// A process that was asked to shut down, and took part in an earlier attempt, asks for this long how the run has ended.
const END_OF_THE_RUN: Duration = Duration::from_secs(3);

impl ClusterSession {
    /// Starts a server for `handlers` (none without handlers), calls `load` with the checkpoint or the model that the run continues from
    /// (not in a reader), and joins. `load` returns what a sample of the rows decides, if this is the first trainer. Waits for the
    /// coordinator.
    ///
    /// # Errors
    /// What `load` returns; the coordinator does not answer or refuses. A fault of the kind
    /// [`RolledBack`](forebay_actors::FaultKind::RolledBack) if the run began a new attempt meanwhile, and of the kind
    /// [`RunOver`](forebay_actors::FaultKind::RunOver) if it has ended with its model.
    pub(crate) fn join(
        context: &Context,
        cluster_process: &ClusterProcess,
        job: &Job,
        mut handlers: Vec<Arc<dyn Handler>>,
        load: impl FnOnce(Option<StartState>) -> Result<SampledSettings, Fault>,
    ) -> Result<Self, Fault> {
        let io = &context.io;
        let process = &cluster_process.config;
        let (role, rank, nonce) = (process.role, process.rank, cluster_process.nonce);
        let has_joined_before = cluster_process.has_joined_before();
        let connections = Connections::new(io, process, job)?;
        let mut identity =
            Identity { run: process.run.clone(), role: format!("{role} {rank}"), incarnation: 0, attempt: 0 };
        let begin = || Coordinator::new(job, boot()).draining(process.drains).with_checkpoints(process.has_checkpoints);
        let coordinator = process.coordinates(job).then(|| cluster_process.coordinator.get_or_init(begin).clone());
        if let Some(coordinator) = &coordinator {
            handlers.push(Arc::new(coordinator.clone()));
        }
        let health = Health::new();
        // If this process has listened there before, or a program chose the address, the address will be free again.
        let retries = has_joined_before || process.supervised;
        // From here on, an error stops the server before the address is listened at again.
        let server = connections.serve(process.listen, retries, &identity, handlers, &health)?;
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
                io.block_on(coordinator.wait_until_others_notified(role, rank));
            }
            fault
        };
        let peer = connections.dialer(&identity)?.peer(&at)?;
        let made = &cluster_process.made;
        let this = ProcessRequest { role, rank, job: job_digest(job), nonce, made_under: made.under() };
        // The signs of life go on through all attempts: the coordinator must not count a process that loads as hung or missing.
        cluster_process.signs_of_life.get_or_init(|| {
            let lease = Duration::from_secs_f64(job.placement.lease_seconds);
            AbortOnDropHandle::new(io.spawn(send_signs_of_life(peer.clone(), this.clone(), made.clone(), lease)))
        });
        if let Some(coordinator) = &coordinator {
            health.waiting("the newest checkpoint");
            coordinator.find_origin(job, process.resume, &*cluster_process.stop, context).map_err(after_others_know)?;
        }
        health.waiting(format!("the coordinator at {at}"));
        let over = OverBefore::new(job, process.resume, context);
        // In a run that drains, the process learns at once how the run ends, and the coordinator learns that the process knows it.
        let grace = if has_joined_before { END_OF_THE_RUN } else { Duration::ZERO };
        let planned = io.block_on(async {
            tokio::select! {
                planned = Member::plan(&peer, &this, job, &over) => planned,
                () = new_attempt_begins(coordinator.as_ref(), &*cluster_process.stop) => {
                    Err(Failure::rolled_back().fault())
                }
                () = asked_to_shut_down(&*cluster_process.stop, grace) => {
                    Err(gone_before_joining(coordinator.as_ref(), &peer, &this).await)
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
        let dialer = connections.dialer(&identity)?;
        health.ready();
        let stop = Arc::clone(&cluster_process.stop);
        let may_leave = process.may_leave(job);
        let made = made.clone();
        Ok(Self { io: io.clone(), member, dialer, server, _ticks: ticks, coordinator, made, health, stop, may_leave })
    }
}

/// How a process listens and connects.
struct Connections<'a> {
    io: &'a IoRuntime,
    security: Security,
    limits: Limits,
}

impl<'a> Connections<'a> {
    fn new(io: &'a IoRuntime, process: &ProcessConfig, job: &Job) -> Result<Self, Fault> {
        let placement = &job.placement;
        // Sockets to and from every other process, a few of each, and the files of the data.
        raise_descriptor_limit(256 + 10 * (placement.readers + placement.ps + placement.trainers) as u64);
        let limits = Limits { compression: placement.compress, ..Limits::default() };
        Ok(Self { io, security: Security::load(&process.security)?, limits })
    }

    /// Starts a server for these handlers, if there are any. `retries`: waits until the address is free.
    fn serve(
        &self,
        address: SocketAddr,
        retries: bool,
        identity: &Identity,
        handlers: Vec<Arc<dyn Handler>>,
        health: &Health,
    ) -> Result<StoppedOnDrop, Fault> {
        let Self { io, security, limits } = self;
        let start = || {
            let (identity, handlers, health) = (identity.clone(), handlers.clone(), health.clone());
            Server::start(io, address, security, identity, limits, handlers, health)
        };
        let server = match handlers.is_empty() {
            true => None,
            false => Some(io.block_on(listen(address, retries, start))?),
        };
        Ok(StoppedOnDrop { io: self.io.clone(), server })
    }

    fn dialer(&self, identity: &Identity) -> Result<Dialer, Fault> {
        Dialer::new(self.io, &self.security, identity, &self.limits)
    }
}

/// The process was asked to shut down before it joined: the coordinator must not wait for it. Returns the fault to end with.
async fn gone_before_joining(coordinator: Option<&Coordinator>, peer: &Peer, this: &ProcessRequest) -> Fault {
    match coordinator {
        Some(coordinator) => coordinator.drain_before_join(this.role, this.rank),
        None => Member::gone(peer, this).await,
    }
    ended_before_the_run(format_args!("{} {}", this.role, this.rank))
}

/// Returns when the run begins a new attempt, if the coordinator is in this process, which then finds what the attempt begins with.
async fn new_attempt_begins(coordinator: Option<&Coordinator>, stop: impl Fn() -> bool) {
    let Some(coordinator) = coordinator else { return std::future::pending().await };
    while stop() || !coordinator.lacks_origin() {
        tokio::time::sleep(TICK).await;
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
