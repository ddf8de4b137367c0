//! Cuts ranges of rows out of chunks of any size, and builds the columns of a batch from them.

use forebay_actors::Batch;

use crate::flow::{ExampleBatch, KeptRows, SlotKeys};

/// The rows `from..to` of one batch.
pub(super) struct Piece<'a> {
    pub(super) batch: &'a ExampleBatch,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Piece<'_> {
    pub(super) fn rows(&self) -> usize {
        self.to - self.from
    }

    pub(super) fn kept(&self) -> Option<KeptRows> {
        self.batch.kept.as_ref().map(|kept| kept.slice(self.from, self.to))
    }

    pub(super) fn to_batch(&self) -> ExampleBatch {
        let order: Vec<u32> = (self.from as u32..self.to as u32).collect();
        let mut batch = ExampleBatch::gather(std::slice::from_ref(self.batch), &order);
        batch.lineage.row += self.from as u64;
        batch
    }
}

/// A cursor over the rows of several chunks.
pub(super) struct Cut<'a> {
    chunks: &'a [ExampleBatch],
    chunk: usize,
    row: usize,
}

impl<'a> Cut<'a> {
    pub(super) fn new(chunks: &'a [ExampleBatch]) -> Self {
        Self { chunks, chunk: 0, row: 0 }
    }

    /// Takes the next `rows` rows. The chunks must have that many left.
    pub(super) fn take(&mut self, mut rows: usize) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        while rows > 0 {
            let batch = &self.chunks[self.chunk];
            let to = batch.rows().min(self.row + rows);
            if to > self.row {
                pieces.push(Piece { batch, from: self.row, to });
                rows -= to - self.row;
            }
            self.row = to;
            if to == batch.rows() {
                self.chunk += 1;
                self.row = 0;
            }
        }
        pieces
    }
}

pub(super) fn keys_of(pieces: &[Piece<'_>], slot: usize) -> usize {
    pieces.iter().map(|p| p.batch.slots[slot].keys(p.from, p.to).len()).sum()
}

/// Transposes dense columns to rows, `[n × d]`. It works in blocks of rows, so that a block stays in the L1 cache while its
/// columns are written one by one.
pub(super) fn dense_rows(pieces: &[Piece<'_>], rows: usize) -> Vec<f32> {
    const BLOCK: usize = 256;
    let d = pieces[0].batch.dense_columns();
    let mut dense = vec![0.0; rows * d];
    if d == 0 {
        return dense;
    }
    let mut done = 0;
    for piece in pieces {
        for from in (piece.from..piece.to).step_by(BLOCK) {
            let to = piece.to.min(from + BLOCK);
            let block = &mut dense[done * d..(done + to - from) * d];
            for c in 0..d {
                for (row, &value) in block.chunks_exact_mut(d).zip(&piece.batch.dense_column(c)[from..to]) {
                    row[c] = value;
                }
            }
            done += to - from;
        }
    }
    dense
}

/// Offsets of the bags, or `None` if every slot has one key per row.
pub(super) fn bag_offsets(pieces: &[Piece<'_>], rows: usize, slots: usize) -> Option<Vec<u32>> {
    if pieces.iter().all(|p| p.batch.slots.iter().all(|s| matches!(s, SlotKeys::One(_)))) {
        return None;
    }
    let mut offsets = Vec::with_capacity(rows * slots + 1);
    let mut end = 0_u32;
    offsets.push(end);
    for piece in pieces {
        for row in piece.from..piece.to {
            for slot in &piece.batch.slots {
                end += slot.keys(row, row + 1).len() as u32;
                offsets.push(end);
            }
        }
    }
    Some(offsets)
}
