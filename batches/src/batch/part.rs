//! A part: consecutive rows of one window that become batches without regard to any other rows.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_actors::{Batch, BatchName, Lineage};
use forebay_connectors::WindowMark;

use crate::flow::{ExampleBatch, KeptRows, WindowEnd};

/// The rows `from..to` of one batch of examples.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) batch: Arc<ExampleBatch>,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Piece {
    pub(super) fn rows(&self) -> usize {
        self.to - self.from
    }

    pub(super) fn kept(&self) -> Option<KeptRows> {
        self.batch.kept.as_ref().map(|kept| kept.slice(self.from, self.to))
    }

    /// Takes the first `rows` rows, at most all, out of the piece.
    pub(super) fn split(&mut self, rows: usize) -> Self {
        let to = self.to.min(self.from + rows);
        let taken = Self { to, ..self.clone() };
        self.from = to;
        taken
    }
}

/// Takes the first `rows` rows, in pieces. There must be that many.
pub(super) fn take_rows(pieces: &mut VecDeque<Piece>, mut rows: usize) -> VecDeque<Piece> {
    let mut taken = VecDeque::new();
    while rows > 0 {
        let first = pieces.front_mut().expect("that many rows are held");
        let piece = first.split(rows);
        if first.rows() == 0 {
            pieces.pop_front();
        }
        rows -= piece.rows();
        if piece.rows() > 0 {
            taken.push_back(piece);
        }
    }
    taken
}

/// Rows that become batches, and the names of the batches.
#[derive(Clone, Debug)]
pub struct Part {
    /// The rows. A part without rows becomes one empty batch, which ends the window.
    pub(super) pieces: VecDeque<Piece>,
    /// The first rows of the part's order that are sent; a last batch that is too short may be dropped.
    pub(super) kept: usize,
    /// Seed of the random numbers that shuffle the rows. `None`: they keep their order.
    pub(super) shuffle: Option<u64>,
    /// The lineage of the first row; `seq` is the number of the first batch.
    pub(super) lineage: Lineage,
    pub(super) window: WindowMark,
    /// Number of the first batch within its window.
    pub(super) index: u32,
    /// Set if the last batch of the part is the last of its window.
    pub(super) closes: Option<WindowEnd>,
}

impl Part {
    /// All rows of `examples`, in their order.
    pub(super) fn whole(examples: ExampleBatch) -> Self {
        let (lineage, window, kept) = (examples.lineage.clone(), examples.window, examples.rows());
        let pieces = VecDeque::from([Piece { batch: Arc::new(examples), from: 0, to: kept }]);
        Self { pieces, kept, shuffle: None, lineage, window, index: 0, closes: None }
    }
}

impl Batch for Part {
    fn rows(&self) -> usize {
        self.kept
    }

    fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.batch.bytes() * piece.rows() / piece.batch.rows().max(1)).sum()
    }

    fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    fn name(&self) -> Option<BatchName> {
        Some(BatchName { epoch: self.lineage.epoch, window: self.window.window, index: None })
    }
}
