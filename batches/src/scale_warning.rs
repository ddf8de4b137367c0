//! A warning about dense features that are large, or far from 0 for their spread: a model learns little from them, or its loss explodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_actors::commas;
use forebay_base::listed;
use forebay_job::{DenseColumn, look_like_counts};

/// Inputs of a model are large if their root mean square is at least this. Two features from 0 to 100 without a scale cost `wide_deep` .1
/// of its AUC in one pass (docs/quality.md, "The scale of dense features"). Logarithms of counts and hours of a day are smaller.
const LARGE: f64 = 30.0;

/// Inputs are far from 0 if their mean is at least this, and at least this many standard deviations. Logarithms of ages from 18 to 60 are
/// far from 0, and cost `wide_deep` .07 of its AUC.
const FAR: f64 = 3.0;

/// Fewer rows do not tell whether a feature is far from 0.
const ENOUGH: usize = 1000;

/// Warns once about inputs of the model that need a scale. Clones share this state.
#[derive(Clone, Default)]
pub struct ScaleWarning(Arc<Seen>);

#[derive(Default)]
struct Seen {
    warned: AtomicBool,
    /// A batch with enough rows has come.
    enough: AtomicBool,
}

/// A dense feature that needs a scale, by its inputs in one batch of rows.
pub(crate) struct UnscaledFeature<'a> {
    spec: &'a DenseColumn,
    mean: f64,
    deviation: f64,
    least: f64,
    /// The largest absolute value.
    largest: f64,
}

/// What a job can give to a dense feature, in the order of the warning.
const ADVICE: [&str; 3] = [
    "transform = \"log1p\"",
    "scale = \"z_score\", for which `forebay data stats JOB --write` computes what it needs,",
    "clip",
];

impl UnscaledFeature<'_> {
    /// Logarithms for lists, which cannot have a scale, and for features that look like counts, most of them small and a few large. Limits
    /// for features with a scale. A scale for the others.
    fn advice(&self) -> &'static str {
        let [log1p, z_score, clip] = ADVICE;
        let looks_like_counts = look_like_counts(self.least, self.mean, self.deviation);
        match self.spec.length {
            _ if self.spec.scale.is_some() => clip,
            Some(_) => log1p,
            None if self.spec.transform.could_be_log1p() && looks_like_counts => log1p,
            None => z_score,
        }
    }
}

impl ScaleWarning {
    /// Whether nothing was warned of yet.
    pub(crate) fn is_pending(&self) -> bool {
        !self.0.warned.load(Ordering::Relaxed)
    }

    /// Whether this batch, of `rows` rows, is the one that tells which features are far from 0.
    pub(crate) fn is_first(&self, rows: usize) -> bool {
        rows >= ENOUGH && !self.0.enough.swap(true, Ordering::Relaxed)
    }

    /// Logs the features that were `found` in a batch of `rows` rows, for the first batch with such features.
    pub(crate) fn warn(&self, found: &[UnscaledFeature<'_>], rows: usize) {
        if !found.is_empty() && !self.0.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("columns.dense: {}", said(found, rows));
        }
    }
}

/// The dense feature of these inputs, if they are large, or, in the first batch, far from 0. Values that are not finite do not count: they
/// make bad rows.
pub(crate) fn unscaled<'a>(spec: &'a DenseColumn, inputs: &[f32], is_first: bool) -> Option<UnscaledFeature<'a>> {
    // These bits are ordered as the absolute values, and vectors compare integers several at a time.
    let largest = inputs.iter().fold(0, |largest: u32, input| largest.max(input.to_bits() & 0x7fff_ffff));
    if !is_first && largest < (LARGE as f32).to_bits() {
        return None;
    }
    let finite = || inputs.iter().filter(|input| input.is_finite()).map(|&input| f64::from(input));
    let (count, squares) = finite().fold((0.0, 0.0), |(count, squares), input| (count + 1.0, squares + input * input));
    let is_large = squares > 0.0 && squares >= LARGE * LARGE * count;
    if !is_large && !is_first {
        return None;
    }
    let count = f64::max(count, 1.0);
    let mean = finite().sum::<f64>() / count;
    let deviation = (finite().map(|input| (input - mean).powi(2)).sum::<f64>() / count).sqrt();
    let (least, largest) = (finite().fold(f64::MAX, f64::min), finite().map(f64::abs).fold(0.0, f64::max));
    let is_far = is_first && deviation > 0.0 && mean.abs() >= FAR.max(FAR * deviation);
    (is_large || is_far).then_some(UnscaledFeature { spec, mean, deviation, least, largest })
}

/// A number in a few characters: `0.29`, `354`, `5.9e29`.
fn short(number: f64) -> String {
    match number.abs() {
        size if size >= 1e6 => format!("{number:.1e}"),
        size if size >= 100.0 => format!("{number:.0}"),
        _ => format!("{number:.2}"),
    }
}

fn said(found: &[UnscaledFeature<'_>], rows: usize) -> String {
    let advice = ADVICE.into_iter().filter_map(|advice| {
        let features: Vec<_> = found.iter().filter(|feature| feature.advice() == advice).collect();
        (!features.is_empty()).then(|| format!("give {advice} to {}", columns_of(&features)))
    });
    format!(
        "in a batch of {} rows read, dense features are large, or far from 0 for their spread, after their transform, so the model may learn \
         little, or its loss may explode: {}",
        commas(rows as u64),
        advice.collect::<Vec<_>>().join("; ")
    )
}

fn columns_of(found: &[&UnscaledFeature<'_>]) -> String {
    /// A job may have thousands of columns.
    const SHOWN: usize = 10;
    let of_column = |UnscaledFeature { spec, mean, deviation, largest, .. }: &UnscaledFeature<'_>| {
        let [mean, deviation, largest] = [*mean, *deviation, *largest].map(short);
        let column = &spec.column;
        format!("`{column}` (mean {mean}, standard deviation {deviation}, the largest {largest})")
    };
    listed(found.iter().map(|feature| of_column(feature)), SHOWN)
}

#[cfg(test)]
mod tests {
    use forebay_job::{Scale, Transform};

    use super::*;

    fn feature(name: &str) -> DenseColumn {
        DenseColumn::from(name.to_owned())
    }

    fn numbers_of(inputs: &[f32], is_first: bool) -> Option<(f64, f64, f64)> {
        unscaled(&feature("x"), inputs, is_first).map(|large| (large.mean, large.deviation, large.largest))
    }

    #[test]
    fn inputs_of_a_large_root_mean_square_are_found_in_any_batch() {
        let small: Vec<f32> = (0..100).map(|i| (i % 7) as f32 - 3.0).collect();
        for (inputs, found) in [
            (&[0.0, -42.0, 1.5][..], None),
            (&[], None),
            (&[f32::NAN, f32::INFINITY, 3.0], None),
            (&[f32::NAN], None),
            (&small, None),
            (&[-30.0, 30.0, f32::INFINITY], Some((0.0, 30.0, 30.0))),
            (&[0.0, 100.0, f32::NEG_INFINITY], Some((50.0, 50.0, 100.0))),
            (&[-200.0, -200.0], Some((-200.0, 0.0, 200.0))),
        ] {
            assert_eq!(numbers_of(inputs, false), found, "{inputs:?}");
            assert_eq!(numbers_of(inputs, true), found, "{inputs:?}");
        }
        let (_, _, largest) = numbers_of(&[-3e38, 3e38], false).unwrap();
        assert_eq!(largest, f64::from(3e38_f32));
    }

    #[test]
    fn inputs_far_from_0_for_their_spread_are_found_in_the_first_batch_with_enough_rows() {
        let around = |mean: f32, deviation: f32| [mean - deviation, mean + deviation];
        for (inputs, found) in [
            (around(3.5, 0.25), true),
            (around(-3.5, 0.25), true),
            (around(12.0, 4.0), true),
            (around(12.0, 4.5), false),
            (around(2.5, 0.25), false),
            (around(7.5, 0.0), false),
        ] {
            assert_eq!(numbers_of(&inputs, true).is_some(), found, "{inputs:?}");
            assert_eq!(numbers_of(&inputs, false), None, "{inputs:?}");
        }
        let warning = ScaleWarning::default();
        assert!(!warning.is_first(999) && warning.clone().is_first(1000) && !warning.is_first(1000));
    }

    #[test]
    fn the_warning_has_the_columns_once_with_what_each_needs() {
        let warning = ScaleWarning::default();
        let inputs = [
            ("price", &[300.0, 400.0][..]),
            ("clicks", &[0.0, 0.0, 0.0, 0.0, 1.0, 900.0]),
            ("balance", &[-1.0, 0.0, 900.0]),
        ];
        let inputs = inputs.map(|(name, inputs)| (feature(name), inputs));
        let found: Vec<_> = inputs.iter().filter_map(|(spec, inputs)| unscaled(spec, inputs, false)).collect();
        let text = said(&found, 3);
        assert!(
            text.contains("explode: give transform = \"log1p\" to `clicks` (mean 150, standard deviation 335, the largest 900); give scale"),
            "{text}"
        );
        assert!(
            text.contains("to `price` (mean 350, standard deviation 50.00, the largest 400), `balance` (mean 300, "),
            "{text}"
        );
        assert!(warning.is_pending());
        warning.warn(&[], 3);
        assert!(warning.is_pending());
        warning.clone().warn(&found, 3);
        assert!(!warning.is_pending());
        let spec = feature("x");
        let many: Vec<_> = (0..12).filter_map(|_| unscaled(&spec, &[1e9], false)).collect();
        assert!(said(&many, 1).contains(" and 2 more"));
    }

    #[test]
    fn a_feature_is_given_what_a_job_may_have_for_it() {
        let [log1p, z_score, clip] = ADVICE;
        let vector = DenseColumn { length: Some(2), ..feature("x") };
        let age = DenseColumn { transform: Transform::AgeDays, ..feature("x") };
        let scaled = DenseColumn { scale: Some(Scale::ZScore), ..feature("x") };
        let (counts, around_350) = ([0.0, 0.0, 0.0, 0.0, 1.0, 900.0], [300.0, 400.0, 350.0]);
        for (spec, of_counts, of_others) in
            [(feature("x"), log1p, z_score), (vector, log1p, log1p), (age, z_score, z_score), (scaled, clip, clip)]
        {
            let advice = |inputs: &[f32]| unscaled(&spec, inputs, false).unwrap().advice();
            assert_eq!((advice(&counts), advice(&around_350)), (of_counts, of_others), "{spec:?}");
        }
    }
}
