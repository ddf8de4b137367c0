//! A warning about dense features some of whose values are far from all others.

use forebay_base::listed;
use forebay_job::{DenseColumn, DenseStatistics};

/// A feature with such values.
pub(crate) struct FarValues {
    column: String,
    /// The share of such values in a sample; 0 if it has none.
    share: f64,
    /// The farthest value.
    farthest: f64,
}

impl FarValues {
    /// `typical`: the statistics of the values that are not far. `all`: those of all values.
    pub(crate) fn new(feature: &DenseColumn, typical: &DenseStatistics, all: &DenseStatistics, share: f64) -> Self {
        let is_below = typical.mean - all.min > all.max - typical.mean;
        let farthest = if is_below { all.min } else { all.max };
        Self { column: feature.column.clone(), share, farthest }
    }
}

/// Logs these features.
pub(crate) fn warn(features: &[FarValues]) {
    /// A job may have thousands of columns.
    const SHOWN: usize = 10;
    if features.is_empty() {
        return;
    }
    let shown = features.iter().map(|FarValues { column, share, farthest }| match share {
        0.0..0.0005 => format!("`{column}` (less than .1% of its values; the farthest is {farthest})"),
        _ => format!("`{column}` ({:.1}% of its values; the farthest is {farthest})", 100.0 * share),
    });
    tracing::warn!(
        "columns.dense: a few values are far from all others: {}. The scale is that of the others. If such a value means a missing one, \
         write null instead, or name it in data.csv.nulls; or give the feature clip",
        listed(shown, SHOWN)
    );
}
