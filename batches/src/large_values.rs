//! A warning about dense features with very large values: the gradients of such values explode.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_actors::{commas, counted};

/// A finite input of a model is large from here on. With initial weights of some hundredths it makes a loss of thousands.
const LARGE: f32 = 1e6;

/// Warns once about large inputs of the model. Clones share whether it has.
#[derive(Clone, Default)]
pub struct LargeValues(Arc<AtomicBool>);

/// The large inputs of one dense feature in one batch of rows.
pub(crate) struct LargeInputs<'a> {
    column: &'a str,
    inputs: u64,
    largest: f32,
}

impl LargeValues {
    /// Whether nothing was warned of yet.
    pub(crate) fn looks(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    /// Logs the large inputs that were `found` in a batch of `rows` rows: only for the first batch that has some.
    pub(crate) fn warn(&self, found: &[LargeInputs<'_>], rows: usize) {
        if !found.is_empty() && !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!("columns.dense: {}", said(found, rows));
        }
    }
}

/// The large values in the `inputs` of a dense feature, or `None` if it has none. Values that are not finite do not count: they make bad
/// rows.
pub(crate) fn large_inputs<'a>(column: &'a str, inputs: &[f32]) -> Option<LargeInputs<'a>> {
    // The order of these bits is that of the absolute values, and integers are compared several at a time.
    let largest = inputs.iter().fold(0, |largest: u32, input| largest.max(input.to_bits() & 0x7fff_ffff));
    if largest < LARGE.to_bits() {
        return None;
    }
    let large = inputs.iter().map(|input| input.abs()).filter(|input| input.is_finite() && *input >= LARGE);
    let (inputs, largest) = large.fold((0, 0.0_f32), |(count, largest), input| (count + 1, largest.max(input)));
    (inputs > 0).then_some(LargeInputs { column, inputs, largest })
}

fn said(found: &[LargeInputs<'_>], rows: usize) -> String {
    /// A job may have thousands of columns.
    const SHOWN: usize = 10;
    let of_column = |LargeInputs { column, inputs, largest }: &LargeInputs<'_>| {
        format!("`{column}` ({}, the largest {largest:e})", counted(*inputs, "value"))
    };
    let mut columns = found.iter().take(SHOWN).map(of_column).collect::<Vec<_>>().join(", ");
    if let Some(more @ 1..) = found.len().checked_sub(SHOWN) {
        columns += &format!(" and {more} more");
    }
    format!(
        "in a batch of {} rows read, dense features are beyond {LARGE:e}, which may make the loss and the gradients explode: {columns}; give \
         them transform = \"log1p\", clip or scale (later batches are not looked at)",
        commas(rows as u64)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_values_are_large_whatever_their_sign() {
        for (inputs, found) in [
            (&[0.0, -999_999.0, 1.5][..], None),
            (&[], None),
            (&[f32::NAN, f32::INFINITY, 3.0], None),
            (&[1e6, 2.0, -1e30, f32::NEG_INFINITY], Some((2, 1e30))),
        ] {
            assert_eq!(large_inputs("x", inputs).map(|large| (large.inputs, large.largest)), found, "{inputs:?}");
        }
    }

    #[test]
    fn the_warning_has_the_columns_with_their_counts_once() {
        let large = LargeValues::default();
        let inputs = [large_inputs("price", &[1e30, 5e6, 1.0]), large_inputs("age", &[-2e6])];
        let found: Vec<_> = inputs.into_iter().flatten().collect();
        let text = said(&found, 3);
        assert!(text.contains("`price` (2 values, the largest 1e30), `age` (1 value, the largest 2e6)"), "{text}");
        assert!(large.looks());
        large.warn(&[], 3);
        assert!(large.looks());
        large.clone().warn(&found, 3);
        assert!(!large.looks());
        let many: Vec<_> = (0..12).filter_map(|_| large_inputs("x", &[1e9])).collect();
        assert!(said(&many, 1).contains(" and 2 more;"));
    }
}
