//! Tests on a real Slurm: slurmctld, munged and a slurmd per node as plain processes on this machine, and `deploy/slurm` on it.
//!
//! `make setup` gets what they need; each test starts a cluster of its own (a second), and a watcher stops it when this process
//! ends, however it ends. `cluster.rs` has what a test may do to it; `scripts.rs` looks at the scripts alone, with a stand-in
//! for the program.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod cluster;
mod scripts;
mod training;
