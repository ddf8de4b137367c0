//! Where the keys of each value are in the list of keys of its batch: filled in slot by slot, read row by row.

use std::collections::VecDeque;
use std::ops::Range;

use super::part::Piece;
use super::transpose::Transpose;
use crate::dedup::Pass;
use crate::flow::{SlotCounts, SlotIntegers, SlotKeys};

/// Values that are gathered before they are de-duplicated: at most 2 KiB, in the L1 cache.
const GATHERED: usize = 256;

/// The places of the values of one or more batches.
#[derive(Default)]
pub(super) struct Places {
    slots: usize,
    /// Whether a slot may hold any number of keys.
    bags: bool,
    /// Whether the keys of a slot have weights.
    weighted: bool,
    places: Vec<u32>,
    /// The weight of each of `places`, 1 in slots without weights; empty if no slot has some.
    weights: Vec<f32>,
    ends: Vec<u32>,
    /// One for each batch and slot.
    runs: Vec<Run>,
    transpose: Transpose<u32>,
    /// Rows of neighbouring slots without bags; a buffer for each group of them.
    singles: Vec<Vec<u32>>,
}

/// The places of one slot in one batch: `places[start..]`, one for each row or, if it has bags, up to `ends[ends_start..]`,
/// counted from `start`, for each row.
#[derive(Clone, Copy, Default)]
struct Run {
    start: usize,
    ends_start: Option<usize>,
}

/// The keys of one slot of a part, or integers or numbers in their place, in the order in which they came.
#[derive(Default)]
pub(super) struct Staged {
    /// Keys, or integers.
    pub(super) keys: Vec<u64>,
    pub(super) numbers: Vec<u32>,
    /// As in [`SlotKeys::Many`]; empty if each row has one key.
    offsets: Vec<u32>,
    /// As in [`SlotKeys::Weighted`]; empty if keys have no weights.
    weights: Vec<f32>,
}

impl Staged {
    /// Takes the keys of `slot`. Reading them in order brings them into the cache faster than gathering does.
    pub(super) fn fill(&mut self, pieces: &VecDeque<Piece>, slot: usize) {
        self.clear();
        let bags = has_bags(pieces, slot);
        let weighted = pieces.iter().any(|piece| has_weights(&piece.batch.slots[slot]));
        for piece in pieces {
            if bags {
                self.offsets.extend(offsets_of(piece, slot).map(|offset| self.keys.len() as u32 + offset));
            }
            self.keys.extend_from_slice(keys_of(piece, slot));
            if weighted {
                self.weights.extend_from_slice(weights_of(piece, slot));
                self.weights.resize(self.keys.len(), 1.0);
            }
        }
        if bags {
            self.offsets.push(self.keys.len() as u32);
        }
    }

    /// Takes the integers of `slot`, which has one in each row, and `missing` for a missing one.
    pub(super) fn fill_integers(&mut self, pieces: &VecDeque<Piece>, slot: usize, missing: i64) {
        self.clear();
        for (piece, integers) in integers_of(pieces, slot) {
            integers.append_integers(piece.from..piece.to, missing, &mut self.keys);
        }
    }

    /// Takes the numbers of the integers of `slot`, which has one in each row: the differences from `least`.
    pub(super) fn fill_numbers(&mut self, pieces: &VecDeque<Piece>, slot: usize, least: i64, missing: u32) {
        self.clear();
        for (piece, integers) in integers_of(pieces, slot) {
            integers.append_numbers(piece.from..piece.to, least, missing, &mut self.numbers);
        }
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.numbers.clear();
        self.offsets.clear();
        self.weights.clear();
    }

    fn range(&self, row: u32) -> Range<usize> {
        self.offsets[row as usize] as usize..self.offsets[row as usize + 1] as usize
    }

    fn bag(&self, row: u32) -> &[u64] {
        &self.keys[self.range(row)]
    }

    /// Number of keys of these rows.
    pub(super) fn count(&self, rows: &[u32]) -> usize {
        if self.offsets.is_empty() { rows.len() } else { rows.iter().map(|&row| self.bag(row).len()).sum() }
    }
}

fn keys_of(piece: &Piece, slot: usize) -> &[u64] {
    piece.batch.slots[slot].keys(piece.from, piece.to)
}

/// The integers of a slot that has only integers.
fn integers_of(pieces: &VecDeque<Piece>, slot: usize) -> impl Iterator<Item = (&Piece, &SlotIntegers)> {
    pieces.iter().filter_map(move |piece| match &piece.batch.slots[slot] {
        SlotKeys::Integers(integers) => Some((piece, integers)),
        _ => None,
    })
}

/// The weights of the keys; empty if they have none.
fn weights_of(piece: &Piece, slot: usize) -> &[f32] {
    piece.batch.slots[slot].weights(piece.from, piece.to).unwrap_or_default()
}

/// Where the bag of each row begins within the keys of the piece.
fn offsets_of(piece: &Piece, slot: usize) -> impl Iterator<Item = u32> {
    let (first, offsets) = match piece.batch.slots[slot].offsets() {
        None => (0, None),
        Some(offsets) => (offsets[piece.from], Some(&offsets[piece.from..piece.to])),
    };
    (0..piece.rows()).map(move |row| offsets.map_or(row as u32, |offsets| offsets[row] - first))
}

fn has_weights(keys: &SlotKeys) -> bool {
    matches!(keys, SlotKeys::Weighted { .. })
}

fn has_bags(pieces: &VecDeque<Piece>, slot: usize) -> bool {
    pieces.iter().any(|piece| piece.batch.slots[slot].offsets().is_some())
}

/// Number of keys of a slot in these rows.
pub(super) fn count_keys(pieces: &VecDeque<Piece>, slot: usize) -> usize {
    pieces.iter().map(|piece| piece.batch.slots[slot].count(piece.from, piece.to)).sum()
}

impl Places {
    /// Starts anew, for `batches` batches of the rows of `pieces`.
    pub(super) fn start(&mut self, pieces: &VecDeque<Piece>, batches: usize, slots: usize) {
        (self.slots, self.bags) = (slots, (0..slots).any(|slot| has_bags(pieces, slot)));
        self.weighted = pieces.iter().any(|piece| piece.batch.slots.iter().any(has_weights));
        self.places.clear();
        self.weights.clear();
        self.ends.clear();
        self.runs.clear();
        self.runs.resize(batches * slots, Run::default());
    }

    /// De-duplicates the keys of one slot of `batch`: all rows of `pieces`, in their order.
    pub(super) fn add(&mut self, batch: usize, slot: usize, pieces: &VecDeque<Piece>, pass: &mut Pass<'_>) {
        let bags = has_bags(pieces, slot);
        self.runs[batch * self.slots + slot] = self.run(bags);
        let mut end = 0;
        for piece in pieces {
            if bags {
                let keys = &piece.batch.slots[slot];
                self.ends.extend((piece.from..piece.to).map(|row| {
                    end += keys.count(row, row + 1) as u32;
                    end
                }));
            }
            pass.add(keys_of(piece, slot), &mut self.places);
            self.weights.extend_from_slice(weights_of(piece, slot));
            self.fill_weights();
        }
    }

    /// If other places have weights, gives new places without weights the weight 1.
    fn fill_weights(&mut self) {
        if self.weighted {
            self.weights.resize(self.places.len(), 1.0);
        }
    }

    /// De-duplicates the keys of one slot of `batch`: the rows `order` of `staged`.
    pub(super) fn add_in_order(
        &mut self,
        batch: usize,
        slot: usize,
        staged: &Staged,
        order: &[u32],
        pass: &mut Pass<'_>,
    ) {
        if staged.offsets.is_empty() {
            return self.add_values(batch, slot, &staged.keys, Some(order), |keys, places| pass.add(keys, places));
        }
        self.runs[batch * self.slots + slot] = self.run(true);
        let mut end = 0;
        let mut keys = Vec::with_capacity(2 * GATHERED);
        for &row in order {
            let bag = staged.bag(row);
            end += bag.len() as u32;
            self.ends.push(end);
            keys.extend_from_slice(bag);
            if keys.len() >= GATHERED {
                pass.add(&keys, &mut self.places);
                keys.clear();
            }
        }
        pass.add(&keys, &mut self.places);
        if !staged.weights.is_empty() {
            order.iter().for_each(|&row| self.weights.extend_from_slice(&staged.weights[staged.range(row)]));
        }
        self.fill_weights();
    }

    /// De-duplicates the values of one slot of `batch`, one in each row: all of `values`, or the values of the rows `order`. `add` appends
    /// the place of each.
    pub(super) fn add_values<T: Copy + Default>(
        &mut self,
        batch: usize,
        slot: usize,
        values: &[T],
        order: Option<&[u32]>,
        mut add: impl FnMut(&[T], &mut Vec<u32>),
    ) {
        self.runs[batch * self.slots + slot] = self.run(false);
        match order {
            None => add(values, &mut self.places),
            Some(order) => {
                let mut gathered = [T::default(); GATHERED];
                for rows in order.chunks(GATHERED) {
                    for (value, &row) in gathered.iter_mut().zip(rows) {
                        *value = values[row as usize];
                    }
                    add(&gathered[..rows.len()], &mut self.places);
                }
            }
        }
        self.fill_weights();
    }

    /// The counts of a slot that was just added, without the end of its keys. `missing` is the place of its missing value.
    pub(super) fn counts(&self, batch: usize, slot: usize, missing: Option<u32>) -> SlotCounts {
        let Run { start, ends_start } = self.runs[batch * self.slots + slot];
        let places = &self.places[start..];
        let empty = match (ends_start, missing) {
            (None, None) => 0,
            (None, Some(missing)) => places.iter().filter(|&&place| place == missing).count(),
            (Some(ends), missing) => {
                let ends = &self.ends[ends..];
                let begins = std::iter::once(&0).chain(ends);
                let is_empty =
                    |(&from, &to): (&u32, &u32)| from == to || from + 1 == to && missing == Some(places[from as usize]);
                begins.zip(ends).filter(|bag| is_empty(*bag)).count()
            }
        };
        SlotCounts { values: places.len() as u32, empty: empty as u32, keys_end: 0 }
    }

    fn run(&self, bags: bool) -> Run {
        Run { start: self.places.len(), ends_start: bags.then_some(self.ends.len()) }
    }

    /// The places of the values of `batch`, bag by bag, the offsets of the bags if there are bags, and the weights of the values if some
    /// have weights.
    pub(super) fn rows(&mut self, batch: usize, rows: usize) -> (Vec<u32>, Option<Vec<u32>>, Vec<f32>) {
        if self.bags {
            let (inverse, offsets) = self.bags(batch, rows);
            let weights = if self.weighted { self.weights_of_bags(batch, rows, inverse.len()) } else { Vec::new() };
            return (inverse, Some(offsets), weights);
        }
        let runs = &self.runs[batch * self.slots..(batch + 1) * self.slots];
        let columns: Vec<&[u32]> = runs.iter().map(|run| &self.places[run.start..run.start + rows]).collect();
        let mut inverse = Vec::with_capacity(rows * self.slots);
        self.transpose.append(&columns, &mut inverse);
        (inverse, None, Vec::new())
    }

    /// The weights of the values of `batch`, bag by bag, as [`bags`](Self::bags) orders the places.
    fn weights_of_bags(&self, batch: usize, rows: usize, values: usize) -> Vec<f32> {
        let runs = &self.runs[batch * self.slots..(batch + 1) * self.slots];
        let mut weights = Vec::with_capacity(values);
        let mut next: Vec<usize> = runs.iter().map(|run| run.start).collect();
        for row in 0..rows {
            for (run, next) in runs.iter().zip(&mut next) {
                let end = run.ends_start.map_or(*next + 1, |start| run.start + self.ends[start + row] as usize);
                weights.extend_from_slice(&self.weights[*next..end]);
                *next = end;
            }
        }
        weights
    }

    fn bags(&mut self, batch: usize, rows: usize) -> (Vec<u32>, Vec<u32>) {
        let Self { runs, places, ends, transpose, singles, .. } = self;
        let runs = &runs[batch * self.slots..(batch + 1) * self.slots];
        let values = |run: &Run| match run.ends_start {
            Some(start) if rows > 0 => ends[start + rows - 1] as usize,
            Some(_) => 0,
            None => rows,
        };
        let mut inverse = Vec::with_capacity(runs.iter().map(values).sum());
        let mut offsets = Vec::with_capacity(rows * runs.len() + 1);
        // Neighbouring slots without bags become rows together.
        let groups: Vec<&[Run]> = runs.chunk_by(|a, b| a.ends_start.or(b.ends_start).is_none()).collect();
        singles.resize_with(groups.len().max(singles.len()), Vec::new);
        for (group, singles) in groups.iter().zip(&mut *singles).filter(|(group, _)| group[0].ends_start.is_none()) {
            let columns: Vec<&[u32]> = group.iter().map(|run| &places[run.start..run.start + rows]).collect();
            singles.clear();
            transpose.append(&columns, singles);
        }
        // Where the next bag of each group begins.
        let mut next: Vec<usize> = groups.iter().map(|group| group[0].start).collect();
        offsets.push(0);
        for row in 0..rows {
            for ((group, singles), next) in groups.iter().zip(&*singles).zip(&mut next) {
                let (before, width) = (inverse.len() as u32, group.len());
                match group[0].ends_start {
                    None => {
                        inverse.extend_from_slice(&singles[row * width..(row + 1) * width]);
                        offsets.extend((1..=width as u32).map(|i| before + i));
                    }
                    Some(start) => {
                        let end = group[0].start + ends[start + row] as usize;
                        inverse.extend_from_slice(&places[*next..end]);
                        *next = end;
                        offsets.push(inverse.len() as u32);
                    }
                }
            }
        }
        (inverse, offsets)
    }
}
