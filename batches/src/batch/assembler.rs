//! Makes the batches of a part: gathers the rows, lists every key once, and turns columns into rows.
//!
//! It works column by column. The keys of one slot of a part take 512 KiB (65,536 rows), and the table that finds equal keys of one slot in
//! one batch 128 KiB (4,096 rows): a core's second cache holds both. A key is gathered and de-duplicated in one pass: only its place in the
//! batch's list, half as many bytes, is written. Writes append to buffers that keep their memory, so nothing is zeroed first. Integers are
//! hashed after equal ones are found: see `space`.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_actors::Lineage;
use forebay_base::SplitMix64;

use super::direct::Direct;
use super::part::{Part, Piece, take_rows};
use super::places::{Places, Staged, count_keys};
use super::plan::BatchPlan;
use super::space::SpaceValues;
use super::transpose::Transpose;
use crate::dedup::Dedup;
use crate::flow::{ExampleBatch, KeptRows, SlotCounts, TrainBatch};

/// Makes batches. Its buffers are kept between parts.
pub(super) struct Assembler {
    rows: usize,
    slots: usize,
    /// Slots of each key space: one pass of the table handles all slots that share keys.
    spaces: Vec<Vec<usize>>,
    /// The key of a missing value in each slot; empty if slots are not counted.
    missing: Vec<Option<u64>>,
    dedup: Dedup,
    direct: Direct,
    places: Places,
    /// The values of the slots of one key space, and one column of values, in the order in which they came.
    staged: (Vec<Staged>, Vec<f32>),
    /// The columns of a part that is shuffled, in the new order.
    shuffled: Shuffled,
    transpose: Transpose<f32>,
}

#[derive(Default)]
struct Shuffled {
    /// `[t × n]`.
    labels: Vec<f32>,
    /// `[n]` or empty.
    weights: Vec<f32>,
    /// `[d × n]`.
    dense: Vec<f32>,
    /// The columns that travel with the rows of a prediction.
    kept: Option<KeptRows>,
}

/// The batches of one part, made one by one. A part that is shuffled is gathered and de-duplicated before its first batch.
pub(super) struct Batches<'a> {
    assembler: &'a mut Assembler,
    part: Part,
    /// Batches made.
    made: usize,
    /// Batches of the part.
    count: usize,
    /// The keys of each batch that is gathered and not made yet, and the counts of its slots.
    unique: VecDeque<Keys>,
}

/// The keys of a batch, each once, and the counts of its slots if they are counted.
#[derive(Default)]
struct Keys {
    unique: Vec<u64>,
    slots: Vec<SlotCounts>,
}

impl Assembler {
    pub(super) fn new(plan: &BatchPlan) -> Self {
        let spaces = (0..plan.key_spaces.iter().map(|&s| s + 1).max().unwrap_or(0))
            .map(|space| (0..plan.key_spaces.len()).filter(|&slot| plan.key_spaces[slot] == space).collect())
            .collect();
        Self {
            rows: plan.rows.max(1),
            slots: plan.key_spaces.len(),
            spaces,
            missing: plan.missing.clone(),
            dedup: Dedup::default(),
            direct: Direct::default(),
            places: Places::default(),
            staged: Default::default(),
            shuffled: Shuffled::default(),
            transpose: Transpose::default(),
        }
    }

    /// The batches of `part`, in order.
    pub(super) fn batches(&mut self, part: Part) -> Batches<'_> {
        let count = part.kept.div_ceil(self.rows).max(1);
        let unique = match part.shuffle {
            Some(seed) if part.kept > 0 => self.shuffle(&part, seed),
            _ => VecDeque::new(),
        };
        Batches { assembler: self, part, made: 0, count, unique }
    }

    /// Gathers and de-duplicates all batches of a part in the order that `seed` gives. Returns the keys of each batch.
    fn shuffle(&mut self, part: &Part, seed: u64) -> VecDeque<Keys> {
        let pieces = &part.pieces;
        let rows: usize = pieces.iter().map(Piece::rows).sum();
        let mut order = SplitMix64::new(seed).permutation(rows as u32);
        order.truncate(part.kept);
        let (staged, Shuffled { labels, weights, dense, kept }) = (&mut self.staged.1, &mut self.shuffled);
        [&mut *labels, &mut *weights, &mut *dense].into_iter().for_each(Vec::clear);
        for label in 0..pieces[0].batch.label_columns() {
            gather(pieces, &order, |batch| batch.label_column(label), staged, labels);
        }
        if pieces.iter().all(|piece| !piece.batch.weights.is_empty()) {
            gather(pieces, &order, |batch| &batch.weights, staged, weights);
        }
        for column in 0..pieces[0].batch.dense_columns() {
            gather(pieces, &order, |batch| batch.dense_column(column), staged, dense);
        }
        let of_pieces: Option<Vec<KeptRows>> = pieces.iter().map(Piece::kept).collect();
        *kept = of_pieces.map(|of_pieces| KeptRows::gather(&of_pieces, &order));
        self.de_duplicate(pieces, part.kept, Some(&order))
    }

    /// Fills in `places` for `kept` rows, in batches. Without `order`, they are the rows of `pieces`, and one batch. Returns the
    /// keys of each batch.
    fn de_duplicate(&mut self, pieces: &VecDeque<Piece>, kept: usize, order: Option<&[u32]>) -> VecDeque<Keys> {
        let batches: Vec<Range<usize>> = (0..kept).step_by(self.rows).map(|at| at..kept.min(at + self.rows)).collect();
        let counted = self.missing.len();
        let no_keys = || Keys { unique: Vec::new(), slots: vec![SlotCounts::default(); counted] };
        let mut keys_of: VecDeque<Keys> = batches.iter().map(|_| no_keys()).collect();
        self.places.start(pieces, batches.len(), self.slots);
        for space in &self.spaces {
            let values = SpaceValues::of(pieces, space);
            let staged = &mut self.staged.0;
            staged.resize_with(space.len().max(staged.len()), Staged::default);
            let staged = &mut staged[..space.len()];
            if order.is_some() || values.are_integers() {
                staged.iter_mut().zip(space).for_each(|(staged, &slot)| values.stage(staged, pieces, slot));
            }
            for ((batch, range), Keys { unique, slots }) in batches.iter().enumerate().zip(&mut keys_of) {
                let order = order.map(|order| &order[range.clone()]);
                let count = match order {
                    Some(order) => staged.iter().map(|staged| staged.count(order)).sum(),
                    None => space.iter().map(|&slot| count_keys(pieces, slot)).sum(),
                };
                let mut pass = values.start(&mut self.dedup, &mut self.direct, count, unique.len());
                for (staged, &slot) in staged.iter().zip(space) {
                    pass.add(&mut self.places, (batch, slot), pieces, staged, order);
                    if let (Some(counts), Some(missing)) = (slots.get_mut(slot), self.missing.get(slot)) {
                        let missing = missing.and_then(|key| pass.place_of(key));
                        *counts = self.places.counts(batch, slot, missing);
                    }
                }
                pass.append_keys(unique);
                let end = unique.len() as u32;
                space.iter().for_each(|&slot| slots.get_mut(slot).into_iter().for_each(|counts| counts.keys_end = end));
            }
        }
        keys_of
    }
}

/// Appends a column of the rows `order` to `out`. `staged` is a buffer: reading a column in its order brings it into the cache
/// faster than gathering does.
fn gather<'a>(
    pieces: &'a VecDeque<Piece>,
    order: &[u32],
    column: impl Fn(&'a ExampleBatch) -> &'a [f32],
    staged: &mut Vec<f32>,
    out: &mut Vec<f32>,
) {
    staged.clear();
    for piece in pieces {
        staged.extend_from_slice(&column(&piece.batch)[piece.from..piece.to]);
    }
    out.extend(order.iter().map(|&row| staged[row as usize]));
}

impl Batches<'_> {
    /// The next batch of rows in the order in which they came.
    fn in_order(&mut self, rows: usize) -> TrainBatch {
        let transpose = &mut self.assembler.transpose;
        let pieces = take_rows(&mut self.part.pieces, rows);
        let first = &pieces[0];
        let lineage = Lineage { row: first.batch.lineage.row + first.from as u64, ..first.batch.lineage.clone() };
        let mut batch = TrainBatch { lineage, rows, ..TrainBatch::default() };
        let (labels, columns) = (pieces[0].batch.label_columns(), pieces[0].batch.dense_columns());
        batch.labels.reserve(rows * labels);
        batch.dense.reserve(rows * columns);
        for Piece { batch: examples, from, to } in &pieces {
            let range = *from..*to;
            if labels == 1 {
                batch.labels.extend_from_slice(&examples.labels[range.clone()]);
            } else {
                let labels: Vec<_> = (0..labels).map(|k| &examples.label_column(k)[range.clone()]).collect();
                transpose.append(&labels, &mut batch.labels);
            }
            if !examples.weights.is_empty() {
                batch.weights.extend_from_slice(&examples.weights[range.clone()]);
            }
            let columns: Vec<_> = (0..columns).map(|c| &examples.dense_column(c)[range.clone()]).collect();
            transpose.append(&columns, &mut batch.dense);
        }
        batch.kept = pieces.iter().filter_map(Piece::kept).collect();
        let keys = self.assembler.de_duplicate(&pieces, rows, None).pop_front().unwrap_or_default();
        (batch.unique, batch.slots) = (keys.unique, keys.slots);
        (batch.inverse, batch.offsets, batch.value_weights) = self.assembler.places.rows(0, rows);
        batch
    }

    /// The next batch of gathered rows.
    fn gathered(&mut self, rows: usize, Keys { unique, slots }: Keys) -> TrainBatch {
        let Assembler { shuffled, places, transpose, rows: size, .. } = &mut *self.assembler;
        let range = self.made * *size..self.made * *size + rows;
        let kept = self.part.kept;
        let columns: Vec<_> = shuffled.dense.chunks_exact(kept).map(|column| &column[range.clone()]).collect();
        let mut dense = Vec::with_capacity(rows * columns.len());
        transpose.append(&columns, &mut dense);
        let labels: Vec<_> = shuffled.labels.chunks_exact(kept).map(|label| &label[range.clone()]).collect();
        let labels = match labels[..] {
            [one] => one.to_vec(),
            _ => {
                let mut rows_of_labels = Vec::with_capacity(rows * labels.len());
                transpose.append(&labels, &mut rows_of_labels);
                rows_of_labels
            }
        };
        let (inverse, offsets, value_weights) = places.rows(self.made, rows);
        TrainBatch {
            rows,
            labels,
            weights: shuffled.weights.get(range.clone()).unwrap_or_default().to_vec(),
            dense,
            unique,
            inverse,
            offsets,
            slots,
            value_weights,
            kept: shuffled.kept.iter().map(|kept| kept.slice(range.start, range.end)).collect(),
            lineage: self.part.lineage.clone(),
            ..TrainBatch::default()
        }
    }
}

impl Iterator for Batches<'_> {
    type Item = TrainBatch;

    fn next(&mut self) -> Option<TrainBatch> {
        if self.made == self.count {
            return None;
        }
        let size = self.assembler.rows;
        let rows = size.min(self.part.kept - self.made * size);
        let mut batch = match self.unique.pop_front() {
            _ if rows == 0 => TrainBatch { lineage: self.part.lineage.clone(), ..TrainBatch::default() },
            Some(keys) => self.gathered(rows, keys),
            None => self.in_order(rows),
        };
        batch.lineage.seq = self.part.lineage.seq + self.made as u64;
        batch.window = self.part.window;
        batch.index = self.part.index + self.made as u32;
        self.made += 1;
        if self.made == self.count {
            batch.closes = self.part.closes;
            batch.window.closes = batch.closes.is_some();
        }
        Some(batch)
    }
}
