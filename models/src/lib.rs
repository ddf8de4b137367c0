//! Dense compute of Forebay: from a batch and the table rows of its keys to a loss and the gradients of those rows.
//!
//! ```text
//!   ModelSpec ──┬── NativeModel   pure Rust, on the CPU                     ┐
//!               └── TorchModel    libtorch, on a CPU or GPU (feature torch) ┴── impl DenseModel
//!
//!   DenseBatch ──→ DenseModel::train ──→ StepOutput (loss, logits, row_grads)
//!                        └ DenseOptimizer steps the dense parameters
//! ```
//!
//! The caller pulls the rows of the keys from a table and pushes their gradients to it. This crate knows no actors and does no IO. Each
//! backend tests the other: from the same weights and batch both compute the same loss and gradients.
//!
//! Read these files in this order:
//! 1. `spec.rs`, `tower.rs`, `cross.rs`, `attention.rs`, `tasks.rs`, `two_towers.rs` and `final_mlp.rs`: the description of a model and of
//!    its parts; `batch.rs`: its input and output; `dense.rs`: the trait [`DenseModel`]; `error.rs`
//! 2. `params.rs`: names, shapes and first values of the dense parameters; `dense_optimizer.rs`: how they are updated; `clip_norm.rs`: the
//!    largest norm of gradients; `state.rs`: all of it as one list, for checkpoints; `dropout.rs`: which units a step drops
//! 3. `native/`: the backend in pure Rust; `torch/`: the backend on libtorch; `matmul_precision.rs`: the precision of its products
//! 4. `transfer.rs`: the step in three parts, for a device whose copies overlap with compute; `testsuite.rs`: a device for tests
//! 5. `loss.rs`, `auc.rs`, `grouped_auc.rs` (the AUC in each group of rows), `calibration.rs` and `ranks.rs` (of items, for recall): loss
//!    and metrics
//! 6. `onnx/`: the dense part of a model for other runtimes
//!
//! ```
//! use forebay_models::{DenseBatch, DenseModel, DenseOptimizer, ModelSpec, NativeModel, StepOutput};
//!
//! // Two slots, one dense feature, embeddings of 4 numbers, one hidden layer of 8.
//! let spec = ModelSpec::ctr_dnn(2, 1, 4, &[8]);
//! let mut model = NativeModel::new(spec, DenseOptimizer::adam(1e-3), 42, 1)?;
//! let batch = DenseBatch {
//!     id: 0,
//!     rows: 2,
//!     labels: &[1.0, 0.0],
//!     weights: None,
//!     dense: &[0.5, -0.5],
//!     unique_rows: &[0.1; 3 * 4], // three unique keys
//!     inverse: &[0, 1, 0, 2],     // row 0 has keys 0 and 1, row 1 has keys 0 and 2
//!     offsets: None,
//!     value_weights: None,
//! };
//! let mut out = StepOutput::default();
//! model.train(&batch, &mut out)?;
//! assert_eq!((out.logits.len(), out.row_grads.len()), (2, 3 * 4));
//! # Ok::<(), forebay_models::ModelError>(())
//! ```

mod attention;
mod auc;
mod batch;
mod calibration;
mod clip_norm;
mod cross;
mod dense;
mod dense_optimizer;
mod dropout;
mod error;
mod final_mlp;
mod grouped_auc;
mod loss;
mod matmul_precision;
mod native;
mod onnx;
mod params;
mod ranks;
mod spec;
mod state;
mod tasks;
#[cfg(feature = "testsuite")]
pub mod testsuite;
#[cfg(feature = "torch")]
pub mod torch;
mod tower;
pub mod transfer;
mod two_towers;

pub use attention::{Attention, AttentionPair};
pub use auc::{RunningAuc, auc_exact, auc_weighted};
pub use batch::{BatchShape, DenseBatch, NamedTensor, StepOutput};
pub use calibration::{ReliabilityBin, clicks_over_predicted, normalized_entropy, reliability};
pub use cross::{Cross, CrossStructure, MOST_CROSS_LAYERS};
pub use dense::DenseModel;
pub use dense_optimizer::DenseOptimizer;
pub use error::ModelError;
pub use final_mlp::{FeatureGates, FinalMlp};
pub use forebay_base::{Decay, LearningRate, LrReduction};
pub use grouped_auc::{GroupedAuc, auc_grouped};
pub use loss::{
    LabelRows, bce_with_logits, label_column, logloss, loss_sum, losses_sum, product_logit, sigmoid, sigmoid_ratio,
};
pub use matmul_precision::MatmulPrecision;
pub use native::{NativeModel, ParamBlock};
pub use onnx::{to_onnx, tower_to_onnx};
pub use ranks::{ItemVectors, Rank, rank_items};
pub use spec::{ModelSpec, Pooling, RowPart, WIDEST_LAYER};
pub use state::has_optimizer;
pub use tasks::{MOST_EXPERTS, MOST_LABELS, Sharing, Tasks};
#[cfg(feature = "torch")]
pub use torch::{TorchModel, TorchModule, init_cuda};
pub use tower::{Activation, Norm, Tower};
pub use two_towers::{Similarity, TowerInputs, TowerSide, TwoTowers, TwoTowersLoss};
