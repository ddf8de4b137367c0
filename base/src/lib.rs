//! Small helpers that several crates of Forebay use.
//!
//! - `random.rs`: random numbers that a seed determines, the same on every machine ([`SplitMix64`], [`mix64`])
//! - `backoff.rs`: waits between retries ([`Backoff`])
//! - `names.rs`: the name that was probably meant ([`nearest`]), and short lists of names ([`listed`])
//! - `cpu.rs`: CPU time of this process, of its threads and of the cores ([`cpu_seconds`], [`thread_times`], [`core_times`]);
//!   `cpu_quota.rs`: how much its cgroups allow ([`cpu_quota`]); `cgroup.rs`: which cgroups these are
//! - `memory.rs`, `free_memory.rs`: memory that this process has ([`resident_memory`]), may still take ([`free_memory`]), and may have
//!   ([`memory_limit`]); `memory_budget.rs`: what is left of a limit ([`MemoryBudget`])
//! - `learning_rate.rs`: rates of the sparse and the dense optimizers ([`LearningRate`]); `lr_reduction.rs`: the reductions of a run
//!   ([`LrReductions`])
//! - `hex.rs`: hexadecimal numbers in text ([`parse_hex`]); `floor.rs`: numbers rounded down to integers ([`floor_to_integer`],
//!   [`parse_floor`])
//! - `reminder.rs`: when something that lasts is reported again ([`next_reminder`])
//! - `strict_tables.rs`: refuses a list of values in place of a table, in all that serde reads ([`StrictTables`])
//! - `trial.rs`: whether a change of a setting has helped, and which changes did not ([`Trials`])
//! - `panic.rs`: the text of a panic ([`panic_message`]), and panics that readers of hostile bytes expect ([`catch_expected`])
//! - `memory_error.rs`: whether a decoder says that it got no memory ([`is_out_of_memory`])

mod backoff;
mod cgroup;
mod cpu;
mod cpu_quota;
mod floor;
mod free_memory;
mod hex;
mod learning_rate;
mod lr_reduction;
mod memory;
mod memory_budget;
mod memory_error;
mod names;
mod panic;
mod random;
mod reminder;
mod strict_tables;
mod trial;

pub use backoff::Backoff;
pub use cpu::{CoreTimes, ThreadTimes, core_times, cpu_seconds, thread_times};
pub use cpu_quota::cpu_quota;
pub use floor::{floor_to_integer, parse_floor};
pub use free_memory::{free_memory, memory_limit};
pub use hex::parse_hex;
pub use learning_rate::{Decay, LearningRate};
pub use lr_reduction::{LrReduction, LrReductions};
pub use memory::{ResidentMemory, resident_memory};
pub use memory_budget::MemoryBudget;
pub use memory_error::is_out_of_memory;
pub use names::{listed, nearest};
pub use panic::{catch_expected, panic_is_expected, panic_message};
pub use random::{GOLDEN_GAMMA, SplitMix64, mix64, random_seed, signed_unit_f32, unit_f64, unmix64};
pub use reminder::next_reminder;
pub use strict_tables::StrictTables;
pub use trial::{Trial, TrialState, Trials};
