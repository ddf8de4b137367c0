//! The embedded backend: explicit forward and backward passes over the pure-Rust `gemm` crate, in f32; products of training steps also on
//! the tile unit of x86 processors (`amx/`).
//!
//! A step runs in three phases, each spread over the threads as a list of tasks (`workers.rs`):
//! 1. Micro-batches (`micro_batch.rs`): each takes a range of the batch's rows, with gradients of its own, and runs gather,
//!    forward, loss and backward in chunks, so that the activations stay in a core's own cache.
//! 2. The gradients of the micro-batches are added up (`model.rs`), and the row gradients are scattered to the unique rows (`scatter.rs`).
//! 3. If every number is finite, the dense optimizer updates ranges of the parameters (`block.rs`).
//!
//! With in-batch softmax the vectors of all rows come first (`two_towers.rs`), then the loss and its gradients by them
//! (`in_batch_softmax.rs`), and phase 1 computes the activations again in its backward pass.
//!
//! `count_better.rs` counts, after training, the items whose vectors score above a row's item.
//!
//! The spec and the batch fix the micro-batches, the chunks and the order of every sum. So the numbers are the same to the bit
//! on every run and for any number of threads (on one kind of machine: the instruction set decides how products are made). Calls compute
//! on the caller's thread and `threads - 1` more, and block until the step is done.

mod activate;
#[cfg_attr(not(all(target_arch = "x86_64", target_os = "linux")), path = "no_amx.rs")]
mod amx;
mod attention;
mod bags;
mod block;
mod count_better;
mod cross_layers;
mod cross_network;
mod feature_gates;
mod final_mlp;
mod final_mlp_layers;
mod gather;
mod gemm;
mod hidden_layers;
mod in_batch_softmax;
mod kernels;
mod layer;
mod matrix;
mod micro_batch;
mod model;
mod network;
mod packed_weight;
mod packed_weights;
mod scatter;
mod step_weights;
mod task_kernels;
mod tasks;
mod two_tower_layers;
mod two_towers;
mod widths;
mod workers;

pub use block::ParamBlock;
pub(crate) use count_better::{ItemGroups, inner_product};
pub use model::NativeModel;
