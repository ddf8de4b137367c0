//! One model, several processes: readers, parameter servers (ps) and trainers, each scaled by itself.
//!
//! ```text
//!  reader r:  read ─→ parse ─→ batch ─→ ship ═══ Flight, credits ═══╗
//!                 ↑ leases                                          ║
//!  coordinator (in ps 0): who is there, who reads what, ledger      ║
//!                                                                   ╚═→ trainer t: receive ─→ lookup ─→ train ─→ push
//!  ps p:  shards of the table (and blocks of the dense parameters) ═══════════════════════════════╩═════════════════╝
//! ```
//!
//! What each process does is the job's `[placement]`; all run the same job file. A process takes its [`ProcessConfig`], joins the
//! coordinator, and works until the run is over: [`Ps::run`], [`Reader::run`], and for a trainer [`trainer`], which gives a
//! [`Training`](crate::Training) like any other.
//!
//! **Exactly once.** The rows of an epoch are cut into windows (see `sources.rs`), and a batch is named by (epoch, window,
//! index), whoever makes it. Readers hold *leases* of windows; what is not done when a reader is lost goes to another. A
//! reader keeps each batch until it is done; what a trainer that dies had in hand goes to the next. Shards apply each name
//! once. So every row is trained on once, whoever dies when, and the coordinator's books show it.
//!
//! Read in this order: `session.rs` (a process takes part), `coordinator.rs` with `members.rs` and `leases.rs` (who is there,
//! who reads what), `member.rs` (the other end), `batches/` (from readers to trainers), `reader.rs`, `ps.rs`, `trainer.rs`.

mod acknowledge;
pub(crate) mod batches;
mod coordinator;
mod dense;
mod leases;
pub(crate) mod member;
mod members;
mod messages;
mod ps;
mod reader;
mod run_state;
mod session;
mod trainer;

pub use leases::RowCounts;
pub use members::Role;
pub use messages::{Failure, MemberId, RunPhase, RunStatus};
pub use ps::Ps;
pub use reader::Reader;
pub use session::{ClusterSession, DEFAULT_PORT, ProcessConfig};
pub use trainer::trainer;

use std::time::Duration;

use crate::job::Job;

/// How often a process asks whether it is to stop, and shows how far it is. What ends a run wakes it at once.
const TICK: Duration = Duration::from_millis(100);

/// Whether trainers take batches in the order of the data: what makes a run the same to the bit on every run.
pub(crate) fn ordered(job: &Job) -> bool {
    job.train.sync || (job.train.staleness == 0 && job.placement.trainers == 1)
}
