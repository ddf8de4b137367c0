//! What members and the coordinator say to each other: JSON bodies of Flight actions `coordinator.*`.
//!
//! Input of these types comes from sockets: every field is checked by whoever acts on it.

use forebay_actors::{Domain, Fault};
use forebay_connectors::{DataPlan, Lease};
use serde::{Deserialize, Serialize};

use super::leases::RowCounts;
use super::members::Role;

/// Who speaks: a member and its incarnation, at a coordinator of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberId {
    /// What it does.
    pub role: Role,
    /// Its rank, from 0.
    pub rank: u32,
    /// Which start of this rank it is.
    pub incarnation: u64,
    /// Which start of the coordinator it joined.
    pub boot: u64,
}

/// `join`: a process starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JoinRequest {
    pub(crate) role: Role,
    pub(crate) rank: u32,
    /// Where others reach it; readers are not reached.
    pub(crate) address: Option<String>,
    /// Digest of the job, which must be the same everywhere.
    pub(crate) job: String,
}

/// `beat`: a sign of life.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemberRequest {
    pub(crate) member: MemberId,
}

/// Its answer, and that of `watch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// How far the run is.
    pub phase: RunPhase,
    /// Who must join before it begins, and has not.
    pub missing: Vec<String>,
    /// (incarnation, address) of each ps, by rank.
    pub ps: Vec<Option<(u64, String)>>,
    /// (incarnation, address) of each trainer, by rank.
    pub trainers: Vec<Option<(u64, String)>>,
    /// What is read, once a reader has seen it.
    pub data: Option<DataPlan>,
    /// (epoch, window): everything before it is done.
    pub first_open: (u32, u64),
    /// Rows and batches that are done.
    pub counts: RowCounts,
    /// Windows that are done.
    pub windows_done: u64,
    /// Windows of all epochs.
    pub windows_total: u64,
    /// Leases that were given out a second time, or more often.
    pub reassigned_leases: u64,
    /// Leases that were lost and that nobody has taken yet.
    pub lost_leases: u64,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// Members are missing.
    Gathering,
    /// Rows are read and trained on.
    Running,
    /// Readers give out what they have and take no more.
    Draining,
    /// Every row is trained on; trainer 0 saves and evaluates.
    Finished,
    /// All is done: processes end.
    Over,
    /// It cannot go on.
    Failed(Failure),
}

/// Why a run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Who can mend it.
    pub domain: Domain,
    /// Where and why.
    pub message: String,
}

impl Failure {
    /// The fault that every member ends with.
    pub fn fault(&self) -> Fault {
        match self.domain {
            Domain::User => Fault::user(self.message.clone()),
            Domain::External => Fault::external(self.message.clone()),
            Domain::Internal => Fault::internal(self.message.clone()),
        }
    }
}

/// `lease`: a reader that has seen `data` asks for work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseRequest {
    pub(crate) member: MemberId,
    pub(crate) data: DataPlan,
    /// It has enough for now, and takes only what another reader has lost.
    #[serde(default)]
    pub(crate) lost_only: bool,
}

/// `complete`: every batch of a lease is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompletedLease {
    pub(crate) member: MemberId,
    pub(crate) lease: Lease,
    pub(crate) counts: RowCounts,
}

/// `fail`: a member cannot go on, and neither can the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailRequest {
    pub(crate) member: MemberId,
    pub(crate) failure: Failure,
}
