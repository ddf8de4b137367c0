//! `batch`: cuts exact sizes, shuffles within a bounded window, de-duplicates keys.
//!
//! Comes in: [`ExampleBatch`]es of any size. Goes out: [`TrainBatch`]es of exactly `rows` rows, the last one smaller
//! (or dropped and counted, if the job says so). Holds one window of rows. Nothing blocks but the outbox.

use forebay_actors::{Batch as _, Fault, Lineage, Outbox, Stage, StageCx};

use crate::dedup::Dedup;
use crate::flow::{ExampleBatch, SlotKeys, TrainBatch};
use crate::random::Permutation;

/// How rows become batches.
#[derive(Clone, Debug)]
pub struct BatchPlan {
    /// Rows of a batch.
    pub rows: usize,
    /// Rows that are shuffled among themselves; 0 keeps the order of the source.
    pub window: usize,
    /// Of the shuffle.
    pub seed: u64,
    /// Drop the last batch of a window if it is short, and count its rows as rejected.
    pub drop_last: bool,
    /// Every window that the source closes ends in a batch that says so, if need be in an empty one; and a window that is
    /// cut off is not sent as if it were whole. For those who hand out windows and must know what became of each.
    pub accounts: bool,
    /// For each slot the number of its key space: slots with the same number share keys, and only those are
    /// de-duplicated together.
    pub key_spaces: Vec<usize>,
}

/// The stage.
pub struct Batch {
    plan: BatchPlan,
    /// Slots of each key space, so that one pass of the table serves those that share keys.
    spaces: Vec<Vec<usize>>,
    held: Vec<ExampleBatch>,
    held_rows: usize,
    windows: u64,
    batches: u64,
    dedup: Dedup,
    cx: Option<StageCx>,
}

impl Batch {
    /// A stage that follows `plan`.
    pub fn new(plan: BatchPlan) -> Self {
        let spaces = (0..plan.key_spaces.iter().map(|&s| s + 1).max().unwrap_or(0))
            .map(|space| (0..plan.key_spaces.len()).filter(|&slot| plan.key_spaces[slot] == space).collect())
            .collect();
        Self { plan, spaces, held: Vec::new(), held_rows: 0, windows: 0, batches: 0, dedup: Dedup::default(), cx: None }
    }

    /// Rows that are worked off together: one window if rows are shuffled, one batch if not.
    fn window(&self) -> usize {
        self.plan.window.max(self.plan.rows)
    }

    /// Sends every whole batch of what is held, and the rest too if there is nothing more to come.
    async fn work_off(&mut self, out: &mut Outbox<TrainBatch>, last: bool) -> Result<(), Fault> {
        let mut chunks = std::mem::take(&mut self.held);
        if self.plan.window > 0 && !chunks.is_empty() {
            let order = Permutation::new(self.plan.seed, self.windows, self.held_rows).into_vec();
            self.windows += 1;
            chunks = vec![ExampleBatch::gather(&chunks, &order)];
        }
        let mut cut = Cut { chunks: &chunks, chunk: 0, row: 0 };
        let mut left = self.held_rows;
        while left >= self.plan.rows {
            let pieces = cut.take(self.plan.rows);
            out.send(self.train_batch(&pieces)).await?;
            left -= self.plan.rows;
        }
        let rest = cut.take(left);
        if last && left > 0 {
            if self.plan.drop_last {
                if let Some(cx) = &self.cx {
                    cx.ledger().reject("dropped: last batch is short", left as u64);
                }
            } else {
                out.send(self.train_batch(&rest)).await?;
            }
        } else {
            self.held = rest.iter().map(Piece::to_batch).collect();
        }
        self.held_rows = if last { 0 } else { left };
        Ok(())
    }

    fn train_batch(&mut self, pieces: &[Piece<'_>]) -> TrainBatch {
        let rows: usize = pieces.iter().map(Piece::rows).sum();
        let first = &pieces[0];
        let lineage = Lineage {
            seq: self.batches,
            row: first.batch.lineage.row + if self.plan.window > 0 { 0 } else { first.from as u64 },
            ..first.batch.lineage.clone()
        };
        self.batches += 1;
        let mut labels = Vec::with_capacity(rows);
        for piece in pieces {
            labels.extend_from_slice(&piece.batch.labels[piece.from..piece.to]);
        }
        let slots = self.plan.key_spaces.len();
        let offsets = bag_offsets(pieces, rows, slots);
        let values = offsets.as_ref().map_or(rows * slots, |o| o[rows * slots] as usize);
        let mut batch = TrainBatch {
            lineage,
            index: 0,
            closes: None,
            labels,
            dense: dense_rows(pieces, rows),
            unique: Vec::with_capacity(values / 4),
            inverse: vec![0; values],
            offsets,
        };
        for space in 0..self.spaces.len() {
            self.dedup.start(self.spaces[space].iter().map(|&slot| keys_of(pieces, slot)).sum());
            for i in 0..self.spaces[space].len() {
                self.inverse_of(pieces, self.spaces[space][i], &mut batch);
            }
        }
        batch
    }

    /// Fills in `inverse` for one slot and adds its new keys to `unique`.
    fn inverse_of(&mut self, pieces: &[Piece<'_>], slot: usize, batch: &mut TrainBatch) {
        let slots = self.plan.key_spaces.len();
        let TrainBatch { unique, inverse, offsets, .. } = batch;
        let mut bag = slot;
        for piece in pieces {
            let keys = &piece.batch.slots[slot];
            match (keys, &*offsets) {
                (SlotKeys::One(keys), None) => {
                    for &key in &keys[piece.from..piece.to] {
                        inverse[bag] = self.dedup.place(key, unique);
                        bag += slots;
                    }
                }
                (_, offsets) => {
                    for row in piece.from..piece.to {
                        let at = offsets.as_ref().map_or(bag, |o| o[bag] as usize);
                        for (i, &key) in keys.keys(row, row + 1).iter().enumerate() {
                            inverse[at + i] = self.dedup.place(key, unique);
                        }
                        bag += slots;
                    }
                }
            }
        }
    }
}

/// Some rows of one batch.
struct Piece<'a> {
    batch: &'a ExampleBatch,
    from: usize,
    to: usize,
}

impl Piece<'_> {
    fn rows(&self) -> usize {
        self.to - self.from
    }

    fn to_batch(&self) -> ExampleBatch {
        let order: Vec<u32> = (self.from as u32..self.to as u32).collect();
        let mut batch = ExampleBatch::gather(std::slice::from_ref(self.batch), &order);
        batch.lineage.row += self.from as u64;
        batch
    }
}

/// Walks through chunks, a number of rows at a time.
struct Cut<'a> {
    chunks: &'a [ExampleBatch],
    chunk: usize,
    row: usize,
}

impl<'a> Cut<'a> {
    fn take(&mut self, mut rows: usize) -> Vec<Piece<'a>> {
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

fn keys_of(pieces: &[Piece<'_>], slot: usize) -> usize {
    pieces.iter().map(|p| p.batch.slots[slot].keys(p.from, p.to).len()).sum()
}

/// `[n × d]` from columns: blocks of rows, so that a block's lines stay in the nearest cache while its columns are
/// written one after the other.
fn dense_rows(pieces: &[Piece<'_>], rows: usize) -> Vec<f32> {
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

/// Offsets of the bags, or `None` if every slot holds one key a row.
fn bag_offsets(pieces: &[Piece<'_>], rows: usize, slots: usize) -> Option<Vec<u32>> {
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

impl Stage for Batch {
    type In = ExampleBatch;
    type Out = TrainBatch;

    fn describe(&self) -> String {
        match self.plan.window {
            0 => format!("{} rows", self.plan.rows),
            window => format!("{} rows, shuffled within {window}", self.plan.rows),
        }
    }

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.cx = Some(cx.clone());
        Ok(())
    }

    async fn on_batch(&mut self, batch: ExampleBatch, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        if batch.rows() == 0 {
            return Ok(());
        }
        self.held_rows += batch.rows();
        self.held.push(batch);
        if self.held_rows >= self.window() { self.work_off(out, false).await } else { Ok(()) }
    }

    async fn finish(&mut self, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        self.work_off(out, true).await
    }
}
