//! A table that is trained, its checkpoints, and what they must give back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use forebay_actors::{Fault, Host};
use forebay_batches::GradBatch;
use forebay_job::{Job, StalenessRule};
use forebay_models::NamedTensor;
use forebay_ps::{
    Admission, Eviction, Init, Lifetime, Optimizer, PartConfig, SnapshotKind, TableClient, TableConfig, start_table,
};
use futures::executor::block_on;

use super::super::author::Author;
use super::super::cut_plan::CutPlan;
use super::super::folder::CheckpointFolder;
use super::super::load_rows;
use super::super::made::MadeCheckpoints;
use super::super::manifest::{CheckpointManifest, TrainPosition};
use super::super::trained_batches::BatchOrder;
use crate::checkpointer::cut::{Cut, CutPoint, Kept, Shards};
use crate::checkpointer::writer::{CheckpointWriter, Checkpoints};
use crate::columns::run_types::RunTypes;
use crate::context::Context;
use crate::metrics::progress::Progress;
use crate::metrics::running_metrics::RunningMetrics;
use crate::model_folder::dense_file;

/// All bits of rows, keys without a row and dense parameters.
#[derive(Debug, PartialEq)]
pub(super) struct Contents {
    pub(super) rows: BTreeMap<u64, Vec<u32>>,
    absent: BTreeMap<u64, (u32, u32)>,
    dense: Vec<u32>,
}

impl Contents {
    /// Adds the contents of other shards.
    pub(super) fn and(mut self, other: Self) -> Self {
        let keys = self.rows.len() + other.rows.len();
        self.rows.extend(other.rows);
        self.absent.extend(other.absent);
        assert_eq!(self.rows.len(), keys, "a key is in both");
        self
    }
}

/// With `with_lifetime`, keys wait for admission, and rows age and are removed.
pub(crate) fn config(with_lifetime: bool) -> TableConfig {
    let part = |name, dim, optimizer| PartConfig::new(name, dim, optimizer, Init::Zeros);
    let parts = vec![
        part("linear", 1, Optimizer::Sgd { lr: 0.1.into(), l2: 0.0 }),
        part("embedding", 3, Optimizer::Adagrad { lr: 0.1.into(), initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 }),
    ];
    let eviction = Eviction { unseen_steps: Some(2), ..Eviction::default() };
    let rules = Lifetime { admission: Some(Admission::Count(2)), eviction: Some(eviction) };
    let lifetime = if with_lifetime { rules } else { Lifetime::default() };
    TableConfig { lifetime, ..TableConfig::new("t", 3, parts) }
}

/// The number of the start of a run.
const START: u64 = 5;

/// A run that trains and makes checkpoints.
pub(super) struct Chain {
    host: Host,
    table: TableClient,
    to: Checkpoints,
    writer: CheckpointWriter,
    step: u64,
    /// The kept gradients of every checkpoint from now on.
    kept: Vec<Arc<GradBatch>>,
    metrics: Option<RunningMetrics>,
}

impl Chain {
    pub(super) fn new(folder: &Path, with_lifetime: bool) -> Self {
        Self::within(CheckpointFolder::open(folder.to_str().unwrap(), &Context::default()).unwrap(), with_lifetime)
    }

    pub(super) fn within(folder: CheckpointFolder, with_lifetime: bool) -> Self {
        Self::started(folder, with_lifetime, START)
    }

    /// One start of the run.
    pub(super) fn started(folder: CheckpointFolder, with_lifetime: bool, start: u64) -> Self {
        let host = Host::start("test").unwrap();
        let table = start_table(&host, config(with_lifetime), 2).unwrap();
        let mut job = Job::default();
        (job.checkpoint.full_every, job.checkpoint.keep) = (3, 2);
        let position = TrainPosition { run: 7, ..TrainPosition::default() };
        let (cut_point, cuts) =
            CutPoint::new(position, BatchOrder::Data, Shards::Here(table.clone()), None, Progress::default());
        // In some tests the store fails from its first call on.
        let author = folder.author(7, start).unwrap_or(Author { run: 7, start, before: (0, 0) });
        let to = Checkpoints {
            folder,
            author,
            job,
            config: config(with_lifetime),
            cut_point,
            cuts,
            leader: None,
            published: Box::new(|_| ()),
            is_evaluating: Arc::new(|| false),
            types: RunTypes::default(),
            model: None,
            made: MadeCheckpoints::default(),
        };
        let (writer, kept, metrics) = (CheckpointWriter::default(), Vec::new(), None);
        Self { host, table, to, writer, step: 0, kept, metrics }
    }

    /// The run has an exact order, and keeps these gradients at each cut.
    pub(super) fn exact(&mut self, staleness: StalenessRule, kept: Vec<Arc<GradBatch>>) {
        self.to.job.train.staleness = staleness;
        self.kept = kept;
    }

    /// The run has these running metrics at each cut.
    pub(super) fn metrics(&mut self, metrics: RunningMetrics) {
        self.metrics = Some(metrics);
    }

    /// Trains a step: some keys are in every step, others in few.
    pub(super) fn train(&mut self) {
        self.step += 1;
        let step = self.step;
        let (keys, grads) = batch(step);
        block_on(self.table.pull(&keys, &mut Vec::new())).unwrap();
        block_on(self.table.push(&keys, &grads, step)).unwrap();
    }

    fn dense(&self) -> Vec<NamedTensor> {
        let data = (0..6).map(|i| (self.step * 31 + i) as f32).collect();
        vec![NamedTensor { name: "w".into(), shape: vec![2, 3], data }]
    }

    /// Makes a checkpoint, and removes old ones, as the thread of a trainer does.
    pub(super) fn checkpoint(&mut self) -> Result<CheckpointManifest, Fault> {
        let plan = self.plan()?;
        self.write(plan)
    }

    pub(super) fn plan(&mut self) -> Result<CutPlan, Fault> {
        self.writer.plan(&self.to)
    }

    pub(super) fn write(&mut self, plan: CutPlan) -> Result<CheckpointManifest, Fault> {
        let position = TrainPosition { steps: self.step, run: 7, ..TrainPosition::default() };
        let snapshots = block_on(self.table.begin_snapshot(plan.kind))?;
        let (kept, metrics) = (Kept::Here(self.kept.clone()), self.metrics.clone());
        let cut = Cut { plan, position, model: Some(self.dense()), snapshots, kept, metrics };
        let manifest = self.writer.write(&self.to, cut)?;
        // A failure to remove old ones is logged.
        let _ = self.to.folder.prune(self.to.job.checkpoint.keep);
        Ok(manifest)
    }

    /// What a checkpoint of this moment must hold.
    pub(super) fn contents(&self) -> Contents {
        contents(std::slice::from_ref(&self.table), &self.dense())
    }

    pub(super) fn folder(&self) -> &CheckpointFolder {
        &self.to.folder
    }

    pub(super) fn end(self) {
        drop((self.table, self.to));
        self.host.stop().unwrap();
    }
}

/// What these tables hold, each a share of the shards.
pub(super) fn contents(tables: &[TableClient], dense: &[NamedTensor]) -> Contents {
    let begin = |table: &TableClient| block_on(table.begin_snapshot(SnapshotKind::Full)).unwrap();
    let mut snapshots: Vec<_> = tables.iter().flat_map(begin).collect();
    let table = &tables[0];
    let mut contents = Contents { rows: BTreeMap::new(), absent: BTreeMap::new(), dense: bits(dense) };
    for snapshot in &mut snapshots {
        loop {
            let block = block_on(snapshot.next(1000)).unwrap();
            if block.keys.is_empty() {
                break;
            }
            let (row, state) = (table.row_dim(), table.state_dim());
            for (at, key) in block.keys.iter().enumerate() {
                let floats = block.weights[at * row..][..row].iter().chain(&block.state[at * state..][..state]);
                let mut all: Vec<u32> = floats.map(|v| v.to_bits()).collect();
                all.extend(block.usages.get(at).into_iter().flat_map(|usage| [usage.last_seen, usage.score.to_bits()]));
                assert!(contents.rows.insert(*key, all).is_none(), "key {key} came twice");
            }
        }
        while let page @ [_, ..] = block_on(snapshot.next_absent(1000)).unwrap().as_slice() {
            contents.absent.extend(page.iter().filter(|a| a.count > 0).map(|a| (a.key, (a.count, a.seen))));
        }
    }
    contents
}

/// The keys and the gradients of a step.
pub(super) fn batch(step: u64) -> (Vec<u64>, Vec<f32>) {
    let keys: Vec<u64> =
        (0..40).map(|key| if key < 20 { key * 7919 } else { (key + step / 2 * 15) * 104_729 }).collect();
    let grads = (0..keys.len() * 4).map(|i| ((i as u64 * 13 + step * 5) % 17) as f32 * 0.25 - 2.0).collect();
    (keys, grads)
}

fn bits(dense: &[NamedTensor]) -> Vec<u32> {
    dense.iter().flat_map(|tensor| &tensor.data).map(|v| v.to_bits()).collect()
}

/// What a run that continues from a checkpoint begins with, with another number of shards.
pub(super) fn load(
    folder: &CheckpointFolder,
    manifest: &CheckpointManifest,
    with_lifetime: bool,
) -> Result<Contents, Fault> {
    let host = Host::start("test").unwrap();
    let table = start_table(&host, config(with_lifetime), 3).unwrap();
    let loaded = load_rows(folder, manifest, &table).and_then(|()| {
        let mut dense = Vec::new();
        for entry in &manifest.dense {
            dense.extend(dense_file::read(&folder.folder, entry)?);
        }
        Ok(dense)
    });
    let contents = loaded.map(|dense| contents(std::slice::from_ref(&table), &dense));
    drop(table);
    host.stop().unwrap();
    contents
}

/// A folder in memory if there is one, since these tests sync thousands of files.
pub(super) fn fast_folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}
