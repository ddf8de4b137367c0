//! Requests and replies between members and the coordinator: JSON bodies of the Flight actions `coordinator.*`.
//!
//! Values of these types come from sockets: [`RunState`](super::run_state) checks every field that it uses.

use forebay_actors::{Domain, Fault, FaultKind};
use forebay_batches::RowCounts;
use forebay_connectors::DataPlan;
use forebay_job::{Job, RunEnd};
use serde::{Deserialize, Serialize};

use super::leases::DoneWindows;
use super::members::Role;
use crate::checkpoint::{OriginCheckpoint, WindowLog};
use crate::columns::sampled_settings::SampledSettings;
use crate::metrics::training_summary::TrainingSummary;

/// Identifies one start of a member in one attempt of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberId {
    /// The member's role.
    pub role: Role,
    /// Its rank, from 0.
    pub rank: u32,
    /// Grows each time a process of this rank starts.
    pub incarnation: u64,
    /// The attempt that the member joined.
    pub attempt: u64,
}

impl std::fmt::Display for MemberId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.role, self.rank)
    }
}

/// The body of `alive`: a process runs, joined or not; of `plan`: it asks what it continues from; and of `gone`: it ends before it joins.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProcessRequest {
    pub(crate) role: Role,
    pub(crate) rank: u32,
    /// As in [`JoinRequest`].
    pub(crate) job: String,
    /// As in [`JoinRequest`].
    pub(crate) nonce: u64,
    /// Set if the process knows that the run has made checkpoints: [`RunStatus::start`] of the coordinator that it knows it from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made_under: Option<u64>,
}

/// The role of a program that starts the processes of a run and starts them again: `forebay launch`. It is no member.
pub(crate) const SUPERVISOR: &str = "supervisor";

/// `processes_ended`, of the [supervisor](SUPERVISOR): these processes have ended, and are not started again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProcessesEnded {
    pub(crate) processes: Vec<(Role, u32)>,
}

/// The reply to `plan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PlanReply {
    /// The coordinator looks for the newest checkpoint: ask again.
    Wait,
    /// Join this attempt, and load this checkpoint. `None`: the run begins at the start. `manifest`: the manifest of the checkpoint, as
    /// JSON, for a trainer that may join when the run is under way: by then the run may have removed the checkpoint.
    Plan {
        attempt: u64,
        checkpoint: Option<OriginCheckpoint>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        manifest: Option<String>,
    },
    /// The run has failed: end with this.
    Failed(Failure),
    /// The run is over, and its model saved: end.
    Over,
}

/// The reply to `join`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JoinReply {
    /// The process is a member.
    Joined(MemberId),
    /// The attempt is over: ask for a plan again.
    AttemptIsOver,
    /// The run has failed: end with this.
    Failed(Failure),
}

/// `join`: a process is ready to take part.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JoinRequest {
    pub(crate) role: Role,
    pub(crate) rank: u32,
    /// Where others reach the process. `None` for readers: no process connects to them.
    pub(crate) address: Option<String>,
    /// The attempt of its plan.
    pub(crate) attempt: u64,
    /// [`job_digest`], which must be the same in every process.
    pub(crate) job: String,
    /// A random number of this start of the process, which distinguishes a repeated request from another start.
    pub(crate) nonce: u64,
    /// From the first trainer, which reads a sample of the rows: what the sample decides.
    #[serde(default)]
    pub(crate) sampled_settings: SampledSettings,
}

/// `cannot_start`: a process cannot load what the attempt continues from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CannotStartRequest {
    pub(crate) role: Role,
    pub(crate) rank: u32,
    /// The attempt of its plan.
    pub(crate) attempt: u64,
    /// If its kind is [`FaultKind::Damaged`], an older checkpoint may do.
    pub(crate) failure: Failure,
}

/// The body of `heartbeat`, `leaving`, `drain`, `without_checkpoint` and `over`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemberRequest {
    pub(crate) member: MemberId,
}

/// `evaluated`: the first trainer has evaluated the model after `rows` rows of all trainers, or goes on without; or `await_evaluation`:
/// another trainer waits for that.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvaluationAt {
    pub(crate) member: MemberId,
    pub(crate) rows: u64,
}

/// The reply to `await_evaluation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EvaluationReply {
    /// It is not over: ask again.
    Wait,
    /// Train on.
    GoOn,
    /// The training has stopped early: train on no more batches.
    Stop,
}

/// `stop_early`: the only trainer, or the first of several in step, trains on no more batches, because the model does not improve.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopEarlyRequest {
    pub(crate) member: MemberId,
    /// Rows and batches that the run has trained on.
    pub(crate) trained: RowCounts,
}

/// `leave`: a member ends as it should.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaveRequest {
    pub(crate) member: MemberId,
    /// From a trainer that leaves before the end of a run with checkpoints: its batches that are done, in windows that the coordinator may
    /// not count as done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) done: Vec<WindowLog>,
}

/// The reply to `heartbeat` and `status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The attempt of the run. It changes when the coordinator is started again, and when the run begins a new attempt because a member
    /// was lost together with parameters. All members then join again.
    pub attempt: u64,
    /// A number of this start of the coordinator, which all its attempts have and no other start.
    pub start: u64,
    /// The phase of the run.
    pub phase: RunPhase,
    /// Members that must join before the run starts.
    pub missing: Vec<String>,
    /// Processes that gave no sign of life for `placement.lease_seconds`, and have not left: members, processes that have not joined yet,
    /// and processes of the job that the coordinator has never heard of.
    pub silent: Vec<String>,
    /// (incarnation, address) of each ps, by rank.
    pub ps: Vec<Option<(u64, String)>>,
    /// (incarnation, address) of each trainer, by rank. `None`: it has not joined, or has left and the run goes on without it.
    /// The address of a trainer that reads by itself is empty.
    pub trainers: Vec<Option<(u64, String)>>,
    /// The number of readers that have joined, and have neither left nor been lost.
    #[serde(default)]
    pub readers: usize,
    /// What is read. `None` until the first reader has listed it.
    pub data: Option<DataPlan>,
    /// (epoch, window): all windows before it are done.
    pub first_open: (u32, u64),
    /// Rows and batches of the windows that are done.
    pub counts: RowCounts,
    /// Windows that are done.
    pub windows_done: u64,
    /// Windows of all epochs.
    pub windows_total: u64,
    /// Leases that lost readers held, and that are given out again; a lease that is lost twice counts twice.
    pub lost_leases: u64,
    /// Leases that a reader lost or gave back and that no reader has taken since.
    pub returned_leases: u64,
    /// The run has checkpoints and is drained, and its last one cannot be written: it ends as one without checkpoints.
    #[serde(default)]
    pub without_checkpoint: bool,
    /// The run has made checkpoints, as far as the coordinator knows.
    #[serde(default)]
    pub has_checkpoints: bool,
    /// The training has stopped early, in the middle of the data: what is read and not trained on is left out. `counts` has all rows that
    /// were trained on, and the rejected rows of whole windows.
    #[serde(default)]
    pub stopped_early: bool,
}

impl RunStatus {
    /// The summary of a finished run of several processes.
    pub(crate) fn summary(&self, job: &Job, steps_before: u64) -> TrainingSummary {
        let complete = self.data.is_some() && self.windows_done == self.windows_total;
        let (epochs, ended) = match complete {
            true => (job.data.epochs as u64, RunEnd::Complete),
            false => (u64::from(self.first_open.0), RunEnd::Drained),
        };
        let steps = steps_before + self.counts.batches / job.in_step().max(1) as u64;
        TrainingSummary::new(self.counts.trained, steps, epochs, ended)
    }

    /// The status of a run that waits for its first member.
    #[cfg(test)]
    pub(crate) fn gathering() -> Self {
        Self {
            attempt: 1,
            start: 1,
            phase: RunPhase::Gathering,
            missing: Vec::new(),
            silent: Vec::new(),
            ps: Vec::new(),
            trainers: Vec::new(),
            readers: 0,
            data: None,
            first_open: (0, 0),
            counts: RowCounts::default(),
            windows_done: 0,
            windows_total: 0,
            lost_leases: 0,
            returned_leases: 0,
            without_checkpoint: false,
            has_checkpoints: false,
            stopped_early: false,
        }
    }

    /// Whether readers begin no more windows. A run that makes `checkpoints` ends with a checkpoint, for which its trainers may need
    /// further windows, unless it has stopped early.
    pub(crate) fn begins_no_windows(&self, checkpoints: bool) -> bool {
        self.stopped_early || self.phase == RunPhase::Draining && (!checkpoints || self.without_checkpoint)
    }

    /// Whether the run has drained without the rows that a lost reader held. A run that has stopped early needs none of them.
    pub(crate) fn lacks_rows_in_the_end(&self) -> bool {
        let lacks_rows = self.returned_leases > 0 && self.windows_done < self.windows_total;
        self.phase == RunPhase::Finished && lacks_rows && !self.stopped_early
    }
}

/// The phases of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// The run waits for members.
    Gathering,
    /// Rows are read and trained on.
    Running,
    /// Readers finish the windows that they have begun and take no more.
    Draining,
    /// Every row is trained on, or the training has stopped early; trainer 0 saves and evaluates.
    Finished,
    /// The model is saved: processes end.
    Over,
    /// The run cannot go on.
    Failed(Failure),
}

/// Why a run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Who can fix it.
    pub domain: Domain,
    /// Where the run failed, and why.
    pub message: String,
    /// What went wrong. [`FaultKind::RolledBack`]: the run has not failed, but this member's attempt is over, and the member must join the
    /// next one. [`FaultKind::Drained`]: the run was asked to end and left a checkpoint.
    #[serde(default)]
    pub kind: FaultKind,
}

impl Failure {
    pub(crate) fn new(domain: Domain, message: impl Into<String>) -> Self {
        Self { domain, message: message.into(), kind: FaultKind::Other }
    }

    /// The run has ended because a process was asked to end.
    pub(crate) fn drained(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Drained, ..Self::new(Domain::External, message) }
    }

    /// The failure that a member reports or receives because of `fault`.
    pub(crate) fn of(fault: &Fault) -> Self {
        let kind = match fault.kind {
            // A stage or a service of that process has ended. The others would take it for one of their own.
            FaultKind::Stopped => FaultKind::Other,
            kind => kind,
        };
        Self { kind, ..Self::new(fault.domain, fault.to_string()) }
    }

    /// The attempt of a member is over.
    pub(crate) fn rolled_back() -> Self {
        let message = "the run has begun a new attempt: this process joins it";
        Self { kind: FaultKind::RolledBack, ..Self::new(Domain::External, message) }
    }

    /// The fault that every member ends with.
    pub fn fault(&self) -> Fault {
        match self.domain {
            Domain::User => Fault::user(self.message.clone()),
            Domain::External => Fault::external(self.message.clone()),
            Domain::Internal => Fault::internal(self.message.clone()),
        }
        .kind(self.kind)
    }
}

/// `lease`: a reader that has listed `data` asks for windows to read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseRequest {
    pub(crate) member: MemberId,
    pub(crate) data: DataPlan,
    /// The reader has enough leases: it only takes a lease that another reader has lost.
    #[serde(default)]
    pub(crate) returned_only: bool,
    /// Grows with each request of the member. A request that is sent again keeps its number.
    pub(crate) number: u64,
}

/// `complete`: every batch of some windows is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompletedWindows {
    pub(crate) member: MemberId,
    pub(crate) windows: Vec<DoneWindows>,
    /// The member begins no more windows: the rest of its leases goes to others.
    pub(crate) gives_back: bool,
}

/// `fail`: a member cannot go on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailRequest {
    pub(crate) member: MemberId,
    pub(crate) failure: Failure,
}

/// A digest of the job fields that must be the same in every process: all but addresses and settings that only change speed.
pub(crate) fn job_digest(job: &Job) -> String {
    let mut job = job.clone();
    job.network = Default::default();
    let pipeline = forebay_job::PipelineOptions::default();
    (job.pipeline.parse_replicas, job.pipeline.batch_replicas) = (pipeline.parse_replicas, pipeline.batch_replicas);
    job.pipeline.cores = pipeline.cores;
    job.pipeline.links = pipeline.links;
    let data = forebay_job::DataOptions::default();
    (job.data.read_ahead, job.data.decode_ahead, job.data.decode_threads) =
        (data.read_ahead, data.decode_ahead, data.decode_threads);
    let train = forebay_job::TrainOptions::default();
    (job.train.threads, job.train.device) = (train.threads, train.device);
    job.table.shards = forebay_job::TableOptions::default().shards;
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(job.to_toml().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fault_of_a_failure_has_the_kind_of_the_fault_that_was_reported() {
        use FaultKind::{Damaged, Drained, NoSpace, NonFinite, Other, RolledBack, Stopped, Unreachable, Unsaved};
        let sent = |kind: FaultKind| {
            let failure = Failure::of(&Fault::user("a").kind(kind));
            let came: Failure = serde_json::from_slice(&serde_json::to_vec(&failure).unwrap()).unwrap();
            assert_eq!(came, failure);
            came.fault().kind
        };
        for kind in [Damaged, Drained, NoSpace, NonFinite, Other, RolledBack, Unreachable, Unsaved] {
            assert_eq!(sent(kind), kind);
        }
        assert_eq!(sent(Stopped), Other);
        let later = r#"{"domain": "user", "message": "a", "kind": "of_a_later_version"}"#;
        assert_eq!(serde_json::from_str::<Failure>(later).unwrap().kind, Other);
    }

    #[test]
    fn the_digest_covers_what_is_trained_but_not_how_fast() {
        let digest = |text: &str| {
            job_digest(&Job::from_toml("data.train = 'rows'\nmodel.kind = 'lr'", &[text.to_owned()]).unwrap())
        };
        let same = digest("pipeline.links.parse=3");
        assert_eq!(digest("pipeline.parse_replicas=2"), same);
        assert_eq!(digest("pipeline.batch_replicas=2"), same);
        assert_eq!(digest("pipeline.cores=64"), same);
        assert_eq!(digest("data.read_ahead=3"), same);
        assert_eq!(digest("table.shards=3"), same);
        for other in ["seed=7", "pipeline.after_read=['downsample']", "train.batch_rows=3"] {
            assert_ne!(digest(other), same, "{other}");
        }
    }
}
