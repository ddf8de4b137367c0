//! A simulation of a run of several processes: members of every role over a network that delays, repeats, drops and cuts, on virtual
//! time. A seed determines everything that happens, so a failure can be repeated.
//!
//! Real are the state machines: [`RunState`](super::run_state::RunState) with its members, leases and cuts; `LeaseProgress` and
//! `SendQueue`; `ReceiveQueue`, `Staleness`, `LookupGate`, `BatchLog`, `TrainedBatches` and `ExactOrder`; `ExactlyOnce` with fences
//! and rounds, and `SnapshotTurns`. Thin models stand for what is async or does IO: the clients of the coordinator (`process.rs`,
//! `member.rs`), the stages of a reader (`reader.rs`) and of a trainer (`trainer.rs`, `trainer_end.rs`, `cuts.rs`), the server of a ps
//! (`ps.rs`) and that of the coordinator (`coordinator.rs`), the network (`network.rs`, `transport.rs`), and whoever starts processes
//! again (`faults.rs`). Trainers that read by themselves, look-ups at the readers and drains are not simulated.
//!
//! Faults that were planted in these state machines, and how many of the first 1,000 seeds found them: a push is applied as often as
//! it comes (987); a batch is done when it is received (990); a repeated request for a lease gets another lease (376); a trainer stops
//! for a cut before its pushes are applied (352); batches of a broken channel are not sent again (202); a restarted reader keeps its
//! predecessor's leases (134); the process that started first may join last (81); heartbeats of any incarnation count (38); requests
//! of earlier attempts count (2); a window counts twice (a panic in the first). Not found: a cut that was given up is confirmed; a
//! trainer that was replaced may push.

mod coordinator;
mod cuts;
mod faults;
mod job;
mod member;
mod network;
mod process;
mod ps;
mod reader;
mod tests;
mod trainer;
mod trainer_end;
mod transport;
mod world;
