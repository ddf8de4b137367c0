//! How a run ended, which decides where its model goes.

use serde::{Deserialize, Serialize};

/// How a run without a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// All rows of all epochs were trained on.
    Complete,
    /// It was drained before that.
    Drained,
    /// It trained on all rows up to an evaluation: there the training stopped early, or the model was the best.
    StoppedEarly,
}
