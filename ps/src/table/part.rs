//! A part of a row: its place and how it changes.

use crate::config::Init;
use crate::optim::Optimizer;

/// One part of every row. Offsets are in floats, `weight_at` from the first weight, `state_at` from the first state.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) dim: usize,
    pub(crate) weight_at: usize,
    pub(crate) state_at: usize,
    pub(crate) state_len: usize,
    pub(crate) optimizer: Optimizer,
    pub(super) init: Init,
    pub(super) seed: u64,
}
