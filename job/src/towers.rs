//! The fields of `[model]` for two towers: the columns of each, and the loss.

use serde::{Deserialize, Serialize};

use crate::columns::name_list;

/// The columns that one of two towers reads. Each column of `columns.slots` and `columns.dense` belongs to one of the towers, and so does
/// each cross, which goes where its columns are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TowerColumns {
    /// Columns of `columns.slots`, at least one; a range such as `C1..C26` stands for its columns.
    #[serde(deserialize_with = "name_list")]
    pub slots: Vec<String>,
    /// Columns of `columns.dense`.
    #[serde(deserialize_with = "name_list", skip_serializing_if = "Vec::is_empty")]
    pub dense: Vec<String>,
    /// Widths of its hidden layers, for instance `[128]`. Default: `model.hidden`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<Vec<usize>>,
}

/// The loss of "two_towers".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TowerLoss {
    /// The logloss of each row's label. The score is a probability.
    #[default]
    Logloss,
    /// For each row with label 1 a softmax of its item among the items of the batch (Yi et al., RecSys 2019). The score orders the items of
    /// a user; it is not a probability.
    InBatchSoftmax,
}

impl std::fmt::Display for TowerLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Logloss => "logloss",
            Self::InBatchSoftmax => "in_batch_softmax",
        })
    }
}
