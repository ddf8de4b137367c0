//! Strided views of slices as matrices.

/// A matrix in a slice: element `(i, j)` lies at `i * row_stride + j * col_stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatrixView<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// One of the two strides is 1.
    pub(super) row_stride: usize,
    pub(super) col_stride: usize,
}

/// The length of slice that a strided matrix needs.
pub(super) fn reach(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * row_stride + (cols - 1) * col_stride + 1 }
}

impl<'a> MatrixView<'a> {
    /// The first `cols` columns of a row-major matrix whose rows are `width` apart.
    pub(super) fn new(data: &'a [f32], rows: usize, cols: usize, width: usize) -> MatrixView<'a> {
        assert!(cols <= width && reach(rows, cols, width, 1) <= data.len(), "matrix lies within its slice");
        MatrixView { data, rows, cols, row_stride: width, col_stride: 1 }
    }

    /// The transpose, as a view.
    pub(super) fn t(self) -> MatrixView<'a> {
        MatrixView {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "within its slice")]
    fn a_matrix_longer_than_its_slice_is_refused() {
        MatrixView::new(&[0.0; 5], 2, 3, 3);
    }
}
