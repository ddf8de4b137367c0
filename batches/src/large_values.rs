//! A warning about dense features with large values: a model learns little from such inputs, or its loss explodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_actors::commas;

/// Inputs of a model are large if their root mean square is at least this. Two features from 0 to 100 without a scale cost `wide_deep` .1 of
/// its AUC in one pass (docs/quality.md, "The scale of dense features"). Logarithms of counts and hours of a day are smaller.
const LARGE: f64 = 30.0;

/// Warns once about large inputs of the model. Clones share whether it has.
#[derive(Clone, Default)]
pub struct LargeValues(Arc<AtomicBool>);

/// A dense feature whose inputs are large in one batch of rows.
pub(crate) struct LargeInputs<'a> {
    column: &'a str,
    /// The root mean square of its finite inputs.
    typical: f64,
    largest: f32,
}

impl LargeValues {
    /// Whether nothing was warned of yet.
    pub(crate) fn looks(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    /// Logs the features that were `found` in a batch of `rows` rows: only for the first batch that has some.
    pub(crate) fn warn(&self, found: &[LargeInputs<'_>], rows: usize) {
        if !found.is_empty() && !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!("columns.dense: {}", said(found, rows));
        }
    }
}

/// A dense feature with these inputs, if they are large. Values that are not finite do not count: they make bad rows.
pub(crate) fn large_inputs<'a>(column: &'a str, inputs: &[f32]) -> Option<LargeInputs<'a>> {
    // The order of these bits is that of the absolute values, and integers are compared several at a time.
    let largest = inputs.iter().fold(0, |largest: u32, input| largest.max(input.to_bits() & 0x7fff_ffff));
    if largest < (LARGE as f32).to_bits() {
        return None;
    }
    let (mut count, mut squares, mut largest) = (0_u32, 0.0, 0.0_f32);
    for input in inputs.iter().filter(|input| input.is_finite()) {
        count += 1;
        squares += f64::from(*input).powi(2);
        largest = largest.max(input.abs());
    }
    let typical = (squares / f64::from(count.max(1))).sqrt();
    (typical >= LARGE).then_some(LargeInputs { column, typical, largest })
}

/// A large number in a few characters: `354`, `5.9e29`.
fn short(number: f64) -> String {
    if number < 1e6 { format!("{number:.0}") } else { format!("{number:.1e}") }
}

fn said(found: &[LargeInputs<'_>], rows: usize) -> String {
    /// A job may have thousands of columns.
    const SHOWN: usize = 10;
    let of_column = |LargeInputs { column, typical, largest }: &LargeInputs<'_>| {
        format!("`{column}` (root mean square {}, the largest {})", short(*typical), short(f64::from(*largest)))
    };
    let mut columns = found.iter().take(SHOWN).map(of_column).collect::<Vec<_>>().join(", ");
    if let Some(more @ 1..) = found.len().checked_sub(SHOWN) {
        columns += &format!(" and {more} more");
    }
    format!(
        "in a batch of {} rows read, the values of dense features are large, so the model may learn little, or its loss explode: {columns}; \
         give them scale = \"z_score\", for which `forebay data stats JOB --write` computes what it needs, or transform = \"log1p\" (later \
         batches are not looked at)",
        commas(rows as u64)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_mean_square_of_finite_values_decides() {
        let typical_normal: Vec<f32> = (0..100).map(|i| (i % 7) as f32 - 3.0).collect();
        for (inputs, found) in [
            (&[0.0, -42.0, 1.5][..], None),
            (&[], None),
            (&[f32::NAN, f32::INFINITY, 3.0], None),
            (&[f32::NAN], None),
            (&typical_normal, None),
            (&[-30.0, 30.0, f32::INFINITY], Some((30.0, 30.0))),
            (&[0.0, 100.0, 0.0, f32::NEG_INFINITY], Some((100.0 / 3.0_f64.sqrt(), 100.0))),
            (&[-3e38, 0.0], Some((f64::from(3e38_f32) / 2.0_f64.sqrt(), 3e38))),
        ] {
            let large = large_inputs("x", inputs).map(|large| (large.typical, large.largest));
            let near = |(a, b): ((f64, f32), (f64, f32))| (a.0 / b.0 - 1.0).abs() < 1e-12 && a.1 == b.1;
            assert!(large.zip(found).map_or(large.is_none() && found.is_none(), near), "{inputs:?}: {large:?}");
        }
    }

    #[test]
    fn the_warning_has_the_columns_once() {
        let large = LargeValues::default();
        let inputs = [large_inputs("price", &[300.0, 400.0]), large_inputs("age", &[-2e6])];
        let found: Vec<_> = inputs.into_iter().flatten().collect();
        let text = said(&found, 3);
        assert!(text.contains("`price` (root mean square 354, the largest 400), `age` (root mean square 2.0e6, the largest 2.0e6);"), "{text}");
        assert!(large.looks());
        large.warn(&[], 3);
        assert!(large.looks());
        large.clone().warn(&found, 3);
        assert!(!large.looks());
        let many: Vec<_> = (0..12).filter_map(|_| large_inputs("x", &[1e9])).collect();
        assert!(said(&many, 1).contains(" and 2 more;"));
    }
}
