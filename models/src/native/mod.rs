//! The embedded backend: explicit forward and backward passes over the pure-Rust `gemm` crate, in f32.
//!
//! A step runs in three phases, each spread over the threads as a list of tasks (`workers.rs`):
//! 1. lanes, each a stretch of the batch's rows with gradients of its own, worked off chunk by chunk so that the
//!    activations stay in a core's own cache (`lane.rs`): gather, forward, loss, backward;
//! 2. the lanes' gradients are added up, and the row gradients scattered to the unique rows (`model.rs`);
//! 3. the dense optimizer over stretches of the parameters (`block.rs`), after everything was found to be finite.
//!
//! Lanes, chunks and the order of every sum are fixed by the spec and the batch, not by the threads: the numbers are
//! the same to the bit on every run, and for any number of threads up to four (of one kind of machine: `gemm` picks its
//! kernels by instruction set). Calls compute on the caller's thread and `threads - 1` more, and block until the step is
//! done.

mod block;
mod gather;
mod gemm;
mod kernels;
mod lane;
mod model;
mod network;
mod workers;

pub use block::ParamBlock;
pub use model::NativeModel;
