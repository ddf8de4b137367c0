//! Checkpoints of a real table in real folders, with faults.

mod authors;
mod chain;
mod fail_points;
mod faulty_store;
mod mutations;
mod passing_faults;
mod prune;
mod ps_answers;
mod shares;
mod store_faults;

pub(in crate::checkpoint) use chain::config;
