//! Servers and peers, over real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
mod compression;
mod health;
mod refusals;
mod retry;
mod stock;
mod streams;
mod vanished;
