//! A simulation of a run of several processes: members of every role over a network that delays, repeats, drops and cuts, on virtual
//! time. A seed determines everything that happens, so a failure can be repeated.
//!
//! Real are the state machines: [`RunState`](super::run_state::RunState) with its members, leases and cuts; `LeaseProgress` and
//! `SendQueue`; `ReceiveQueue`, `Staleness`, `LookupGate`, `BatchLog`, `TrainedBatches` and `ExactOrder`; `ExactlyOnce` with fences and
//! rounds, and `SnapshotTurns`; with look-ahead `AheadOrder`, the cache of rows and the tables. Thin models replace async code and IO. They
//! are the clients of the coordinator (`process.rs`, `member.rs`); the source and the batch stage, in a reader or in a trainer that reads
//! by itself (`source.rs`); the other stages of a reader (`reader.rs`, `lookups.rs`) and of a trainer (`trainer.rs`, `trainer_input.rs`,
//! `trainer_end.rs`, `cuts.rs`, `ahead.rs`). Others are the server of a ps (`ps.rs`), the server of the coordinator (`coordinator.rs`), the
//! network (`network.rs`, `transport.rs`), and the supervisor that restarts dead processes and tells processes to end (`faults.rs`,
//! `drains.rs`, `leaving.rs`). In some runs the only trainer stops early (`early_stop.rs`). `away_store.rs` takes the store of the
//! checkpoints away.
//!
//! docs/reliability.md lists the faults that were planted in these state machines, and how many seeds found each.

mod ahead;
mod away_store;
mod coordinator;
mod cuts;
mod drains;
mod early_stop;
mod faults;
mod job;
mod leaving;
mod lookups;
mod member;
mod network;
mod process;
mod ps;
mod reader;
mod rows;
mod source;
mod tests;
mod trainer;
mod trainer_end;
mod trainer_input;
mod transport;
mod world;
