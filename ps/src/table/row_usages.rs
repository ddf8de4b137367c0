//! The records of a table with a lifetime: the key of each row, when it was last seen, its score, and the rows of each cell.
//!
//! A cell takes places in blocks of [`BLOCK`] neighbours, so that a look at a cell reads memory in runs. The place of a removed row is used
//! again by its own cell.

use std::collections::BinaryHeap;

use forebay_base::{GOLDEN_GAMMA, mix64};

use super::arena::Arena;
use super::bits::Bits;
use crate::lifetime::{CELLS, Eviction, RowUsage, cell_of};
use crate::memory::{Pages, Zeroed};
use crate::simd::prefetch;

/// No row.
pub(super) const NONE: u32 = u32::MAX;

/// Rows that a cell takes at once.
const BLOCK: usize = 16;

/// Blocks that are prefetched during the look at one.
const AHEAD: usize = 4;

/// Rows per chunk: 2 MiB.
const CHUNK: usize = 1 << 17;

/// Cells that one push looks at for rows that are too old: a 1,024th of all.
const SWEEP: usize = CELLS / 1024;

/// `seen` of a place without a row.
const FREE: u32 = u32::MAX;

/// One row.
#[derive(Clone, Copy)]
struct Known {
    /// In a place without a row: the next such place of its cell, or [`NONE`].
    key: u64,
    seen: u32,
    score: f32,
}

// SAFETY: zero bytes are zeros.
unsafe impl Zeroed for Known {}

/// The rows of one cell.
struct Cell {
    /// The first row of each block.
    blocks: Vec<u32>,
    /// The first place without a row, or [`NONE`].
    free: u32,
    rows: u32,
}

pub(super) struct RowUsages {
    rules: Eviction,
    /// Rows of a cell at most.
    share: usize,
    cells: Vec<Cell>,
    known: Vec<Pages<Known>>,
    alive: Bits,
    rows: usize,
    /// Rows that leave a cell, the one that would leave last on top; kept for the next.
    lowest: BinaryHeap<(i64, u64, u32)>,
}

impl RowUsages {
    pub(super) fn new(rules: Eviction) -> Self {
        let share = rules.max_rows.map_or(usize::MAX, |rows| rows as usize / CELLS);
        let cells = (0..CELLS).map(|_| Cell { blocks: Vec::new(), free: NONE, rows: 0 }).collect();
        Self { rules, share, cells, known: Vec::new(), alive: Bits::default(), rows: 0, lowest: BinaryHeap::new() }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// One bit per place of the arena: it holds a row.
    pub(super) fn alive(&self) -> &Bits {
        &self.alive
    }

    pub(super) fn bytes(&self) -> usize {
        let cells: usize = self.cells.iter().map(|cell| cell.blocks.capacity() * 4).sum();
        let known: usize = self.known.iter().map(Pages::bytes).sum();
        known + cells + self.cells.len() * size_of::<Cell>() + self.alive.bytes() + self.lowest.capacity() * 24
    }

    #[inline(always)]
    fn at(&self, row: u32) -> &Known {
        &self.known[row as usize / CHUNK][row as usize % CHUNK]
    }

    #[inline(always)]
    fn at_mut(&mut self, row: u32) -> &mut Known {
        &mut self.known[row as usize / CHUNK][row as usize % CHUNK]
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, row: u32) {
        prefetch(self.known[row as usize / CHUNK].as_ptr().wrapping_add(row as usize % CHUNK));
    }

    #[inline(always)]
    fn prefetch_block(&self, first: u32) {
        (0..BLOCK as u32).step_by(4).for_each(|at| self.prefetch(first + at));
    }

    /// Whether the place holds the row of this key.
    #[inline(always)]
    pub(super) fn is(&self, row: u32, key: u64) -> bool {
        let known = self.at(row);
        known.key == key && known.seen != FREE
    }

    pub(super) fn key(&self, row: u32) -> u64 {
        self.at(row).key
    }

    pub(super) fn usage(&self, row: u32) -> RowUsage {
        let Known { seen, score, .. } = *self.at(row);
        RowUsage { last_seen: seen, score }
    }

    /// Places for one more row of the cell of `key`: in its cell, or a block that `arena` has room for. `None` without memory.
    pub(super) fn place(&mut self, key: u64, arena: &mut Arena) -> Option<u32> {
        let cell = cell_of(key);
        let free = self.cells[cell].free;
        if free != NONE {
            self.cells[cell].free = self.at(free).key as u32;
            return Some(free);
        }
        let first = arena.rows();
        let end = first + BLOCK;
        for row in first..end {
            if !arena.make_room() {
                return None;
            }
            if row / CHUNK >= self.known.len() {
                self.known.push(Pages::zeroed(CHUNK)?);
            }
            arena.add();
            let next = if row + 1 < end { row as u32 + 1 } else { NONE };
            *self.at_mut(row as u32) = Known { key: u64::from(next), seen: FREE, score: 0.0 };
        }
        self.alive.grow(end);
        let cell = &mut self.cells[cell];
        cell.blocks.push(first as u32);
        cell.free = first as u32 + 1;
        Some(first as u32)
    }

    /// Prefetches what [`prefetch_place`](Self::prefetch_place) reads.
    #[inline(always)]
    pub(super) fn prefetch_cell(&self, key: u64) {
        prefetch(&raw const self.cells[cell_of(key)]);
    }

    /// Prefetches what the next [`place`](Self::place) for the key reads, and [`displaced`](Self::displaced) before it.
    #[inline(always)]
    pub(super) fn prefetch_place(&self, key: u64, arena: &Arena, words: usize) {
        let cell = &self.cells[cell_of(key)];
        if cell.free != NONE {
            self.prefetch(cell.free);
            arena.prefetch(cell.free, words);
        }
        if cell.rows as usize >= self.share {
            cell.blocks.iter().take(AHEAD).for_each(|first| self.prefetch_block(*first));
        }
    }

    /// Gives a place of [`place`](Self::place) to a key.
    pub(super) fn add(&mut self, row: u32, key: u64, usage: RowUsage) {
        *self.at_mut(row) = Known { key, seen: usage.last_seen.min(FREE - 1), score: usage.score };
        self.alive.set(row);
        self.cells[cell_of(key)].rows += 1;
        self.rows += 1;
    }

    /// Takes the place from its key.
    pub(super) fn remove(&mut self, row: u32) {
        let cell = cell_of(self.key(row));
        let next = std::mem::replace(&mut self.cells[cell].free, row);
        *self.at_mut(row) = Known { key: u64::from(next), seen: FREE, score: 0.0 };
        self.alive.take(row);
        self.cells[cell].rows -= 1;
        self.rows -= 1;
    }

    pub(super) fn set(&mut self, row: u32, usage: RowUsage) {
        let known = self.at_mut(row);
        (known.seen, known.score) = (usage.last_seen.min(FREE - 1), usage.score);
    }

    /// A push of this step has the key of the row.
    #[inline(always)]
    pub(super) fn touch(&mut self, row: u32, step: u64) {
        let half_life = self.rules.half_life;
        let known = self.at_mut(row);
        if let Some(half_life) = half_life {
            known.score = decayed(known, half_life, step) + 1.0;
        }
        known.seen = known.seen.max(step.min(u64::from(FREE - 1)) as u32);
    }

    /// The rows that must be removed from the cell of `key` before another one is added: none unless the cell is full.
    #[inline(always)]
    pub(super) fn displaced(&mut self, key: u64, step: u64, rows: &mut Vec<u32>) {
        rows.clear();
        let cell = cell_of(key);
        if self.cells[cell].rows as usize >= self.share {
            self.lowest(cell, step, rows);
        }
    }

    /// The lowest sixteenth of the rows of a full cell. It depends on the rows of the cell alone, not on their places.
    #[cold]
    fn lowest(&mut self, cell: usize, step: u64, rows: &mut Vec<u32>) {
        let held = self.cells[cell].rows as usize;
        let surplus = held - (self.share - (self.share / 16).max(1)).min(held);
        let mut lowest = std::mem::take(&mut self.lowest);
        lowest.clear();
        let half_life = self.rules.half_life;
        for row in self.rows_of(cell) {
            let known = self.at(row);
            let standing = match half_life {
                Some(half_life) => rising(f64::from(known.score).log2() - age(known, step) as f64 / half_life as f64),
                None => i64::from(known.seen),
            };
            // Most rows stay, and need one comparison.
            if lowest.len() < surplus {
                lowest.push((standing, mix64(known.key), row));
            } else if let Some(mut last) = lowest.peek_mut()
                && standing <= last.0
            {
                let this = (standing, mix64(known.key), row);
                if this < *last {
                    *last = this;
                }
            }
        }
        rows.extend(lowest.iter().map(|(_, _, row)| *row));
        self.lowest = lowest;
    }

    fn rows_of(&self, cell: usize) -> impl Iterator<Item = u32> + '_ {
        let blocks = &self.cells[cell].blocks;
        let fetch = |first: &u32| self.prefetch_block(*first);
        blocks.iter().take(AHEAD).for_each(fetch);
        let places = blocks.iter().enumerate().flat_map(move |(at, first)| {
            blocks.get(at + AHEAD).into_iter().for_each(fetch);
            *first..*first + BLOCK as u32
        });
        places.filter(|row| self.at(*row).seen != FREE)
    }

    /// The rows that are too old or of too low a score, in the cells that the push of this step looks at.
    pub(super) fn expired(&self, step: u64, rows: &mut Vec<u32>) {
        rows.clear();
        let Eviction { unseen_steps, half_life, min_score, .. } = self.rules;
        if unseen_steps.is_none() && min_score.is_none() {
            return;
        }
        // Golden ratio: for any distance from one step to the next, each cell comes at least every 2,700 steps or so.
        let first = (step.wrapping_mul(GOLDEN_GAMMA) >> 54) as usize * SWEEP;
        for cell in first..first + SWEEP {
            rows.extend(self.rows_of(cell).filter(|row| {
                let known = self.at(*row);
                unseen_steps.is_some_and(|most| age(known, step) > most)
                    || half_life
                        .zip(min_score)
                        .is_some_and(|(half_life, least)| decayed(known, half_life, step) < least)
            }));
        }
    }
}

/// An integer with the same order as `value`.
fn rising(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

#[inline(always)]
fn age(known: &Known, step: u64) -> u64 {
    step.saturating_sub(u64::from(known.seen))
}

/// The score at a step.
#[inline(always)]
fn decayed(known: &Known, half_life: u64, step: u64) -> f32 {
    match age(known, step) {
        0 => known.score,
        age => known.score * (-(age as f64 / half_life as f64) as f32).exp2(),
    }
}
