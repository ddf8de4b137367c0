//! Clipping of gradients by their norm: Pascanu, Mikolov and Bengio 2013, as PyTorch's `clip_grad_norm_`.

use crate::ModelError;

/// Scales the gradients of all `parts` together, so that their norm is at most `most`. The sum of squares has one order for any number of
/// threads.
pub(crate) fn clip(most: f64, parts: [&mut [f32]; 2]) {
    let squares = |part: &[f32]| part.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
    let norm = parts.iter().map(|part| squares(part)).sum::<f64>().sqrt();
    let share = (most / (norm + 1e-6)) as f32;
    if share < 1.0 {
        parts.into_iter().flatten().for_each(|g| *g *= share);
    }
}

/// Refuses a norm that clips everything or nothing.
pub(crate) fn check(most: f64) -> Result<(), ModelError> {
    match most.is_finite() && most > 0.0 {
        true => Ok(()),
        false => Err(ModelError::Setting(format!("clip_norm is {most}, expected a finite number above 0"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gradient_becomes_short_and_a_short_one_stays() {
        let (mut a, mut b) = ([3.0f32, 0.0], [0.0f32, -4.0]);
        clip(5.1, [&mut a, &mut b]);
        assert_eq!((a, b), ([3.0, 0.0], [0.0, -4.0]));
        clip(2.5, [&mut a, &mut b]);
        assert!((a[0] - 1.5).abs() < 1e-6 && (b[1] + 2.0).abs() < 1e-6, "{a:?} {b:?}");
    }

    #[test]
    fn a_norm_that_is_not_positive_and_finite_is_refused() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(check(wrong).unwrap_err().to_string().contains("clip_norm is"), "{wrong}");
        }
        check(10.0).unwrap();
    }
}
