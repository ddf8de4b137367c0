//! What a sample of the rows at `data.train` decides before a new model is trained. `sampling/row_sample.rs` reads the rows.

use forebay_job::{FeatureScales, InitialBias};
use serde::{Deserialize, Serialize};

/// What a sample of the rows decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SampledSettings {
    /// The scales of dense features.
    #[serde(skip_serializing_if = "FeatureScales::is_empty")]
    pub(crate) scales: FeatureScales,
    /// The biases of a new model's logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) initial_bias: Option<InitialBias>,
}
