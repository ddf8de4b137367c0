//! A simulation of a run of several processes: members of every role over a network that delays, repeats, drops and cuts, on virtual
//! time. A seed determines everything that happens, so a failure can be repeated.
//!
//! Real are the state machines: [`RunState`](super::run_state::RunState) with its members, leases and cuts; `LeaseProgress` and
//! `SendQueue`; `ReceiveQueue`, `Staleness`, `LookupGate`, `BatchLog`, `TrainedBatches` and `ExactOrder`; `ExactlyOnce` with fences
//! and rounds, and `SnapshotTurns`. Thin models stand for what is async or does IO: the clients of the coordinator (`process.rs`,
//! `member.rs`), the stages of a reader (`reader.rs`) and of a trainer (`trainer.rs`, `trainer_end.rs`, `cuts.rs`), the server of a ps
//! (`ps.rs`), the server of the coordinator (`coordinator.rs`), the network (`network.rs`, `transport.rs`), and the supervisor that starts
//! dead processes again, as `launch` does (`faults.rs`). Trainers that read by themselves, look-ups at the readers and drains are not
//! simulated.
//!
//! docs/reliability.md lists the faults that were planted in these state machines, and how many seeds found each.

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
