//! Decides which rows become which batch. It holds the rows of the open window until a part of them is complete.
//!
//! This is the sequential half of the batch stage: it counts and touches no values.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_actors::{Batch, Lineage, StageCx};
use forebay_base::{GOLDEN_GAMMA, SplitMix64};
use forebay_connectors::WindowMark;

use super::part::{Part, Piece, take_rows};
use super::plan::BatchPlan;
use crate::flow::{ExampleBatch, WindowEnd};

/// Says whether the rows of a window may become batches.
type AskBeforeWindow = Box<dyn Fn(u32, &WindowMark) -> bool + Send>;

/// Cuts the rows of windows into parts.
pub(super) struct Cutter {
    plan: BatchPlan,
    /// Rows of the open window that are in no part yet.
    held: VecDeque<Piece>,
    held_rows: usize,
    window: Window,
    batches: u64,
    ask: Option<AskBeforeWindow>,
    /// The rows of the open window are left out.
    left_out: bool,
}

/// The open window, and the counts of its parts so far.
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
    fn end(&self) -> WindowEnd {
        WindowEnd { batches: self.batches, rows: self.rows, rejected: self.rejected }
    }

    /// Seed of the random numbers that shuffle the next part.
    fn next_seed(&mut self, seed: u64) -> u64 {
        let (epoch, number, _) = self.name.unwrap_or_default();
        self.parts += 1;
        // The parts of a window have consecutive numbers. The numbers of different windows are far apart.
        let stream = (self.parts - 1).wrapping_add((u64::from(epoch) << 40 ^ number).wrapping_mul(GOLDEN_GAMMA));
        SplitMix64::new(seed).next_u64() ^ stream.wrapping_mul(0xd134_2543_de82_ef95)
    }
}

/// Why [`Cutter::cut`] is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// More rows of the window may come.
    Open,
    /// No more rows of the window will come, but the source did not close it.
    CutOff,
    /// The source closed the window.
    Closed,
}

impl Cutter {
    pub(super) fn new(plan: BatchPlan) -> Self {
        let (held, window) = (VecDeque::new(), Window::default());
        Self { plan, held, held_rows: 0, window, batches: 0, ask: None, left_out: false }
    }

    pub(super) fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    pub(super) fn ask_before_windows(&mut self, ask: impl Fn(u32, &WindowMark) -> bool + Send + 'static) {
        self.ask = Some(Box::new(ask));
    }

    /// Takes the next rows, and returns the parts that they complete.
    pub(super) fn push(&mut self, batch: ExampleBatch, cx: &StageCx) -> Vec<Part> {
        let mut parts = Vec::new();
        let (lineage, mark) = (batch.lineage.clone(), batch.window);
        let name = Some((lineage.epoch, mark.window, mark.term));
        if self.window.name != name {
            self.cut_off(cx, &mut parts);
            self.window = Window { name, ..Window::default() };
            self.left_out = self.ask.as_ref().is_some_and(|ask| !ask(lineage.epoch, &mark));
        }
        if self.left_out {
            cx.ledger().reject("left out: the window is not leased here any more", batch.rows() as u64);
            return parts;
        }
        self.window.rejected += u64::from(batch.rejected);
        if batch.rows() > 0 {
            let to = batch.rows();
            self.held_rows += to;
            self.held.push_back(Piece { batch: Arc::new(batch), from: 0, to });
        }
        if !mark.closes {
            self.cut(End::Open, cx, &mut parts);
            return parts;
        }
        self.cut(End::Closed, cx, &mut parts);
        if self.window.batches == 0 && self.plan.mark_window_ends {
            // All rows of the window were rejected. The coordinator still needs its end, so an empty batch carries it.
            parts.push(self.part(VecDeque::new(), 0, lineage, mark, true));
        }
        self.window = Window::default();
        parts
    }

    /// Ends the open window at the end of the input.
    pub(super) fn finish(&mut self, cx: &StageCx) -> Vec<Part> {
        let mut parts = Vec::new();
        self.cut_off(cx, &mut parts);
        parts
    }

    /// Ends a window that the source did not close. In a cluster its held rows are not sent: the window will be leased again.
    fn cut_off(&mut self, cx: &StageCx, parts: &mut Vec<Part>) {
        if self.plan.mark_window_ends {
            self.held.clear();
            let rows = std::mem::take(&mut self.held_rows);
            self.reject("left out: the window was cut off", rows, cx);
        } else {
            self.cut(End::CutOff, cx, parts);
        }
    }

    /// Rows of a full part: the rows that are shuffled together, rounded up to whole batches.
    fn full_part(&self) -> usize {
        self.plan.window.max(1).checked_next_multiple_of(self.plan.rows).unwrap_or(self.plan.rows)
    }

    /// Rows that must have arrived after a full part before it is cut. With
    /// [`mark_window_ends`](BatchPlan::mark_window_ends) the last batch of a window carries a mark. So a part is cut only when
    /// another batch is certain to follow, or the window is closed.
    fn rows_after(&self) -> usize {
        match (self.plan.mark_window_ends, self.plan.drop_last) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.plan.rows,
        }
    }

    /// Cuts every full part, and at the end of the window also the rest. Without shuffling, all full parts are cut as one.
    fn cut(&mut self, end: End, cx: &StageCx, parts: &mut Vec<Part>) {
        let (full, shuffled) = (self.full_part(), self.plan.window > 0);
        let after = if end == End::Open { self.rows_after() } else { 0 };
        let short = if end != End::Open && self.plan.drop_last { self.held_rows % self.plan.rows } else { 0 };
        self.reject("dropped: last batch is short", short, cx);
        while self.held_rows > short {
            let left = self.held_rows;
            let rows = match end {
                _ if shuffled && left >= full + after => full,
                End::Open if left >= full + after => (left - after) / full * full,
                End::Open => break,
                _ => left,
            };
            let kept = rows.min(left - short);
            let last = end == End::Closed && kept == left - short;
            self.held_rows -= rows;
            let pieces = take_rows(&mut self.held, rows);
            let first = &pieces[0];
            let (mut lineage, window) = (first.batch.lineage.clone(), first.batch.window);
            lineage.row += first.from as u64;
            let part = self.part(pieces, kept, lineage, window, last);
            parts.push(part);
        }
        if end != End::Open {
            self.held.clear();
            self.held_rows = 0;
        }
    }

    /// The next part of the window. `last`: the window ends with it.
    fn part(&mut self, pieces: VecDeque<Piece>, kept: usize, lineage: Lineage, mark: WindowMark, last: bool) -> Part {
        let (index, seq) = (self.window.batches, self.batches);
        let batches = kept.div_ceil(self.plan.rows).max(1);
        self.window.batches += batches as u32;
        self.window.rows += kept as u64;
        self.batches += batches as u64;
        Part {
            pieces,
            kept,
            shuffle: (self.plan.window > 0).then(|| self.window.next_seed(self.plan.seed)),
            lineage: Lineage { seq, ..lineage },
            window: WindowMark { closes: false, ..mark },
            index,
            closes: last.then(|| self.window.end()),
        }
    }

    fn reject(&mut self, reason: &'static str, rows: usize, cx: &StageCx) {
        self.window.rejected += rows as u64;
        if rows > 0 {
            cx.ledger().reject(reason, rows as u64);
        }
    }
}
