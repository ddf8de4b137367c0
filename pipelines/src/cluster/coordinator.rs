//! The coordinator of a run: one place that knows who takes part, who reads what, and how far the run is.
//!
//! Comes in: the actions of [`messages`](super::messages), from every process of the run. Goes out: their answers; log
//! lines about who is missing or lost. Holds one short lock, waits for nothing. It stands in the first ps process, or in the
//! trainer where there is none: its life is that of the sparse rows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::{Domain, Fault};
use forebay_net::{Caller, Handler};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::leases::{LeaseBook, LeaseReply, windows_per_lease};
use super::members::{Expected, Members, Role};
use super::messages::{
    CompletedLease, FailRequest, Failure, JoinRequest, LeaseRequest, MemberId, MemberRequest, RunPhase, RunStatus,
};
use crate::job::{DenseAt, Job};

/// Rows of a row group as Forebay and most others write them.
const ROW_GROUP_ROWS: u64 = 131_072;

/// A member that is silent for so long is spoken of.
const WARN_AFTER_SILENCE: Duration = Duration::from_secs(10);

/// The part of a server that coordinates.
#[derive(Clone)]
pub(super) struct Coordinator {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    settings: Settings,
}

/// What the coordinator goes by.
struct Settings {
    /// Differs from start to start.
    boot: u64,
    job: String,
    readers: u32,
    trainer_keeps_dense: bool,
    lease_rows: u64,
    window_rows: u64,
    /// Trainers take batches in the order of the data.
    ordered: bool,
    silence: Duration,
    timeout: Duration,
}

struct State {
    /// Trainers take batches in the order of the data.
    ordered: bool,
    members: Members,
    leases: Option<LeaseBook>,
    phase: RunPhase,
    started: Instant,
    /// Who was last said to be missing.
    last_logged: (Instant, Vec<String>),
}

impl Coordinator {
    /// For a run of `job`; `boot` must differ between starts.
    pub(super) fn new(job: &Job, boot: u64) -> Self {
        let placement = &job.placement;
        let expected = Expected {
            ps: placement.ps as u32,
            trainers: placement.trainers as u32,
            readers: placement.readers as u32,
        };
        let settings = Settings {
            boot,
            job: digest(job),
            readers: (placement.readers.max(placement.trainers)) as u32,
            trainer_keeps_dense: placement.dense() == DenseAt::Trainer,
            lease_rows: placement.lease_rows as u64,
            window_rows: crate::sources::window_rows(job, job.in_step()) as u64,
            ordered: super::ordered(job),
            silence: Duration::from_secs_f64(placement.lease_seconds),
            timeout: placement.timeout(),
        };
        let now = Instant::now();
        let state = State {
            ordered: settings.ordered,
            members: Members::new(expected),
            leases: None,
            phase: RunPhase::Gathering,
            started: now,
            last_logged: (now, Vec::new()),
        };
        Self { inner: Arc::new(Inner { state: Mutex::new(state), settings }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is to tell.
    pub(super) fn status(&self) -> RunStatus {
        self.state().status()
    }

    /// Looks after the silent: to be called a few times a second.
    pub(super) fn tick(&self, now: Instant) {
        let Settings { silence, timeout, .. } = self.inner.settings;
        let mut state = self.state();
        for reader in state.members.lost_readers(silence, now) {
            let again = state.leases.as_mut().map_or(0, |leases| leases.return_leases_of(reader));
            tracing::warn!(reader, again, "reader {reader} was not heard of for {silence:?}: its rows go to others");
        }
        // In a drain nobody takes what a reader gives back or loses.
        state.finish_if_done();
        state.check_missing(timeout, now);
        state.check_silent(timeout, now);
    }

    /// Has readers take no more: what they hold is worked off, then the run is finished.
    pub(super) fn drain(&self) {
        let mut state = self.state();
        if matches!(state.phase, RunPhase::Gathering | RunPhase::Running) {
            state.phase = RunPhase::Draining;
            state.finish_if_done();
        }
    }

    fn join(&self, JoinRequest { role, rank, address, job }: JoinRequest) -> Result<MemberId, Fault> {
        let settings = &self.inner.settings;
        if job != settings.job {
            return Err(Fault::user(format!(
                "{role} {rank} has another job than the coordinator (digests {job} and {}): give all processes the same \
                 job file and the same --set",
                settings.job
            )));
        }
        let mut state = self.state();
        let (incarnation, before) = state.members.join(role, rank, address, Instant::now())?;
        let running = matches!(state.phase, RunPhase::Running | RunPhase::Draining);
        if before && running {
            let lost = match role {
                Role::Reader => None,
                Role::Ps => Some("its rows are lost"),
                Role::Trainer if settings.trainer_keeps_dense => {
                    Some("the dense parameters went with it (placement.dense = \"ps\" keeps them beside the rows)")
                }
                Role::Trainer => None,
            };
            if let Some(lost) = lost {
                let failure = Failure {
                    domain: Domain::External,
                    message: format!("{role} {rank} was started anew, {lost}: start the run again"),
                };
                state.fail(failure.clone());
                return Err(failure.fault());
            }
        }
        if role == Role::Reader
            && let Some(leases) = &mut state.leases
        {
            leases.return_leases_of(rank);
        }
        tracing::info!(incarnation, "{role} {rank} joined");
        if state.phase == RunPhase::Gathering && state.members.missing().is_empty() {
            state.phase = RunPhase::Running;
            tracing::info!("all are here after {:.1} s", state.started.elapsed().as_secs_f64());
        }
        Ok(MemberId { role, rank, incarnation, boot: settings.boot })
    }

    fn hear(&self, member: MemberId) -> Result<MutexGuard<'_, State>, Fault> {
        if member.boot != self.inner.settings.boot {
            return Err(Fault::external(
                "the coordinator was started anew, and the rows of its shards are lost: start the run again",
            ));
        }
        let mut state = self.state();
        state.members.hear(member.role, member.rank, member.incarnation, Instant::now())?;
        Ok(state)
    }

    fn lease(&self, LeaseRequest { member, data, lost_only }: LeaseRequest) -> Result<LeaseReply, Fault> {
        let settings = &self.inner.settings;
        let mut state = self.hear(member)?;
        match &state.phase {
            RunPhase::Running => {}
            RunPhase::Gathering => return Ok(LeaseReply::Wait),
            RunPhase::Failed(failure) => return Err(failure.fault()),
            _ => return Ok(LeaseReply::Finished),
        }
        let leases = state
            .leases
            .get_or_insert_with(|| LeaseBook::new(data.clone(), settings.window_rows, settings.windows(&data)));
        if *leases.data() != data {
            return Err(Fault::user(format!(
                "{} {} sees other rows than the first reader: {data:?}, expected {:?}. All readers must find the same files, \
                 unchanged while the run lasts",
                member.role,
                member.rank,
                leases.data()
            )));
        }
        Ok(if lost_only { leases.lease_lost_range(member.rank) } else { leases.lease_next_range(member.rank) })
    }

    fn complete(&self, CompletedLease { member, lease, counts }: CompletedLease) -> Result<(), Fault> {
        let mut state = self.hear(member)?;
        let Some(leases) = &mut state.leases else {
            return Err(Fault::internal("a lease was completed before any was given"));
        };
        if let Err(fault) = leases.complete(&lease, &counts) {
            state.fail(Failure { domain: fault.domain, message: fault.to_string() });
            return Err(fault);
        }
        state.finish_if_done();
        Ok(())
    }

    fn leave(&self, member: MemberId) -> Result<(), Fault> {
        let mut state = self.hear(member)?;
        state.members.leave(member.role, member.rank, member.incarnation);
        if member.role == Role::Reader
            && let Some(leases) = &mut state.leases
        {
            leases.return_leases_of(member.rank);
        }
        tracing::info!("{} {} left", member.role, member.rank);
        Ok(())
    }
}

impl Settings {
    /// Windows of a lease: as many rows as the job says, but so that every reader gets several. Where trainers take batches
    /// in order, readers work side by side only if the next windows are soon another's: as many as a row group commonly has.
    fn windows(&self, data: &forebay_connectors::DataPlan) -> u64 {
        let most = if self.ordered { self.lease_rows.min(ROW_GROUP_ROWS) } else { self.lease_rows };
        windows_per_lease(most / self.window_rows.max(1), data, self.readers)
    }
}

impl State {
    fn status(&self) -> RunStatus {
        let leases = self.leases.as_ref();
        let (done, windows, reassigned_leases) = leases.map_or((0, 0, 0), LeaseBook::progress);
        RunStatus {
            phase: self.phase.clone(),
            missing: self.members.missing(),
            ps: self.members.addresses(Role::Ps),
            trainers: self.members.addresses(Role::Trainer),
            data: leases.map(|leases| leases.data().clone()),
            first_open: leases.map_or((0, 0), LeaseBook::first_open),
            counts: leases.map(LeaseBook::counts).unwrap_or_default(),
            windows_done: done,
            windows_total: windows,
            reassigned_leases,
            lost_leases: leases.map_or(0, LeaseBook::lost_leases),
        }
    }

    fn fail(&mut self, failure: Failure) {
        // The first fault wins, and a run that is over stays so.
        if !matches!(self.phase, RunPhase::Failed(_) | RunPhase::Over) {
            tracing::error!("the run has failed: {}", failure.message);
            self.phase = RunPhase::Failed(failure);
        }
    }

    /// A reader cannot go on: its rows go to the others, if there are any.
    fn reader_failed(&mut self, member: MemberId, failure: Failure) {
        self.members.leave(member.role, member.rank, member.incarnation);
        let again = self.leases.as_mut().map_or(0, |leases| leases.return_leases_of(member.rank));
        let others =
            self.members.list(Instant::now()).iter().any(|(role, _, there, _)| *role == Role::Reader && *there);
        if others {
            tracing::warn!(again, "{}: its rows go to other readers", failure.message);
        } else {
            self.fail(failure);
        }
    }

    fn finish_if_done(&mut self) {
        let done = match self.phase {
            RunPhase::Running => self.leases.as_ref().is_some_and(LeaseBook::is_finished),
            RunPhase::Draining => self.leases.as_ref().is_none_or(|leases| leases.is_drained(self.ordered)),
            _ => false,
        };
        if done {
            self.phase = RunPhase::Finished;
        }
    }

    fn check_missing(&mut self, timeout: Duration, now: Instant) {
        if self.phase != RunPhase::Gathering {
            return;
        }
        let missing = self.members.missing();
        let waited = now.duration_since(self.started);
        if waited > timeout {
            let message = format!(
                "{} did not join within {:.0} s (placement.timeout_seconds): see the logs of these processes, and whether \
                 they reach the coordinator",
                missing.join(", "),
                timeout.as_secs_f64()
            );
            return self.fail(Failure { domain: Domain::External, message });
        }
        if now.duration_since(self.last_logged.0) > WARN_AFTER_SILENCE
            || (missing != self.last_logged.1 && waited > Duration::from_secs(2))
        {
            tracing::info!("waiting for {}", missing.join(", "));
            self.last_logged = (now, missing);
        }
    }

    fn check_silent(&mut self, timeout: Duration, now: Instant) {
        if !matches!(self.phase, RunPhase::Running | RunPhase::Draining | RunPhase::Finished) {
            return;
        }
        let silent: Vec<_> = self
            .members
            .list(now)
            .into_iter()
            .filter(|(role, _, there, silent)| {
                *role != Role::Reader && *there && *silent > WARN_AFTER_SILENCE.min(timeout)
            })
            .collect();
        if let Some((role, rank, _, silent)) = silent.iter().find(|(.., silent)| *silent > timeout) {
            let message =
                format!("{role} {rank} was not heard of for {:.0} s (placement.timeout_seconds)", silent.as_secs_f64());
            return self.fail(Failure { domain: Domain::External, message });
        }
        if !silent.is_empty() && now.duration_since(self.last_logged.0) > WARN_AFTER_SILENCE {
            let names: Vec<String> = silent.iter().map(|(role, rank, ..)| format!("{role} {rank}")).collect();
            tracing::warn!("holding: {} not heard of for {:.0} s", names.join(", "), silent[0].3.as_secs_f64());
            self.last_logged = (now, names);
        }
    }
}

/// A digest of all that must be the same in every process: not the addresses, nor what only says how fast one of them is.
pub(crate) fn digest(job: &Job) -> String {
    let mut job = job.clone();
    job.network = Default::default();
    job.pipeline = Default::default();
    let fast = crate::job::DataOptions::default();
    (job.data.read_ahead, job.data.decode_ahead, job.data.decode_threads) =
        (fast.read_ahead, fast.decode_ahead, fast.decode_threads);
    let train = crate::job::TrainOptions::default();
    (job.train.threads, job.train.device) = (train.threads, train.device);
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(job.to_toml().as_bytes()))
}

fn read<T: DeserializeOwned>(kind: &str, body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body)
        .map_err(|e| Fault::user(format!("coordinator.{kind}: the body is not what it should be")).because(e))
}

fn write(answer: &impl Serialize) -> Result<Bytes, Fault> {
    serde_json::to_vec(answer)
        .map(Bytes::from)
        .map_err(|e| Fault::internal("an answer cannot be written as JSON").because(e))
}

#[async_trait]
impl Handler for Coordinator {
    fn name(&self) -> &'static str {
        "coordinator"
    }

    fn actions(&self) -> Vec<(String, String)> {
        let action = |kind: &str, what: &str| (kind.to_owned(), what.to_owned());
        vec![
            action("status", "how far the run is, as JSON; for anyone"),
            action("join", "a process of the run starts"),
            action("heartbeat", "a sign of life"),
            action("lease", "a reader asks for windows to read"),
            action("complete", "every batch of a lease is done"),
            action("fail", "a member cannot go on, and neither can the run"),
            action("leave", "a member ends"),
            action("drain", "readers take no more"),
            action("over", "the model is saved: processes may end"),
        ]
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        if kind == "status" {
            return write(&self.status());
        }
        if caller.identity.is_none() {
            return Err(Fault::user(format!(
                "coordinator.{kind} is for the processes of the run; others may `coordinator.status`"
            )));
        }
        match kind {
            "join" => write(&self.join(read(kind, &body)?)?),
            "heartbeat" => {
                let MemberRequest { member } = read(kind, &body)?;
                write(&self.hear(member)?.status())
            }
            "lease" => write(&self.lease(read(kind, &body)?)?),
            "complete" => write(&self.complete(read(kind, &body)?)?),
            "fail" => {
                let FailRequest { member, failure } = read(kind, &body)?;
                let failure =
                    Failure { message: format!("{} {}: {}", member.role, member.rank, failure.message), ..failure };
                let mut state = self.hear(member)?;
                match member.role {
                    // Its disk or its network: others may do better.
                    Role::Reader if failure.domain == Domain::External => state.reader_failed(member, failure),
                    _ => state.fail(failure),
                }
                write(&())
            }
            "leave" => write(&self.leave(read::<MemberRequest>(kind, &body)?.member)?),
            "drain" => {
                drop(self.hear(read::<MemberRequest>(kind, &body)?.member)?);
                self.drain();
                write(&())
            }
            "over" => {
                let mut state = self.hear(read::<MemberRequest>(kind, &body)?.member)?;
                if state.phase == RunPhase::Finished {
                    state.phase = RunPhase::Over;
                }
                write(&())
            }
            _ => Err(Fault::user(format!("there is no action coordinator.{kind}"))),
        }
    }
}
