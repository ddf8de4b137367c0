//! Dense compute of Forebay: what happens between the rows of a batch's keys and their gradients.
//!
//! A model is a [`ModelSpec`]; two backends run it behind [`DenseModel`]: [`NativeModel`], in the program itself, and
//! `TorchModel` (feature `torch`), through libtorch on a CPU or GPU. Each is the other's test: the same weights and batch
//! in, the same loss and gradients out. No actors, no IO.
//!
//! Read these files in this order: `spec.rs` (what a model is), `dense.rs` (what it takes and gives), `transfer.rs` (the
//! same where the way to the device is long), `params.rs` (its dense parameters), `native/` (how it is computed), `auc.rs`
//! and `loss.rs` (how good it is).
//!
//! ```
//! use forebay_models::{DenseBatch, DenseModel, DenseOptimizer, ModelSpec, NativeModel, StepOutput};
//!
//! // Two slots, one dense feature, embeddings of 4 numbers, one hidden layer of 8.
//! let spec = ModelSpec::ctr_dnn(2, 1, 4, &[8]);
//! let mut model = NativeModel::new(spec, DenseOptimizer::adam(1e-3), 42, 1)?;
//! let batch = DenseBatch {
//!     rows: 2,
//!     labels: &[1.0, 0.0],
//!     dense: &[0.5, -0.5],
//!     unique_rows: &[0.1; 3 * 4], // three unique keys
//!     inverse: &[0, 1, 0, 2],     // row 0 has keys 0 and 1, row 1 has keys 0 and 2
//!     offsets: None,
//! };
//! let mut out = StepOutput::default();
//! model.train(&batch, &mut out)?;
//! assert_eq!((out.logits.len(), out.row_grads.len()), (2, 3 * 4));
//! # Ok::<(), forebay_models::ModelError>(())
//! ```

mod auc;
mod dense;
mod error;
mod loss;
mod native;
mod optim;
mod params;
mod spec;
#[cfg(feature = "torch")]
pub mod torch;
pub mod transfer;

pub use auc::{RunningAuc, auc_exact};
pub use dense::{BatchShape, DenseBatch, DenseModel, NamedTensor, StepOutput};
pub use error::ModelError;
pub use loss::{bce_with_logits, logloss, sigmoid};
pub use native::{NativeModel, ParamBlock};
pub use optim::DenseOptimizer;
pub use spec::{Activation, Cross, ModelSpec, Pooling, RowPart, Tower};
#[cfg(feature = "torch")]
pub use torch::{TorchModel, TorchModule, init_cuda};
