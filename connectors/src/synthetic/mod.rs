//! Seeded rows of Criteo's shape, so that everything runs and can be measured without any download.

mod numbers;
mod source;
mod world;

pub use source::{Synthetic, SyntheticSource};
pub use world::CARDINALITIES;
