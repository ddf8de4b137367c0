//! Scores users with all items, and counts the items above a score of each user. No score is kept.

use super::kernels::kernel;

/// Items that are scored side by side: enough for four registers of the widest vectors.
const LANES: usize = 64;
/// Groups of items whose vectors, of 64 numbers, stay in a core's own cache while all users pass.
const GROUPS: usize = 16;

/// The vectors of items, number by number: the first numbers of [`LANES`] items, then their second numbers.
pub(crate) struct ItemGroups {
    dim: usize,
    /// `[groups x dim x LANES]`. Lanes without an item are NaN, which is neither above a number nor equal to it.
    groups: Vec<f32>,
}

impl ItemGroups {
    /// `vectors`: `[items x dim]`, with `dim` above 0.
    pub(crate) fn new(vectors: &[f32], dim: usize) -> Self {
        let items = vectors.len() / dim;
        let mut groups = vec![f32::NAN; items.div_ceil(LANES) * dim * LANES];
        for (item, vector) in vectors.chunks_exact(dim).enumerate() {
            let group = &mut groups[item / LANES * dim * LANES..];
            for (at, &number) in vector.iter().enumerate() {
                group[at * LANES + item % LANES] = number;
            }
        }
        Self { dim, groups }
    }

    /// Adds to `better` and `equal`, `[users]`, the items whose inner product with the user is above `own`, `[users]`, or equal to it.
    /// `users`: `[users x dim]`.
    pub(crate) fn count(&self, users: &[f32], own: &[f32], better: &mut [u32], equal: &mut [u32]) {
        for groups in self.groups.chunks(GROUPS * self.dim * LANES) {
            count_better(groups, self.dim, users, own, better, equal);
        }
    }
}

/// The inner product, with the bits that [`ItemGroups::count`] compares: summed from the first number to the last.
pub(crate) fn inner_product(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

kernel! {
    /// For each user, the numbers of items whose score is above `own` and equal to it, added to `better` and `equal`.
    fn count_better<'a>(groups: &'a [f32], dim: usize, users: &'a [f32], own: &'a [f32], better: &'a mut [u32],
                        equal: &'a mut [u32]) {
        let counts = better.iter_mut().zip(equal);
        for ((user, &own), (better, equal)) in users.chunks_exact(dim).zip(own).zip(counts) {
            for group in groups.chunks_exact(dim * LANES) {
                let mut scores = [0.0f32; LANES];
                for (&x, items) in user.iter().zip(group.as_chunks::<LANES>().0) {
                    for lane in 0..LANES {
                        scores[lane] += x * items[lane];
                    }
                }
                for score in scores {
                    *better += u32::from(score > own);
                    *equal += u32::from(score == own);
                }
            }
        }
    }
}
