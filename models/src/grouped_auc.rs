//! GAUC: the mean of the AUC of each group of rows, such as the rows of one user.

use crate::auc::auc_weighted;

/// The AUC within groups of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedAuc {
    /// The mean of the AUC of the groups, each weighted by its rows, or their weights (Zhou et al., KDD 2018). `None` if no group has
    /// rows of both classes.
    pub auc: Option<f64>,
    /// All groups.
    pub groups: u64,
    /// Groups with rows of both classes: only these count.
    pub mixed_groups: u64,
    /// Rows in them.
    pub mixed_rows: u64,
}

/// The GAUC of `[n]` rows: scores, labels and, if there are any, weights. `groups[row]` is the number of the row's group; a row with
/// `u32::MAX` is left out. Takes O(n log n) time and 12 bytes a row.
///
/// # Panics
/// If the lengths differ.
pub fn auc_grouped(scores: &[f32], labels: &[f32], weights: Option<&[f32]>, groups: &[u32]) -> GroupedAuc {
    assert!(scores.len() == labels.len() && labels.len() == groups.len(), "one label and one group for each score");
    let mut rows: Vec<u32> = (0..groups.len() as u32).filter(|&row| groups[row as usize] != u32::MAX).collect();
    rows.sort_unstable_by_key(|&row| (groups[row as usize], row));
    let mut found = GroupedAuc { auc: None, groups: 0, mixed_groups: 0, mixed_rows: 0 };
    let (mut sum, mut all) = (0.0, 0.0);
    let (mut group_scores, mut group_labels, mut group_weights) = (Vec::new(), Vec::new(), Vec::new());
    for group in rows.chunk_by(|&a, &b| groups[a as usize] == groups[b as usize]) {
        let gather = |from: &[f32], to: &mut Vec<f32>| {
            to.clear();
            to.extend(group.iter().map(|&row| from[row as usize]));
        };
        gather(scores, &mut group_scores);
        gather(labels, &mut group_labels);
        if let Some(weights) = weights {
            gather(weights, &mut group_weights);
        }
        let weights = weights.map(|_| &group_weights[..]);
        found.groups += 1;
        let Some(auc) = auc_weighted(&group_scores, &group_labels, weights) else { continue };
        let weight = weights.map_or(group.len() as f64, |weights| weights.iter().map(|&w| f64::from(w)).sum());
        found.mixed_groups += 1;
        found.mixed_rows += group.len() as u64;
        sum += weight * auc;
        all += weight;
    }
    found.auc = (all > 0.0).then(|| sum / all);
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_weighted_mean_of_the_auc_of_each_group(
            rows in prop::collection::vec((-3_i8..3, any::<bool>(), 0_u32..6, 1_u8..4), 0..80), weighted in any::<bool>()
        ) {
            let scores: Vec<f32> = rows.iter().map(|r| f32::from(r.0)).collect();
            let labels: Vec<f32> = rows.iter().map(|r| f32::from(u8::from(r.1))).collect();
            let groups: Vec<u32> = rows.iter().map(|r| if r.2 == 5 { u32::MAX } else { r.2 }).collect();
            let weights: Vec<f32> = rows.iter().map(|r| f32::from(r.3)).collect();
            let weights = weighted.then_some(&weights[..]);
            let (mut sum, mut all, mut mixed) = (0.0, 0.0, 0);
            for group in 0..5 {
                let of_group: Vec<usize> = (0..rows.len()).filter(|&row| groups[row] == group).collect();
                // Every pair of a positive and a negative row, as often as their weights say.
                let (mut right, mut pairs) = (0.0, 0.0);
                let weight = |row: usize| weights.map_or(1.0, |weights| f64::from(weights[row]));
                for &a in of_group.iter().filter(|&&row| labels[row] == 1.0) {
                    for &b in of_group.iter().filter(|&&row| labels[row] == 0.0) {
                        let half = if scores[a] == scores[b] { 0.5 } else { 0.0 };
                        right += weight(a) * weight(b) * if scores[a] > scores[b] { 1.0 } else { half };
                        pairs += weight(a) * weight(b);
                    }
                }
                if pairs > 0.0 {
                    let rows: f64 = of_group.iter().map(|&row| weight(row)).sum();
                    (sum, all, mixed) = (sum + rows * right / pairs, all + rows, mixed + 1);
                }
            }
            let found = auc_grouped(&scores, &labels, weights, &groups);
            prop_assert_eq!(found.mixed_groups, mixed);
            match found.auc {
                Some(auc) => prop_assert!((auc - sum / all).abs() < 1e-9, "{auc} {}", sum / all),
                None => prop_assert_eq!(mixed, 0),
            }
        }
    }
}
