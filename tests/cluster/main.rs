//! Tests across machines, each a network namespace of this one: they need root and Debian's iproute2.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod harness;
mod hosts;
mod wire;
