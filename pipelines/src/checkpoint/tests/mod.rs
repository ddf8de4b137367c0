//! Checkpoints of a real table in real folders, with faults.

mod chain;
mod fail_points;
mod mutations;
