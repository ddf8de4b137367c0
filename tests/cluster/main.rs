//! Tests across machines, each a network namespace of this one: they need root and Debian's iproute2.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

#[path = "../common/address.rs"]
mod address;
mod bits;
mod checkpoints;
#[path = "../checkpoint/damage.rs"]
mod damage;
#[path = "../outputs/disk.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod disk;
mod drained_launch;
mod drains;
mod evaluated;
mod exact;
mod faults;
mod harness;
mod hosts;
mod jobs;
mod killed;
mod launch;
mod leaving;
mod line;
mod look_ahead;
mod metrics;
mod processes;
mod refusals;
mod relay;
mod replaced;
mod requests;
mod restarts;
mod supervise;
mod trust;
mod verdicts;
mod wire;
mod without_checkpoint;
