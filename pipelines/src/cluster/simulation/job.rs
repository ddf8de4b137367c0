//! The job of a run and its data: by seed, how many processes there are and how they train; and which rows a window has.

use std::collections::BTreeSet;

use forebay_base::{SplitMix64, mix64};
use forebay_batches::{BatchId, WindowEnd};
use forebay_connectors::DataPlan;
use forebay_job::{DenseAt, Job, Knob, LookupAt, StalenessRule};

use super::super::members::Role;
use super::early_stop::stops_after;
use super::network::Place;
use super::world::World;

const WINDOW_ROWS: u64 = 40;
const BATCH_ROWS: u64 = 10;

/// Chosen so that no seed of `ONCE_WRONG` in `tests.rs` looks ahead.
const LOOK_AHEAD: u64 = 1;

/// True for half of the jobs that may look ahead. Takes no random number, so that other seeds keep their runs.
fn looks_ahead(job: &Job, seed: u64) -> bool {
    let may = job.placement.trainers == 1 && job.placement.dense == Some(DenseAt::Trainer);
    may && mix64(seed ^ LOOK_AHEAD).is_multiple_of(2)
}

pub(super) fn random_job(seed: u64, random: &mut SplitMix64) -> Job {
    let mut job = Job::default();
    let placement = &mut job.placement;
    // 0: the trainers read by themselves.
    placement.readers = random.below(4) as usize;
    placement.ps = 1 + random.below(2) as usize;
    placement.trainers = [1, 1, 2, 3][random.below(4) as usize];
    placement.dense = Some(DenseAt::Ps);
    placement.lease_seconds = 2.0;
    placement.lease_rows = (WINDOW_ROWS * (1 + random.below(3))) as usize;
    placement.in_flight = 2 + random.below(14) as usize;
    if placement.trainers == 1 && random.below(2) == 0 {
        placement.dense = Some(DenseAt::Trainer);
    }
    job.train.sync = placement.trainers > 1 && placement.readers > 0 && random.below(2) == 0;
    let k = random.below(4) as usize;
    let in_order = job.train.sync || job.placement.trainers == 1;
    job.train.staleness = match (in_order && random.below(2) == 0, job.train.sync) {
        (true, _) => StalenessRule::exactly(k),
        (false, true) => StalenessRule::at_most(0),
        (false, false) => StalenessRule::at_most(k),
    };
    let (readers, staleness) = (job.placement.readers, job.train.staleness);
    if readers > 0 && !job.train.sync && !staleness.exactly && staleness.batches + 1 >= readers && random.below(2) == 0
    {
        job.placement.lookup_at = LookupAt::Reader;
    }
    (job.train.batch_rows, job.data.shuffle_rows) = (BATCH_ROWS as usize, WINDOW_ROWS as usize);
    if looks_ahead(&job, seed) {
        (job.train.staleness, job.placement.lookup_at) = (StalenessRule::at_most(0), LookupAt::Trainer);
        job.train.look_ahead = Knob::from(1 + (mix64(seed) % 8) as usize);
    }
    job.data.epochs = 1 + random.below(2) as usize;
    if random.below(4) > 0 {
        job.checkpoint.to = Some("checkpoints".into());
    }
    job.evaluation.every = stops_after(&job, seed);
    job
}

impl World {
    pub(super) fn data(&self) -> DataPlan {
        let rows = WINDOW_ROWS * 14 + 25;
        let windows = rows.div_ceil(self.window_rows());
        DataPlan { epochs: self.job.data.epochs as u32, rows, windows, fingerprint: 7 }
    }

    /// Rows of a window, as the coordinator has them.
    pub(super) fn window_rows(&self) -> u64 {
        crate::window_rows::window_rows(&self.job, self.job.in_step()) as u64
    }

    pub(super) fn places(&self) -> Vec<Place> {
        let placement = &self.job.placement;
        let of = |role, number: usize| (0..number as u32).map(move |rank| (role, rank));
        let ps = of(Role::Ps, placement.ps).chain(of(Role::Trainer, placement.trainers));
        ps.chain(of(Role::Reader, placement.readers)).collect()
    }

    /// The rows of each batch of a window, and its end. Some rows are rejected, in some windows all.
    pub(super) fn window(&self, epoch: u32, window: u64) -> (Vec<u64>, WindowEnd) {
        let data = self.data();
        let from = window * self.window_rows();
        let rows = (from + self.window_rows()).min(data.rows) - from;
        let hash = mix64(window ^ u64::from(epoch) << 32);
        let rejected = if hash.is_multiple_of(7) { rows } else { (hash % 5).min(rows) };
        let left = rows - rejected;
        let mut batches: Vec<u64> = (0..left / BATCH_ROWS).map(|_| BATCH_ROWS).collect();
        if !left.is_multiple_of(BATCH_ROWS) || left == 0 {
            batches.push(left % BATCH_ROWS);
        }
        let in_step = self.job.in_step();
        while !batches.len().is_multiple_of(in_step) {
            batches.push(0);
        }
        let end = WindowEnd { batches: batches.len() as u32, rows: left, rejected };
        (batches, end)
    }

    /// All batches that are pushed.
    pub(super) fn all_pushed(&self) -> BTreeSet<BatchId> {
        let data = self.data();
        let mut all = BTreeSet::new();
        for epoch in 0..data.epochs {
            for window in 0..data.windows {
                let (batches, _) = self.window(epoch, window);
                let pushed = |rows: u64| rows > 0 || self.job.round().is_some();
                let ids = (0..).zip(batches).filter(|(_, rows)| pushed(*rows));
                all.extend(ids.map(|(index, _)| BatchId { epoch, window, index }));
            }
        }
        all
    }
}
