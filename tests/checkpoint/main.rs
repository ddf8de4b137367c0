//! Runs of the program with checkpoints: killed at any time and resumed, they end with the model of an undisturbed run. And runs
//! that continue from the model of an earlier one.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

#[path = "../cluster/bits.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod bits;
#[path = "../common/mod.rs"]
mod common;
mod compact;
mod damage;
mod day_by_day;
mod drained_report;
mod evaluations;
mod follow;
mod jobs;
mod metrics;
mod moved;
mod plateau;
mod refusals;
mod resume;
mod resume_from;
mod two_runs;
mod versions;
