//! Checkpoints of a real table in real folders, with faults.

mod authors;
mod chain;
mod corpus;
mod fail_points;
pub(crate) mod faulty_store;
mod mutations;
#[path = "../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "it is the library of the fuzzer, too")]
mod pack;
mod passing_faults;
mod prune;
mod ps_answers;
mod shares;
mod store_faults;

pub(crate) use chain::config;
