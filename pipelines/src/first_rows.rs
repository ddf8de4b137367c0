//! What the first rows at `data.train` decide before a new model is trained. `first_rows_reader.rs` reads them.

use forebay_job::{FeatureScales, InitialBias};
use serde::{Deserialize, Serialize};

/// What the first rows decide.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FirstRows {
    /// The scales of dense features.
    #[serde(skip_serializing_if = "FeatureScales::is_empty")]
    pub(crate) scales: FeatureScales,
    /// The biases of a new model's logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) initial_bias: Option<InitialBias>,
}
