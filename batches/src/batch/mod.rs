//! `batch`: cuts exact sizes, shuffles within a bounded window, de-duplicates keys.
//!
//! The input batches have any size, the output batches exactly `rows` rows. The last batch of a window may be smaller; with
//! `drop_last` it is dropped and its rows are counted as rejected. The rows of a batch depend on the rows of the window alone,
//! not on the sizes of the input batches. The stage holds the rows that it shuffles together.
//!
//! [`Batcher`] is the whole stage. For several replicas its halves are two stages: [`Cut`] decides in the order of the data which rows
//! become which batches, and replicas of [`Assemble`] make the batches.

mod assembler;
mod cutter;
mod direct;
mod numbers;
mod part;
mod places;
mod plan;
mod space;
mod transpose;

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_connectors::WindowMark;

use crate::flow::{ExampleBatch, TrainBatch};
use assembler::Assembler;
use cutter::Cutter;
pub use part::Part;
pub use plan::BatchPlan;

/// The `batch` stage.
pub struct Batcher {
    cut: Cut,
    assemble: Assemble,
}

/// The `cut` stage: the first half of [`Batcher`]. Decides which rows become which batches; copies no values.
pub struct Cut {
    describe: String,
    cutter: Cutter,
}

/// The `batch` stage behind `cut`. A replica makes all batches of a part before it sends the first one, so that each replica works while
/// the replicas before it send.
pub struct Assemble {
    describe: String,
    assembler: Assembler,
}

impl Batcher {
    /// Makes the stage from its plan.
    pub fn new(plan: BatchPlan) -> Self {
        Self { assemble: Assemble::new(&plan), cut: Cut::new(plan) }
    }

    /// Calls `ask` with (epoch, mark) before the first rows of each window. If it returns false, the rows of the window are left
    /// out and counted as rejected.
    pub fn ask_before_windows(mut self, ask: impl Fn(u32, &WindowMark) -> bool + Send + 'static) -> Self {
        self.cut.cutter.ask_before_windows(ask);
        self
    }

    /// One batch of all rows of `examples`, at least one, outside of a pipeline.
    pub fn whole(&mut self, examples: ExampleBatch) -> TrainBatch {
        self.assemble.assembler.batches(Part::whole(examples)).next().expect("a part has a batch at least")
    }

    /// The two halves, for several replicas of the second.
    pub fn split(self) -> (Cut, BatchPlan) {
        let plan = self.cut.cutter.plan().clone();
        (self.cut, plan)
    }

    async fn send(&mut self, parts: Vec<Part>, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        for part in parts {
            for batch in self.assemble.assembler.batches(part) {
                out.send(batch).await?;
            }
        }
        Ok(())
    }
}

impl Stage for Batcher {
    type In = ExampleBatch;
    type Out = TrainBatch;

    fn describe(&self) -> String {
        self.assemble.describe.clone()
    }

    async fn on_batch(&mut self, batch: ExampleBatch, cx: &StageCx, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        let parts = self.cut.cutter.push(batch, cx);
        self.send(parts, out).await
    }

    async fn finish(&mut self, cx: &StageCx, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        let parts = self.cut.cutter.finish(cx);
        self.send(parts, out).await
    }
}

impl Cut {
    fn new(mut plan: BatchPlan) -> Self {
        plan.rows = plan.rows.max(1);
        Self { describe: plan.describe(), cutter: Cutter::new(plan) }
    }
}

impl Stage for Cut {
    type In = ExampleBatch;
    type Out = Part;

    fn describe(&self) -> String {
        self.describe.clone()
    }

    async fn on_batch(&mut self, batch: ExampleBatch, cx: &StageCx, out: &mut Outbox<Part>) -> Result<(), Fault> {
        for part in self.cutter.push(batch, cx) {
            out.send(part).await?;
        }
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx, out: &mut Outbox<Part>) -> Result<(), Fault> {
        for part in self.cutter.finish(cx) {
            out.send(part).await?;
        }
        Ok(())
    }
}

impl Assemble {
    /// Makes the stage from the plan of the whole; see [`Batcher::split`].
    pub fn new(plan: &BatchPlan) -> Self {
        Self { describe: plan.describe(), assembler: Assembler::new(plan) }
    }
}

impl Stage for Assemble {
    type In = Part;
    type Out = TrainBatch;

    fn describe(&self) -> String {
        self.describe.clone()
    }

    async fn on_batch(&mut self, part: Part, _cx: &StageCx, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        let batches: Vec<TrainBatch> = self.assembler.batches(part).collect();
        for batch in batches {
            out.send(batch).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_actors::{Batch, Lineage};
    use futures::executor::block_on;
    use proptest::prelude::*;

    use super::*;
    use crate::flow::SlotKeys;

    #[test]
    fn rows_of_a_window_that_must_not_begin_are_left_out_and_counted() {
        let plan = BatchPlan {
            rows: 2,
            window: 0,
            seed: 0,
            drop_last: false,
            mark_window_ends: true,
            key_spaces: Vec::new(),
            missing: Vec::new(),
        };
        let mut stage =
            Batcher::new(plan).ask_before_windows(|epoch, mark| (epoch, mark.window, mark.term) == (0, 1, 4));
        let (cx, (mut out, made)) = (StageCx::detached("batch"), Outbox::collecting());
        for (window, term, closes) in [(0, 0, true), (1, 3, false), (1, 4, false), (1, 4, true), (2, 0, false)] {
            let batch = ExampleBatch {
                rows: 3,
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

    /// `rows` rows from number `first` on, of window `window`.
    fn examples(first: u64, rows: u64, window: u64, closes: bool) -> ExampleBatch {
        let numbers = first..first + rows;
        let offsets = numbers.clone().scan(0, |end, number| Some(std::mem::replace(end, *end + (number % 3) as u32)));
        let mut offsets: Vec<u32> = offsets.collect();
        offsets.push(numbers.clone().map(|number| (number % 3) as u32).sum());
        let keys = numbers.clone().flat_map(|number| (0..number % 3).map(move |i| (number + i) % 5)).collect();
        ExampleBatch {
            rows: rows as usize,
            labels: numbers.clone().map(|number| (number % 2) as f32).collect(),
            weights: numbers.clone().map(|number| number as f32).collect(),
            window: WindowMark { window, term: 0, closes },
            lineage: Lineage { row: first, ..Lineage::default() },
            rejected: 1,
            dense: numbers.clone().map(|number| number as f32 / 3.0).collect(),
            slots: vec![SlotKeys::One(numbers.map(|number| number % 7).collect()), SlotKeys::Many { offsets, keys }],
            kept: None,
        }
    }

    proptest! {
        #[test]
        fn the_two_halves_make_the_batches_of_the_whole(
            sizes in prop::collection::vec((0_u64..40, any::<bool>()), 1..12), rows in 1_usize..20,
            window in prop::sample::select(vec![0_usize, 9, 50]), drop_last: bool, mark_window_ends: bool, shared: bool,
        ) {
            let key_spaces = if shared { vec![0, 0] } else { vec![0, 1] };
            let missing = vec![Some(0), Some(4)];
            let plan = BatchPlan { rows, window, seed: 5, drop_last, mark_window_ends, key_spaces, missing };
            let (mut first, mut number, mut inputs) = (0, 0, Vec::new());
            for (rows, closes) in sizes {
                inputs.push(examples(first, rows, number, closes));
                (first, number) = (first + rows, number + u64::from(closes));
            }
            let cx = StageCx::detached("batch");
            let (mut out, whole) = Outbox::collecting();
            let mut stage = Batcher::new(plan.clone());
            for batch in inputs.clone() {
                block_on(stage.on_batch(batch, &cx, &mut out)).unwrap();
            }
            block_on(stage.finish(&cx, &mut out)).unwrap();

            let (mut cut, plan) = Batcher::new(plan).split();
            // Two replicas, which take turns.
            let mut replicas = [Assemble::new(&plan), Assemble::new(&plan)];
            let (mut parts, cut_parts) = Outbox::collecting();
            for batch in inputs {
                block_on(cut.on_batch(batch, &cx, &mut parts)).unwrap();
            }
            block_on(cut.finish(&cx, &mut parts)).unwrap();
            let (mut out, halves) = Outbox::collecting();
            for (i, part) in cut_parts.take().into_iter().enumerate() {
                block_on(replicas[i % 2].on_batch(part, &cx, &mut out)).unwrap();
            }
            prop_assert_eq!(whole.take(), halves.take());
        }
    }
}
