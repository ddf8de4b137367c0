//! Small helpers that several crates of Forebay use.
//!
//! - [`SplitMix64`], [`mix64`]: random numbers that a seed determines, the same on every machine
//! - [`Backoff`]: waits between retries
//! - [`nearest`]: the name that was probably meant
//! - [`cpu_seconds`], [`thread_times`], [`core_times`]: CPU time of this process, of its threads and of the cores; [`cpu_quota`]: how much its cgroups allow
//! - [`resident_memory`], [`free_memory`], [`memory_limit`]: memory that this process has, may still take, and may have
//! - [`LearningRate`]: of the sparse and the dense optimizers; [`LrReductions`]: the reductions of a run
//! - [`parse_hex`]: hexadecimal numbers in text; [`floor_to_integer`], [`parse_floor`]: numbers rounded down to integers
//! - [`StrictTables`]: refuses a list of values in place of a table, in all that serde reads
//! - [`panic_message`]: the text of a panic; [`catch_expected`]: for readers of hostile bytes
//! - [`is_out_of_memory`]: whether a decoder says that it got no memory

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
mod memory_error;
mod names;
mod panic;
mod random;
mod strict_tables;

pub use backoff::Backoff;
pub use cpu::{CoreTimes, ThreadTimes, core_times, cpu_seconds, thread_times};
pub use cpu_quota::cpu_quota;
pub use floor::{floor_to_integer, parse_floor};
pub use free_memory::{free_memory, memory_limit};
pub use hex::parse_hex;
pub use learning_rate::{Decay, LearningRate};
pub use lr_reduction::{LrReduction, LrReductions};
pub use memory::{ResidentMemory, resident_memory};
pub use memory_error::is_out_of_memory;
pub use names::{listed, nearest};
pub use panic::{catch_expected, panic_is_expected, panic_message};
pub use random::{GOLDEN_GAMMA, SplitMix64, mix64, random_seed, signed_unit_f32, unit_f64, unmix64};
pub use strict_tables::StrictTables;
