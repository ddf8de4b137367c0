//! The precision of matrix products.

use serde::{Deserialize, Serialize};

/// The least precision of the products of f32 matrices in a training step, in the words of PyTorch's `set_float32_matmul_precision`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MatmulPrecision {
    /// f32.
    #[default]
    Highest,
    /// Each f32 number may be taken as the sum of two bf16 numbers, which has 16 of its 24 bits. Sums are f32.
    High,
}
