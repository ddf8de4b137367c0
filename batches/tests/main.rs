//! The stages that parse rows and cut batches, from the outside.
#![allow(clippy::unwrap_used, reason = "tests")]

mod batch;
mod features;
mod late_hashing;
mod parse;
mod times;
mod windows;
