//! Tests on a real Slurm: slurmctld, munged and a slurmd per node as plain processes on this machine, and `deploy/slurm` on it.
//!
//! `make setup` installs what they need. Each test starts its own cluster, which takes a second; a watcher stops it when the test
//! process ends. `cluster.rs` is the cluster; `scripts.rs` tests the scripts with a stand-in for the program; `training.rs`
//! trains.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod cluster;
mod scripts;
mod training;
