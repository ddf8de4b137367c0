//! Rows of a table with groups on the wire: each as wide as its group, in a column of lists, without the zeros at its end.

use crate::groups::group_of;
use crate::table::Layout;

impl Layout {
    /// Where the row of each key begins if each row is as wide as its group, and where the last row ends. `None`: all rows have one width.
    pub(crate) fn own_widths(&self, keys: &[u64]) -> Option<Vec<i32>> {
        if self.groups.is_empty() {
            return None;
        }
        let mut end = 0;
        let ends = keys.iter().map(|key| {
            end += self.groups.get(group_of(*key)).map_or(0, |group| group.row_dim as i32);
            end
        });
        Some(std::iter::once(0).chain(ends).collect())
    }
}

/// Takes the zeros out of rows of `dim` floats.
pub(crate) fn cut(rows: &mut Vec<f32>, dim: usize, begins: &[i32]) {
    for (at, pair) in begins.windows(2).enumerate() {
        let (to, end) = (pair[0] as usize, pair[1] as usize);
        rows.copy_within(at * dim..at * dim + end - to, to);
    }
    rows.truncate(begins.last().map_or(0, |end| *end as usize));
}

/// Puts rows of `dim` floats into `to` (which is resized) that end in zeros.
pub(crate) fn pad(rows: &[f32], dim: usize, begins: &[i32], to: &mut Vec<f32>) {
    to.clear();
    to.resize(begins.len().saturating_sub(1) * dim, 0.0);
    for (pair, to) in begins.windows(2).zip(to.chunks_exact_mut(dim)) {
        let row = &rows[pair[0] as usize..pair[1] as usize];
        to[..row.len()].copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_is_padded_again() {
        let begins = [0, 2, 5, 5, 6];
        let rows = vec![1.0, 2.0, 0.0, 3.0, 4.0, 5.0, 0.0, 0.0, 0.0, 6.0, 0.0, 0.0];
        let mut own = rows.clone();
        cut(&mut own, 3, &begins);
        assert_eq!(own, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut back = vec![9.0; 20];
        pad(&own, 3, &begins, &mut back);
        assert_eq!(back, rows);
        let mut none = Vec::new();
        cut(&mut none, 3, &[0]);
        assert!(none.is_empty());
    }
}
