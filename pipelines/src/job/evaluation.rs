//! The `[evaluation]` section of a job.

use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

/// What evaluation measures besides the quality over all rows. The columns need not be features.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationOptions {
    /// A column, such as the user: the GAUC is the mean of the AUC within the rows of each of its values, for instance `user`.
    /// Default: no GAUC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Columns, such as the country: the quality is also that of the rows of each value, for the 50 values with the most rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<String>,
}

impl EvaluationOptions {
    /// The columns that evaluation needs, without repetition.
    pub(crate) fn columns(&self) -> Vec<String> {
        let mut columns: Vec<String> = self.group.iter().cloned().collect();
        columns.extend(self.slices.iter().filter(|slice| Some(*slice) != self.group.as_ref()).cloned());
        columns
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        let twice = |(at, slice): (usize, &String)| self.slices[..at].contains(slice).then(|| slice.clone());
        match self.slices.iter().enumerate().find_map(twice) {
            Some(slice) => Err(Fault::user(format!("evaluation.slices has `{slice}` twice"))),
            None => Ok(()),
        }
    }
}
