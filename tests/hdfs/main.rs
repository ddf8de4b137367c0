//! Tests on a real Hadoop cluster: NameNode and DataNodes of Apache Hadoop 3.4 as plain processes on this machine.
//!
//! `make setup` gets what they need; `cargo test --test hdfs` then starts the cluster itself, on first use, and a
//! watcher stops it when this process ends, however it ends. See `cluster.rs` for what a test may do to it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

#[path = "../common/mod.rs"]
mod common;

mod away;
mod cluster;
mod cut;
mod deltas;
mod faults;
mod frozen;
mod ha;
mod kerberos;
mod messages;
mod reading;
mod rows;
#[path = "../export/server.rs"]
#[allow(dead_code, reason = "the tests of exports use the rest")]
mod server;
mod spark;
mod verdicts;
mod writing;
