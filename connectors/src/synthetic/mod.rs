//! Seeded rows of Criteo's shape, so that everything runs and can be measured without any download.

mod histories;
mod numbers;
mod planted_model;
mod source;

pub use planted_model::CARDINALITIES;
pub use source::{BUY, Synthetic, SyntheticSource};
