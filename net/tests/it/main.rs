//! Servers and peers, over real sockets.

mod common;
mod health;
mod refusals;
mod retry;
mod stock;
mod streams;
mod vanished;
