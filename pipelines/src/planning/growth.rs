//! Predicts the number of keys of a run by a power law, fitted to the keys of the measured run (Heaps, "Information Retrieval", 1978: the
//! vocabulary of a text grows as a power of its length).

/// `keys = factor * rows ^ exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PowerLaw {
    factor: f64,
    pub(super) exponent: f64,
}

/// Fewer points than this make no line.
const FEW: usize = 5;

impl PowerLaw {
    /// The least squares in logarithms through (rows, keys), over the last nine tenths of the rows, because the first keys come faster. It
    /// passes through the last point. `None` with fewer than five points there.
    pub(super) fn through(points: &[(f64, f64)]) -> Option<Self> {
        let &(last_rows, last_keys) = points.last()?;
        let logs: Vec<(f64, f64)> = points
            .iter()
            .filter(|&&(rows, keys)| rows >= last_rows / 10.0 && rows > 0.0 && keys > 0.0)
            .map(|&(rows, keys)| (rows.ln(), keys.ln()))
            .collect();
        if logs.len() < FEW {
            return None;
        }
        let n = logs.len() as f64;
        let (x, y) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
        let spread: f64 = logs.iter().map(|p| (p.0 - x).powi(2)).sum();
        if spread < 1e-3 {
            return None;
        }
        let slope = logs.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread;
        // Keys grow at most in proportion to the rows, and never become fewer.
        let exponent = slope.clamp(0.0, 1.0);
        Some(Self { factor: last_keys / last_rows.powf(exponent), exponent })
    }

    pub(super) fn keys(&self, rows: f64) -> f64 {
        self.factor * rows.powf(self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_power_law_is_found_again(factor in 0.1..100.0_f64, exponent in 0.0..1.0_f64, n in 5..50_usize) {
            let points: Vec<_> = (1..=n).map(|i| i as f64 * 1000.0 + 9e4).map(|x| (x, factor * x.powf(exponent))).collect();
            // Points that nearly coincide say nothing.
            let wide = points[n - 1].0 / points[0].0 > 1.2;
            if let Some(found) = PowerLaw::through(&points) {
                prop_assert!((found.exponent - exponent).abs() < 1e-6);
                let expected = factor * 1e11_f64.powf(exponent);
                prop_assert!((found.keys(1e11) / expected - 1.0).abs() < 1e-4);
            } else {
                prop_assert!(!wide);
            }
        }
    }

    #[test]
    fn too_few_points_make_no_law_and_the_first_rows_do_not_count() {
        assert_eq!(PowerLaw::through(&[]), None);
        assert_eq!(PowerLaw::through(&[(1.0, 1.0), (10.0, 2.0), (100.0, 3.0), (1000.0, 4.0), (1e4, 5.0)]), None);
        let early = (1..100).map(|x| (f64::from(x), 1e6));
        let late = (1..=20).map(|x| (f64::from(x) * 1e5, f64::from(x).sqrt() * 1e3));
        let law = PowerLaw::through(&early.chain(late).collect::<Vec<_>>()).unwrap();
        assert!((law.exponent - 0.5).abs() < 1e-9 && (law.keys(8e6) - 80.0_f64.sqrt() * 1e3).abs() < 1e-6);
    }
}
