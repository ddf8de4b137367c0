//! A model outside of Forebay: the documented folder, exports, and deltas, each read by others and compared with `predict`.
//!
//! Needs pyarrow, numpy, xxhash, onnxruntime and scikit-learn in `.tools/python` (`make setup-python`).
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod delta;
mod flight_scores;
mod measured;
mod onnx;
mod own;
mod page;
mod rounded_delta;
mod rows;
mod serve;
mod server;
