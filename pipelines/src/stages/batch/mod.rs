//! `batch`: cuts exact sizes, shuffles within a bounded window, de-duplicates keys.
//!
//! The input batches have any size, the output batches exactly `rows` rows. The last batch of a window may be smaller; with
//! `drop_last` it is dropped and its rows are counted as rejected. The rows of a batch depend on the rows of the window alone,
//! not on the sizes of the input batches. The stage holds the rows that it shuffles together.

mod pieces;

use forebay_actors::{Batch, Fault, Lineage, Outbox, Stage, StageCx};
use forebay_base::SplitMix64;
use forebay_connectors::WindowMark;

use crate::dedup::Dedup;
use crate::flow::{ExampleBatch, SlotKeys, TrainBatch, WindowEnd};
use pieces::{Cut, Piece, bag_offsets, dense_rows, keys_of};

/// How rows become batches.
#[derive(Clone, Debug)]
pub struct BatchPlan {
    /// Rows of a batch.
    pub rows: usize,
    /// Rows that are shuffled together, rounded up to whole batches. A larger window of the source is shuffled in parts of
    /// this size. 0 keeps the order of the source.
    pub window: usize,
    /// Seed of the shuffle, used together with epoch, window and part.
    pub seed: u64,
    /// Drops the last batch of a window if it is short, and counts its rows as rejected.
    pub drop_last: bool,
    /// Set in a cluster, where the coordinator counts the rows of each window. The last batch of a window carries its
    /// [`WindowEnd`]; if no rows are left for it, it is empty. The held rows of an incomplete window are not sent.
    pub mark_window_ends: bool,
    /// The number of each slot's key space. Slots with the same number share keys and are de-duplicated together.
    pub key_spaces: Vec<usize>,
}

/// The `batch` stage.
pub struct Batcher {
    plan: BatchPlan,
    /// Slots of each key space: one pass of the table handles all slots that share keys.
    spaces: Vec<Vec<usize>>,
    /// Rows of the open window that are not sent yet.
    held: Vec<ExampleBatch>,
    held_rows: usize,
    window: Window,
    batches: u64,
    dedup: Dedup,
    ask: Option<AskBeforeWindow>,
    /// The rows of the open window are left out.
    left_out: bool,
}

/// Says whether the rows of a window may become batches.
type AskBeforeWindow = Box<dyn Fn(u32, &WindowMark) -> bool + Send>;

/// The open window, and the counts of what was sent of it.
#[derive(Default)]
struct Window {
    /// (epoch, number, term). `None`: no window is open.
    name: Option<(u32, u64, u32)>,
    parts: u64,
    batches: u32,
    rows: u64,
    rejected: u64,
}

impl Window {
    /// Marks `last` as the last batch of the window.
    fn close(&self, last: &mut TrainBatch) {
        last.window.closes = true;
        last.closes = Some(WindowEnd { batches: self.batches, rows: self.rows, rejected: self.rejected });
    }

    /// Number of the random stream that shuffles the next part.
    fn stream(&mut self) -> u64 {
        let (epoch, number, _) = self.name.unwrap_or_default();
        self.parts += 1;
        // The parts of a window have consecutive numbers. Those of different windows are far apart.
        (self.parts - 1).wrapping_add((u64::from(epoch) << 40 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// The shuffled order of the rows of one part: a permutation of `0..n`.
fn part_order(seed: u64, stream: u64, n: usize) -> Vec<u32> {
    let start = SplitMix64::new(seed).next_u64() ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
    SplitMix64::new(start).permutation(n as u32)
}

/// Why [`Batcher::send_parts`] is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// More rows of the window may come.
    Open,
    /// No more rows of the window will come, but the source did not close it.
    CutOff,
    /// The source closed the window.
    Closed,
}

impl Batcher {
    /// Makes the stage from its plan.
    pub fn new(mut plan: BatchPlan) -> Self {
        plan.rows = plan.rows.max(1);
        let spaces = (0..plan.key_spaces.iter().map(|&s| s + 1).max().unwrap_or(0))
            .map(|space| (0..plan.key_spaces.len()).filter(|&slot| plan.key_spaces[slot] == space).collect())
            .collect();
        let window = Window::default();
        let (held, dedup) = (Vec::new(), Dedup::default());
        Self { plan, spaces, held, held_rows: 0, window, batches: 0, dedup, ask: None, left_out: false }
    }

    /// Calls `ask` with (epoch, mark) before the first rows of each window. If it returns false, the rows of the window are left
    /// out and counted as rejected.
    pub(crate) fn ask_before_windows(mut self, ask: impl Fn(u32, &WindowMark) -> bool + Send + 'static) -> Self {
        self.ask = Some(Box::new(ask));
        self
    }

    /// Rows of a part: the rows that are shuffled together, rounded up to whole batches.
    fn part(&self) -> usize {
        self.plan.window.max(1).checked_next_multiple_of(self.plan.rows).unwrap_or(self.plan.rows)
    }

    /// Rows that must have arrived after a full part before the part is sent. With
    /// [`mark_window_ends`](BatchPlan::mark_window_ends) the last batch of a window carries a mark. So a batch is sent only
    /// when another batch is certain to follow, or the window is closed.
    fn rows_after(&self) -> usize {
        match (self.plan.mark_window_ends, self.plan.drop_last) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.plan.rows,
        }
    }

    /// Sends the batches of every full part, and at the end of the window also those of the rest.
    async fn send_parts(&mut self, end: End, cx: &StageCx, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        let (part, rows) = (self.part(), self.plan.rows);
        let after = if end == End::Open { self.rows_after() } else { 0 };
        if end == End::Open && self.held_rows < part + after {
            return Ok(());
        }
        let (chunks, held) = (std::mem::take(&mut self.held), std::mem::take(&mut self.held_rows));
        let short = if end != End::Open && self.plan.drop_last { held % rows } else { 0 };
        self.reject("dropped: last batch is short", short, cx);
        let mut cut = Cut::new(&chunks);
        let mut at = 0;
        while at < held - short {
            let left = held - at;
            let n = match end {
                _ if left >= part + after => part,
                End::Open => break,
                _ => left,
            };
            let kept = n.min(left - short);
            let last = end == End::Closed && kept == left - short;
            if self.plan.window > 0 {
                let order = part_order(self.plan.seed, self.window.stream(), n);
                let order: Vec<u32> = order.into_iter().map(|row| at as u32 + row).collect();
                let shuffled = [ExampleBatch::gather(&chunks, &order)];
                cut.take(n);
                self.send(&mut Cut::new(&shuffled), kept, last, out).await?;
            } else {
                self.send(&mut cut, kept, last, out).await?;
            }
            at += n;
        }
        if end == End::Open {
            self.held_rows = held - at;
            self.held = cut.take(self.held_rows).iter().map(Piece::to_batch).collect();
        }
        Ok(())
    }

    /// Sends the next `left` rows in batches; only the final one may be short. `last`: the window ends with these rows.
    async fn send(
        &mut self,
        cut: &mut Cut<'_>,
        mut left: usize,
        last: bool,
        out: &mut Outbox<TrainBatch>,
    ) -> Result<(), Fault> {
        while left > 0 {
            let mut batch = self.train_batch(&cut.take(left.min(self.plan.rows)));
            left -= batch.rows();
            if last && left == 0 {
                self.window.close(&mut batch);
            }
            out.send(batch).await?;
        }
        Ok(())
    }

    fn reject(&mut self, reason: &'static str, rows: usize, cx: &StageCx) {
        self.window.rejected += rows as u64;
        if rows > 0 {
            cx.ledger().reject(reason, rows as u64);
        }
    }

    /// Ends a window that the source did not close. In a cluster its held rows are not sent: the window will be leased again.
    async fn cut_off(&mut self, cx: &StageCx, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        if self.plan.mark_window_ends {
            self.held.clear();
            let rows = std::mem::take(&mut self.held_rows);
            self.reject("left out: the window was cut off", rows, cx);
        } else {
            self.send_parts(End::CutOff, cx, out).await?;
        }
        Ok(())
    }

    /// One batch of all rows of `examples`, which has some, outside of a pipeline.
    pub(crate) fn whole(&mut self, examples: &ExampleBatch) -> TrainBatch {
        self.train_batch(&[Piece { batch: examples, from: 0, to: examples.rows() }])
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
        let index = self.window.batches;
        self.window.batches += 1;
        self.window.rows += rows as u64;
        let (mut labels, mut weights) = (Vec::with_capacity(rows), Vec::new());
        for piece in pieces {
            labels.extend_from_slice(&piece.batch.labels[piece.from..piece.to]);
            if !piece.batch.weights.is_empty() {
                weights.extend_from_slice(&piece.batch.weights[piece.from..piece.to]);
            }
        }
        let slots = self.plan.key_spaces.len();
        let offsets = bag_offsets(pieces, rows, slots);
        let values = offsets.as_ref().map_or(rows * slots, |o| o[rows * slots] as usize);
        let mut batch = TrainBatch {
            lineage,
            window: WindowMark { closes: false, ..first.batch.window },
            index,
            closes: None,
            labels,
            weights,
            dense: dense_rows(pieces, rows),
            unique: Vec::with_capacity(values / 4),
            inverse: vec![0; values],
            offsets,
            kept: pieces.iter().filter_map(Piece::kept).collect(),
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

impl Stage for Batcher {
    type In = ExampleBatch;
    type Out = TrainBatch;

    fn describe(&self) -> String {
        match self.plan.window {
            0 => format!("{} rows", self.plan.rows),
            window => format!("{} rows, shuffled within {window}", self.plan.rows),
        }
    }

    async fn on_batch(&mut self, batch: ExampleBatch, cx: &StageCx, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        let (lineage, mark) = (batch.lineage.clone(), batch.window);
        let name = Some((lineage.epoch, mark.window, mark.term));
        if self.window.name != name {
            self.cut_off(cx, out).await?;
            self.window = Window { name, ..Window::default() };
            self.left_out = self.ask.as_ref().is_some_and(|ask| !ask(lineage.epoch, &mark));
        }
        if self.left_out {
            cx.ledger().reject("left out: the window is not leased here any more", batch.rows() as u64);
            return Ok(());
        }
        self.window.rejected += u64::from(batch.rejected);
        if batch.rows() > 0 {
            self.held_rows += batch.rows();
            self.held.push(batch);
        }
        if !mark.closes {
            return self.send_parts(End::Open, cx, out).await;
        }
        self.send_parts(End::Closed, cx, out).await?;
        let mut window = std::mem::take(&mut self.window);
        if window.batches == 0 && self.plan.mark_window_ends {
            // All rows of the window were rejected. The coordinator still needs its end, so an empty batch carries it.
            let lineage = Lineage { seq: self.batches, ..lineage };
            let mut empty = TrainBatch { lineage, window: mark, ..TrainBatch::default() };
            self.batches += 1;
            window.batches += 1;
            window.close(&mut empty);
            out.send(empty).await?;
        }
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        self.cut_off(cx, out).await
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    #[test]
    fn rows_of_a_window_that_must_not_begin_are_left_out_and_counted() {
        let plan =
            BatchPlan { rows: 2, window: 0, seed: 0, drop_last: false, mark_window_ends: true, key_spaces: Vec::new() };
        let mut stage =
            Batcher::new(plan).ask_before_windows(|epoch, mark| (epoch, mark.window, mark.term) == (0, 1, 4));
        let (cx, (mut out, made)) = (StageCx::detached("batch"), Outbox::collecting());
        for (window, term, closes) in [(0, 0, true), (1, 3, false), (1, 4, false), (1, 4, true), (2, 0, false)] {
            let batch = ExampleBatch {
                labels: vec![0.0; 3],
                weights: Vec::new(),
                window: WindowMark { window, term, closes },
                lineage: Lineage::default(),
                rejected: 0,
                dense: Vec::new(),
                slots: Vec::new(),
                kept: None,
            };
            block_on(stage.on_batch(batch, &cx, &mut out)).unwrap();
        }
        block_on(stage.finish(&cx, &mut out)).unwrap();
        let made: Vec<_> = made.take().iter().map(|b| (b.window.window, b.window.term, b.rows())).collect();
        assert_eq!(made, [(1, 4, 2), (1, 4, 2), (1, 4, 2)]);
        let rejected = cx.ledger().snapshot().rejected;
        assert_eq!(rejected.get("left out: the window is not leased here any more"), Some(&9));
    }

    #[test]
    fn each_seed_and_each_part_has_an_order_of_its_own() {
        let order = part_order(7, 0, 1000);
        assert_eq!(order, part_order(7, 0, 1000));
        assert_ne!(order, part_order(7, 1, 1000));
        assert_ne!(order, part_order(8, 0, 1000));
    }
}
