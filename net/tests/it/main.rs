//! Servers and peers, over real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod attempts;
mod common;
mod compression;
mod connections;
mod health;
mod http;
mod refusals;
mod request_streams;
mod retry;
mod stock;
mod streams;
mod vanished;
