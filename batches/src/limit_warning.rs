//! A warning about scaled dense features most of whose values are beyond the limit of the scale: the unit or the source of the values has
//! changed since the rows that decided the scale.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_actors::commas;
use forebay_base::listed;
use forebay_job::DenseColumn;

/// Fewer rows do not tell.
const ENOUGH: usize = 100;

/// Looks once at a batch of rows. Clones share this state.
#[derive(Clone, Default)]
pub struct LimitWarning(Arc<AtomicBool>);

impl LimitWarning {
    /// Whether this batch, of `rows` rows, is the one to look at.
    pub(crate) fn is_first(&self, rows: usize) -> bool {
        rows >= ENOUGH && !self.0.swap(true, Ordering::Relaxed)
    }
}

/// Whether most of these inputs of a model are at the limit of the feature's scale.
pub(crate) fn is_beyond(spec: &DenseColumn, inputs: &[f32]) -> bool {
    let Some(limit) = spec.limit.filter(|_| spec.scale.is_some()) else { return false };
    let beyond = inputs.iter().filter(|input| f64::from(input.abs()) >= limit).count();
    2 * beyond > inputs.len()
}

/// Logs these features of a batch of `rows` rows.
pub(crate) fn warn(found: &[&DenseColumn], rows: usize) {
    if !found.is_empty() {
        tracing::warn!("{}", said(found, rows));
    }
}

fn said(found: &[&DenseColumn], rows: usize) -> String {
    /// A job may have thousands of columns.
    const SHOWN: usize = 10;
    format!(
        "columns.dense: in a batch of {} rows, more than half of the values are beyond the limit of the scale for {}, so the model sees the \
         limit instead: compare the unit and the source of these values with those of the rows that decided the scale",
        commas(rows as u64),
        listed(found.iter().map(|spec| format!("`{}`", spec.column)), SHOWN)
    )
}

#[cfg(test)]
mod tests {
    use forebay_job::Scale;

    use super::*;

    #[test]
    fn features_with_most_values_at_the_limit_are_found_in_one_batch() {
        let spec = DenseColumn { scale: Some(Scale::ZScore), limit: Some(10.0), ..DenseColumn::from("x".to_owned()) };
        let far = |count: usize| (0..10).map(|i| if i < count { -10.0 } else { 0.5 }).collect::<Vec<f32>>();
        assert_eq!([5, 6].map(|count| is_beyond(&spec, &far(count))), [false, true]);
        assert!(!is_beyond(&DenseColumn::from("x".to_owned()), &far(10)), "no limit");
        assert!(!is_beyond(&spec, &[]));
        let warning = LimitWarning::default();
        assert_eq!([99, 100, 100].map(|rows| warning.clone().is_first(rows)), [false, true, false]);
        assert!(said(&[&spec; 12], 4096).contains("in a batch of 4,096 rows, more than half"));
        assert!(
            said(&[&spec; 12], 4096).contains("for `x`, `x`, `x`, `x`, `x`, `x`, `x`, `x`, `x`, `x` and 2 more, so")
        );
    }
}
