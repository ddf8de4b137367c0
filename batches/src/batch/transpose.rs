//! Turns columns into rows.

/// Rows of a block: its columns and its rows stay in the L1 cache.
const BLOCK: usize = 64;

/// Transposes columns. It has a buffer for a block of rows, so that the result is appended and not zeroed first.
#[derive(Default)]
pub(super) struct Transpose<T> {
    block: Vec<T>,
}

impl<T: Copy + Default> Transpose<T> {
    /// Appends the rows of `columns`, all of the same length, to `out`.
    pub(super) fn append(&mut self, columns: &[&[T]], out: &mut Vec<T>) {
        let (width, rows) = (columns.len(), columns.first().map_or(0, |column| column.len()));
        self.block.resize(BLOCK * width, T::default());
        for from in (0..rows).step_by(BLOCK) {
            let block = &mut self.block[..(rows - from).min(BLOCK) * width];
            for (c, column) in columns.iter().enumerate() {
                for (row, &value) in block.chunks_exact_mut(width).zip(&column[from..]) {
                    row[c] = value;
                }
            }
            out.extend_from_slice(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_two_loops(rows in 0_usize..200, width in 0_usize..5, before in 0_usize..3) {
            let columns: Vec<Vec<u32>> =
                (0..width as u32).map(|c| (0..rows as u32).map(|row| row * 7 + c).collect()).collect();
            let mut expected = vec![9; before];
            for row in 0..rows {
                expected.extend(columns.iter().map(|column| column[row]));
            }
            let mut out = vec![9; before];
            let columns: Vec<&[u32]> = columns.iter().map(Vec::as_slice).collect();
            Transpose::default().append(&columns, &mut out);
            prop_assert_eq!(out, expected);
        }
    }
}
