//! One model, several processes: readers, parameter servers (ps) and trainers, each scaled independently.
//!
//! ```text
//!  reader r:  read ─→ parse ─→ batch ─→ ship ═══ Flight, credits ═══╗
//!                 ↑ leases                                          ║
//!  coordinator (in ps 0): members, leases, row counts               ║
//!                                                                   ╚═→ trainer t: receive ─→ lookup ─→ train ─→ push
//!  ps p:  shards of the table (and blocks of the dense parameters) ═══════════════════════════════╩═════════════════╝
//! ```
//!
//! The job's `[placement]` says how many processes of each role there are; all of them run the same job file. A process joins
//! with a [`ProcessConfig`] and works until the run is over: [`Ps::run`](crate::roles::Ps::run),
//! [`Reader::run`](crate::roles::Reader::run), and for a trainer [`trainer`](fn@crate::roles::trainer), which
//! returns a [`Training`](crate::Training) like any other.
//!
//! Read in this order:
//! 1. `messages.rs` (with `json.rs`), then `run_state.rs` with `members.rs` and `leases.rs`: the state machine of the coordinator.
//!    `coordinator.rs` serves it. `run_state/leaving.rs` with `departure.rs`: a trainer leaves, and the run goes on. `absent_readers.rs`:
//!    the run has no reader. `over_before.rs`: the run had ended before this process was started.
//! 2. `member.rs` with `refusals.rs`, `lease_client.rs` and `session.rs`: the coordinator's client in every process. `listen.rs`: the
//!    address of a process. `supervisor_client.rs`: the client of the program that starts the processes.
//! 3. `batches/`: how batches get from readers to trainers.
//! 4. `cuts/`: how a checkpoint is cut over several trainers. `snapshot_handler.rs` with `snapshot_turns.rs`, and their client
//!    `ps_snapshots.rs`: the ps write their rows. `start_state.rs`: what an attempt begins with.
//! 5. `dense.rs`: the dense parameters in the ps. `acknowledge.rs`: the ps forget pushes that are done.
//! 6. `meters.rs`: how the meters of all processes come together. `timelines.rs` with `clock_offset.rs`: what all processes did when.
//! 7. `prediction_plan.rs`: a prediction with readers apart. [`roles`](crate::roles): the processes.
//!
//! # Where do the rows of a lost reader go, and why is none lost and none applied twice?
//!
//! The rows of an epoch are cut into windows, and every batch has an id (epoch, window, index) that only the data determines.
//! Several processes may make and compute the same batch. That every row is trained on exactly once means that its gradients are
//! applied exactly once.
//!
//! 1. `members.rs`: a reader without a heartbeat for `placement.lease_seconds` is lost (`Members::newly_lost`, called by
//!    `RunState::tick` in `run_state.rs`). It is lost at once if it reports a fault of its disk or network (`RunState::fail`), leaves
//!    (`RunState::leave` in `run_state/leaving.rs`), or is started again (`RunState::join` in `run_state/attempts.rs`).
//! 2. `leases.rs`: its leases go back into the book (`LeaseBook::return_leases_of`) and to the next reader that asks, with a higher
//!    term. Readers wait for that in `lease_client.rs` (`LostLeases::wait`).
//! 3. `connectors/src/window.rs`, `batches/src/batch/cutter.rs`: the new reader makes the same batches again.
//!    `batches/send_queue.rs`: every reader keeps a batch until a trainer reports it done, so if a trainer dies, readers send
//!    its batches to the others or to the process that takes over its rank. `batches/lease_progress.rs`: when all batches of a
//!    window are done, the reader reports its rows.
//! 4. `batches/receive_queue.rs`: batches that came whole before the loss stay in the trainer, so it may receive a batch from both
//!    readers. The coordinator tells neither a trainer the terms nor a reader its loss: a trainer knows the terms of the batches that it
//!    received, and a reader that was cut off learns of its loss from the trainer's answer. `ReceiveQueue::put` does with a batch:
//!    - If it is done, the trainer answers `Done`.
//!    - If a batch of the same window came with a higher term, the trainer answers `Stale`, and the reader forgets the window.
//!    - If it came before and is not done (the usual case), the trainer keeps the first copy only. When that is done, it answers `Done`
//!      to each reader that sent the batch.
//!    - Else the trainer keeps it, to train on it.
//! 5. `ps/src/exactly_once.rs`: with several trainers the two readers may send a batch to two of them, and both compute it (not with
//!    `sync`: `stages/ship.rs` fixes the trainer of a batch). Both pushes carry the batch id, and `ExactlyOnce::offer` lets each shard
//!    and each dense block apply an id once. `acknowledge.rs` lets them forget the ids of windows that are done. Dense parameters in
//!    the trainer need no such check: then there is only one trainer, and its receive queue takes each batch id once.
//!
//! `LeaseBook::complete` then counts each window once, the windows of a lease in their order, and checks that its rows were trained on or
//! rejected (not of text, whose rows are unknown until they are read).

mod absent_readers;
pub(crate) mod acknowledge;
pub(crate) mod batches;
mod clock_offset;
pub(crate) mod coordinator;
pub(crate) mod cuts;
pub(crate) mod dense;
pub(crate) mod departure;
mod json;
pub(crate) mod lease_client;
mod leases;
mod listen;
pub(crate) mod member;
pub(crate) mod members;
mod messages;
pub(crate) mod meters;
mod over_before;
pub(crate) mod prediction_plan;
mod ps_snapshots;
mod refusals;
mod run_state;
pub(crate) mod session;
#[cfg(test)]
mod simulation;
pub(crate) mod snapshot_handler;
mod snapshot_turns;
pub(crate) mod start_state;
mod supervisor_client;
mod timelines;

pub use forebay_batches::RowCounts;
pub use members::Role;
pub(crate) use messages::job_digest;
pub use messages::{Failure, MemberId, RunPhase, RunStatus};
pub use over_before::ended_before;
pub use prediction_plan::PredictionPlan;
pub(crate) use ps_snapshots::PsSnapshots;
pub use session::{ClusterProcess, ClusterSession, DEFAULT_PORT, ProcessConfig};
#[cfg(test)]
pub(crate) use snapshot_handler::SnapshotHandler;
pub use supervisor_client::SupervisorClient;
pub use timelines::ProcessTimeline;

use std::time::Duration;

use forebay_job::Job;

/// How often a process calls `stop` and `show`. A new run status wakes it at once.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Whether trainers take the batches that readers send in the order of the data. A trainer that reads by itself takes its own batches as
/// they come.
pub(crate) fn receives_in_order(job: &Job) -> bool {
    ordered(job) && job.placement.readers > 0
}

/// Whether trainers take batches in the order of the data, so that every run gives the same bits, or that whole epochs lie before an
/// evaluation.
pub(crate) fn ordered(job: &Job) -> bool {
    let alone = job.placement.trainers == 1;
    job.train.sync || alone && (job.train.staleness.is_sequential() || job.evaluation.every.is_some())
}
