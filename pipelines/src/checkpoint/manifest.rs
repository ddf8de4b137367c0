//! `checkpoint-000012.json`: the position of a run, and the files of its tables and dense parameters with their checksums. A
//! checkpoint is there when this file is.

use std::collections::{BTreeMap, BTreeSet};

use forebay_actors::{Fault, FaultKind};
use forebay_batches::ColumnType;
use forebay_connectors::DataPlan;
use forebay_connectors::staged::OpenFolder;
use forebay_job::{Job, RunEnd};
use forebay_ps::TableConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::trained_batches::TrainedBatches;
use crate::metrics::evaluation_points::EvaluationPoint;
use crate::metrics::training_summary::TrainingSummary;
use crate::model_folder::FileEntry;
use crate::model_folder::checked::missing_is_damage;
use crate::{checkpoint_name, signed_json, versioned_json};

/// Version of the format. It grows with every change that older programs cannot read. Version 2: tables with a lifetime. Version
/// 3: exact staleness. Version 4: evaluations while the model is trained. Version 5: tables with groups.
const VERSION: u32 = 5;
const FORMAT: &str = "forebay checkpoint";
/// The longest manifest that is read, in bytes.
const MOST_BYTES: u64 = 256 << 20;

/// The manifest of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckpointManifest {
    /// Always "forebay checkpoint".
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Version of the program that wrote it.
    pub forebay: String,
    /// Its number, from 1.
    pub number: u64,
    /// Seconds since 1970 when it was written.
    pub written: u64,
    /// The job of the run.
    pub job: Job,
    /// The random number of the start of the run that wrote it: see `author.rs`. 0: an earlier program gave it none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) start: u64,
    /// How far the run is.
    pub(crate) position: TrainPosition,
    /// The tables.
    pub tables: Vec<TableLayers>,
    /// The dense parameters with the state of their optimizer: one file of the trainer, or one of each ps in order.
    pub dense: Vec<FileEntry>,
    /// The gradients that an exact order keeps: one file of each trainer, by rank. Empty without an exact order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<FileEntry>,
    /// The running logloss and AUC of the first trainer. `None`: an earlier program wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<FileEntry>,
    /// The types of the feature columns in the rows of the run, by name. Empty: they are not known, or an earlier program wrote it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) types: BTreeMap<String, ColumnType>,
    /// The feature columns whose values are lists.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) lists: BTreeSet<String>,
    /// The mount point of the disk of `output.model`. `None`: it is the disk of `/` or in a store, or an earlier program wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model_disk: Option<String>,
}

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrainPosition {
    /// The batches that are trained on.
    pub(crate) batches: TrainedBatches,
    /// Steps taken, including the steps of the model at `train.from`.
    pub(crate) steps: u64,
    /// Steps of the model at `train.from`.
    pub(crate) steps_before: u64,
    /// Rows trained on.
    pub(crate) rows: u64,
    /// A random number of the run, which all its processes and attempts keep. 0: the run has none yet.
    pub(crate) run: u64,
    /// The data that the run reads; `None` for custom sources, which do not describe it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<DataPlan>,
    /// The evaluations while it trained.
    #[serde(with = "crate::metrics::evaluation_points", skip_serializing_if = "Vec::is_empty")]
    pub(crate) evaluations: Vec<EvaluationPoint>,
}

impl TrainPosition {
    /// Whether the source knew its windows before it read them. A run in one process reads text without windows. Earlier programs did not
    /// store which data such a run read.
    pub(crate) fn is_numbered(&self) -> bool {
        self.data.as_ref().is_some_and(DataPlan::has_windows)
    }

    /// The epochs whose windows are all done. If the source does not know its windows, the last epoch is not known to be done.
    pub(crate) fn whole_epochs(&self) -> u64 {
        // Without windows in the plan, a process reports all windows of an epoch as done when the next epoch begins.
        let known = self.data.as_ref().filter(|data| data.has_windows());
        let windows = known.map_or(u64::MAX, |data| data.windows);
        let is_done =
            |epoch: &u32| matches!(self.batches.windows_of(*epoch), [done] if done.start == 0 && done.end >= windows);
        (0..u32::MAX).take_while(is_done).count() as u64
    }
}

/// The rows of a table: all rows of one checkpoint, then the rows that changed up to each later one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableLayers {
    /// Name, parts, optimizers, seed.
    pub config: TableConfig,
    /// The oldest first. A row of a later layer replaces the row of an earlier one.
    pub layers: Vec<TableLayer>,
}

/// The rows of a table that one checkpoint wrote.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableLayer {
    /// The number of the checkpoint that wrote it.
    pub checkpoint: u64,
    /// One file of rows for each shard, and in a table with a lifetime one file of keys without a row. The number of shards may differ when
    /// the files are read.
    pub files: Vec<FileEntry>,
}

impl CheckpointManifest {
    pub(crate) fn new(
        number: u64,
        job: Job,
        position: TrainPosition,
        tables: Vec<TableLayers>,
        dense: Vec<FileEntry>,
    ) -> Self {
        let (format, forebay) = (FORMAT.into(), env!("CARGO_PKG_VERSION").into());
        // A manifest that older programs can read gets the older version.
        let version = match tables.iter().all(|table| !table.config.has_lifetime()) {
            _ if tables.iter().any(|table| !table.config.groups.is_empty()) => VERSION,
            _ if !position.evaluations.is_empty() => 4,
            _ if job.train.staleness.exactly => 3,
            false => 2,
            true => 1,
        };
        Self {
            format,
            version,
            forebay,
            number,
            written: seconds_since_1970(),
            job,
            start: 0,
            position,
            tables,
            dense,
            kept: Vec::new(),
            metrics: None,
            types: BTreeMap::new(),
            lists: BTreeSet::new(),
            model_disk: None,
        }
    }

    /// The name of the manifest of a checkpoint.
    pub(crate) fn name(number: u64) -> String {
        checkpoint_name::of(number)
    }

    /// The summary of a run up to a checkpoint.
    pub(crate) fn summary(&self) -> TrainingSummary {
        let position = &self.position;
        let (rows, epochs) = (self.rows_trained(), position.whole_epochs());
        let summary = TrainingSummary::new(rows, position.steps, epochs, RunEnd::StoppedEarly);
        let (types, lists) = (self.types.clone(), self.lists.clone());
        TrainingSummary { run: Some(position.run).filter(|run| *run != 0), types, lists, ..summary }
    }

    /// All its files.
    pub fn files(&self) -> impl Iterator<Item = &FileEntry> {
        self.tables
            .iter()
            .flat_map(|table| &table.layers)
            .flat_map(|layer| &layer.files)
            .chain(&self.dense)
            .chain(&self.kept)
            .chain(&self.metrics)
    }

    /// Rows trained on up to this checkpoint.
    pub fn rows_trained(&self) -> u64 {
        self.position.rows
    }

    /// JSON whose last field is the checksum of all bytes before it.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, Fault> {
        signed_json::to_json(self)
    }

    /// # Errors
    /// A user fault of the kind [`FaultKind::Damaged`] that names the file if it is missing or not a manifest. One of the kind
    /// [`FaultKind::OtherVersion`] if its checksum is right and this program does not know all of it, because another version wrote it.
    pub(crate) fn read(folder: &OpenFolder, number: u64) -> Result<Self, Fault> {
        let file = Self::name(number);
        let (text, name) = (folder.bytes(&file, MOST_BYTES).map_err(missing_is_damage)?, folder.name(&file));
        let damaged = |what: String| Fault::user(format!("{name} is damaged: {what}")).kind(FaultKind::Damaged);
        let signed = signed_json::has_checksum(&text, &name);
        let manifest: Self = match versioned_json::parse(&text, &name, FORMAT, VERSION) {
            Ok(manifest) => signed.map(|_| manifest)?,
            Err(fault) if fault.kind == FaultKind::OtherVersion => return Err(signed.err().unwrap_or(fault)),
            Err(fault) if matches!(signed, Ok(true)) => return Err(not_known(&text, &name, fault)),
            Err(fault) => return Err(fault),
        };
        if manifest.number != number {
            return Err(damaged(format!("it is of checkpoint {}", manifest.number)));
        }
        if let Some(entry) = manifest.files().find(|entry| !is_file_name(&entry.path)) {
            return Err(damaged(format!("it names {:?}, expected files of the folder", entry.path)));
        }
        manifest.position.batches.check().map_err(damaged)?;
        Ok(manifest)
    }

    /// Fails if a run of `job` would not be the run of this checkpoint, or has fewer epochs than the checkpoint has trained on.
    ///
    /// # Errors
    /// A user fault that names the fields that differ, or the epochs.
    pub(crate) fn check_job(&self, job: &Job) -> Result<(), Fault> {
        let job = &job.with_scales_of(&self.job);
        // If the position has the files of the rows, `check_rows` compares them, and their folder may differ.
        let moves = self.position.data.is_some();
        let bound = |name: &str| is_bound(name) && !(moves && name == "data.train");
        let mut differences = self.job.differences(job, bound);
        let (there, here) = (self.job.in_step(), job.in_step());
        if there != here {
            differences.push(format!(
                "the number of trainers that take each step together (placement.trainers with train.sync, else 1) is {there} there \
                 and {here} here"
            ));
        }
        if differences.is_empty() {
            return self.check_epochs(job.data.epochs as u64);
        }
        Err(Fault::user(format!(
            "checkpoint {} is of another job: {}; go on with its job, or name another checkpoint.to",
            self.number,
            differences.join(", ")
        ))
        .kind(FaultKind::InvalidJob))
    }

    /// A run of fewer `epochs` would have rows of later epochs in its model.
    fn check_epochs(&self, epochs: u64) -> Result<(), Fault> {
        let begun = self.position.batches.epochs_begun();
        if begun <= epochs {
            return Ok(());
        }
        Err(Fault::user(format!(
            "checkpoint {} has trained on rows of {begun} epochs, and data.epochs is {epochs}: set data.epochs to {begun} or more, or continue \
             from an earlier checkpoint (--resume-from) into another checkpoint.to",
            self.number
        ))
        .kind(FaultKind::InvalidJob))
    }

    /// Drops the evaluations if `job` cannot compare their values: they are of another label, or have no value of its metric. A point does
    /// not say what it was measured with, so the job of the checkpoint decides. Returns why.
    pub(crate) fn drop_other_evaluations(&mut self, job: &Job) -> Option<String> {
        let points = &mut self.position.evaluations;
        if self.job.evaluation.group != job.evaluation.group {
            // The stored GAUC is of other groups.
            points.iter_mut().for_each(|point| point.gauc = None);
        }
        let sizes = |of: &Job| (of.evaluation.recall_items, of.evaluation.recall_rows);
        if sizes(&self.job) != sizes(job) {
            // The stored ones are among other items.
            points.iter_mut().for_each(|point| (point.recall, point.mrr) = (None, None));
        }
        let first_k = job.evaluation.recall_at.first();
        points.iter_mut().for_each(|point| point.recall = point.recall.filter(|at| Some(&at.k) == first_k));
        let metric = job.evaluation.metric;
        // A run whose first evaluation has no value of its metric ends with a fault.
        let has_values = points.first()?.value(metric).is_some();
        let (there, here) = (label(&self.job), label(job));
        let why = match has_values {
            _ if there != here => format!("they are of the label `{there}`, and evaluation.label is `{here}` here"),
            false => {
                format!("they have no {metric} as the job measures it, and evaluation.metric is the {metric} here")
            }
            true => return None,
        };
        points.clear();
        Some(why)
    }

    /// How the job's rows for evaluations differ from the rows of the evaluations so far, if both jobs evaluate during training.
    pub(crate) fn other_evaluation_rows(&self, job: &Job) -> Option<String> {
        let differences = self.job.differences(job, |name| name.starts_with("data.eval"));
        let evaluates = job.evaluation.every.is_some() && !self.position.evaluations.is_empty();
        (evaluates && !differences.is_empty()).then(|| differences.join(", "))
    }
}

/// Fails if the rows `now` differ from the rows of the checkpoint. More or fewer epochs of the same rows are fine.
///
/// # Errors
/// A user fault that says how they differ.
pub(crate) fn check_rows(before: &DataPlan, now: &DataPlan) -> Result<(), Fault> {
    let same_epochs = DataPlan { epochs: now.epochs, ..before.clone() };
    let Some(what) = now.difference(&same_epochs) else { return Ok(()) };
    Err(Fault::user(format!(
        "the rows are not those of the checkpoint: {what}; go on with the same files, or begin a new run with another checkpoint.to"
    ))
    .kind(FaultKind::BadData))
}

/// The label that evaluations of a job compare.
fn label(job: &Job) -> &str {
    job.evaluation.label.as_deref().unwrap_or_else(|| job.columns.label.main().name())
}

/// The fault of a manifest whose checksum is right: `fault`, or that another program wrote it.
fn not_known(text: &[u8], name: &str, fault: Fault) -> Fault {
    match serde_json::from_slice::<Value>(text) {
        Ok(manifest) if manifest["format"] == FORMAT => {
            let message = format!("cannot read {name}: {}", versioned_json::other_version(&manifest));
            Fault::user(message).because(fault).kind(FaultKind::OtherVersion)
        }
        _ => fault,
    }
}

/// The current time, as the files of a checkpoint folder store it.
pub(super) fn seconds_since_1970() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Whether a path names a file directly in the folder.
fn is_file_name(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('.') && !path.contains(['/', '\\', '\0'])
}

/// Fields, or sections with a dot at the end, that may differ when a run goes on: where it runs, how fast, and for how long.
const FREE: [&str; 20] = [
    "checkpoint.",
    "evaluation.",
    "network.",
    "output.",
    "placement.",
    "pipeline.links.",
    "pipeline.cores",
    "pipeline.parse_replicas",
    "pipeline.batch_replicas",
    "data.decode_ahead",
    "data.decode_threads",
    "data.epochs",
    "data.eval",
    "data.eval_format",
    "data.eval_where",
    "data.read_ahead",
    "table.shards",
    "train.initial_bias",
    "train.look_ahead",
    "train.threads",
];

/// Whether a run of the job `there` may go on as a run of the job `here`.
pub(crate) fn may_go_on_as(there: &Job, here: &Job) -> bool {
    there.differences(here, is_bound).is_empty()
}

/// Whether a field of a job must not differ when a run goes on.
fn is_bound(name: &str) -> bool {
    !FREE.iter().any(|free| name == *free || free.ends_with('.') && name.starts_with(free))
}

#[cfg(test)]
mod tests {
    use forebay_models::DenseOptimizer;
    use forebay_ps::{Init, Optimizer, PartConfig};
    use proptest::prelude::*;

    use super::super::trained_batches::BatchOrder;
    use super::*;
    use crate::metrics::retrieval::RecallAt;
    use forebay_batches::{BatchId, WindowEnd};

    proptest! {
        /// A bug: a number was one bit off, and the checkpoint was that of another job.
        #[test]
        fn a_checkpoint_is_of_its_own_job_whatever_the_digits_of_its_numbers(
            number in any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |number| number.is_finite()),
        ) {
            let mut job = Job::default();
            (job.train.optimizer, job.train.clip_norm) = (Some(DenseOptimizer::adam(number)), Some(number));
            let optimizer = Optimizer::Sgd { lr: number.into(), l2: 0.0 };
            let config = TableConfig::new("t", 0, vec![PartConfig::new("p", 1, optimizer, Init::Zeros)]);
            let tables = vec![TableLayers { config: config.clone(), layers: Vec::new() }];
            let manifest = CheckpointManifest::new(7, job.clone(), TrainPosition::default(), tables, Vec::new());
            let text = manifest.to_json().unwrap();
            let read: CheckpointManifest = versioned_json::parse(&text, "it", FORMAT, VERSION).unwrap();
            read.check_job(&job).unwrap();
            prop_assert_eq!(&read.tables[0].config, &config);
        }
    }

    #[test]
    fn a_run_goes_on_with_its_own_job_on_other_machines() {
        let mut job = Job::default();
        let manifest = CheckpointManifest::new(7, job.clone(), TrainPosition::default(), Vec::new(), Vec::new());
        (job.placement.ps, job.data.epochs) = (4, 9);
        (job.table.shards, job.train.threads, job.pipeline.cores) = (3.into(), 7.into(), 64.into());
        (job.output.model, job.data.eval) = (Some("elsewhere".into()), Some("others".into()));
        manifest.check_job(&job).unwrap();
        (job.train.batch_rows, job.data.train) = (77, Some("other rows".into()));
        let said = manifest.check_job(&job).unwrap_err().to_string();
        for words in ["checkpoint 7", "train.batch_rows is 2048 there and 77 here", "data.train is not set there"] {
            assert!(said.contains(words), "no `{words}` in: {said}");
        }
    }

    #[test]
    fn a_run_has_at_least_the_epochs_that_were_begun() {
        let checks = |done: &TrainedBatches, epochs: usize| {
            let position = TrainPosition { batches: done.clone(), ..TrainPosition::default() };
            let manifest = CheckpointManifest::new(7, Job::default(), position, Vec::new(), Vec::new());
            let mut job = Job::default();
            job.data.epochs = epochs;
            manifest.check_job(&job).map_err(|fault| fault.to_string())
        };
        let mut done = TrainedBatches::default();
        for epoch in 0..2 {
            let only = BatchId { epoch, window: 0, index: 0 };
            done.window_ends(only, WindowEnd { batches: 1, rows: 10, rejected: 0 });
            done.batch_done(only, 10, BatchOrder::Any);
        }
        for epochs in [2, 3, 9] {
            checks(&done, epochs).unwrap();
        }
        let said = checks(&done, 1).unwrap_err();
        assert!(said.contains("checkpoint 7 has trained on rows of 2 epochs, and data.epochs is 1"), "{said}");
        done.batch_done(BatchId { epoch: 2, window: 3, index: 1 }, 10, BatchOrder::Any);
        checks(&done, 3).unwrap();
        let said = checks(&done, 2).unwrap_err();
        assert!(said.contains("rows of 3 epochs, and data.epochs is 2: set data.epochs to 3 or more"), "{said}");
    }

    fn point() -> EvaluationPoint {
        let (auc, logloss, gauc, recall, mrr) = (Some(0.6), Some(0.5), None, None, None);
        EvaluationPoint { rows: 9, steps: 1, epochs: 1, auc, logloss, gauc, recall, mrr, reduced_lr: false }
    }

    #[test]
    fn other_rows_of_evaluations_are_named() {
        let mut job = Job::default();
        job.data.eval = Some("monday".into());
        let point = point();
        let position = TrainPosition { evaluations: vec![point], ..TrainPosition::default() };
        let manifest = CheckpointManifest::new(7, job.clone(), position, Vec::new(), Vec::new());
        job.evaluation.every = Some(forebay_job::EvaluateEvery::Epochs(1));
        assert_eq!(manifest.other_evaluation_rows(&job), None);
        job.data.eval = Some("tuesday".into());
        let said = manifest.other_evaluation_rows(&job).unwrap();
        assert_eq!(said, "data.eval is \"monday\" there and \"tuesday\" here");
        job.evaluation.every = None;
        assert_eq!(manifest.other_evaluation_rows(&job), None);
    }

    #[test]
    fn evaluations_of_another_label_or_without_the_metric_are_dropped() {
        let job = |settings: &[&str]| Job::with_settings("columns.label = ['click', 'buy']", settings).unwrap();
        let (user, gauc) = ("evaluation.group=user", "evaluation.metric=gauc");
        let recall = Some(RecallAt { k: 10, recall: 0.4 });
        let point = EvaluationPoint { gauc: Some(0.7), recall, mrr: Some(0.2), ..point() };
        let went_on = |there: &[&str], here: &[&str]| {
            let position = TrainPosition { evaluations: vec![point], ..TrainPosition::default() };
            let mut manifest = CheckpointManifest::new(7, job(there), position, Vec::new(), Vec::new());
            let why = manifest.drop_other_evaluations(&job(here));
            (why, manifest.position.evaluations)
        };
        for (there, here) in [
            (&[][..], &["evaluation.label=click"][..]),
            (&[user], &[user, gauc]),
            (&[], &["evaluation.metric=logloss", "evaluation.every.rows=7"]),
        ] {
            assert_eq!(went_on(there, here), (None, vec![point]), "{there:?} {here:?}");
        }
        let other_groups = vec![EvaluationPoint { gauc: None, ..point }];
        assert_eq!(went_on(&[user], &["evaluation.group=city"]), (None, other_groups));
        let other_k = vec![EvaluationPoint { recall: None, ..point }];
        assert_eq!(went_on(&[], &["evaluation.recall_at=[5, 10]"]), (None, other_k));
        let other_items = vec![EvaluationPoint { recall: None, mrr: None, ..point }];
        assert_eq!(went_on(&[], &["evaluation.recall_items=77"]), (None, other_items));
        let (why, left) = went_on(&[], &["evaluation.metric=recall", "evaluation.recall_at=[5, 10]"]);
        assert!(why.is_some_and(|why| why.contains("no recall as the job measures it")) && left.is_empty());
        assert_eq!(went_on(&[], &["evaluation.metric=recall", "evaluation.recall_at=[10]"]), (None, vec![point]));
        for (there, here, words) in [
            (&[][..], &["evaluation.label=buy"][..], "of the label `click`, and evaluation.label is `buy` here"),
            (&["evaluation.label=buy"], &[], "of the label `buy`, and evaluation.label is `click` here"),
            (&[user, gauc], &["evaluation.group=city", gauc], "they have no GAUC as the job measures it"),
            (&[], &[user, gauc], "they have no GAUC as the job measures it"),
        ] {
            let (why, left) = went_on(there, here);
            assert!(why.as_ref().is_some_and(|why| why.contains(words)) && left.is_empty(), "{why:?} {here:?}");
        }
    }

    #[test]
    fn the_types_of_a_checkpoint_are_those_of_its_manifest() {
        let mut manifest = CheckpointManifest::new(1, Job::default(), TrainPosition::default(), Vec::new(), Vec::new());
        manifest.types = BTreeMap::from([("items".to_owned(), ColumnType::Integer)]);
        manifest.lists = BTreeSet::from(["items".to_owned()]);
        let summary = manifest.summary();
        assert_eq!((summary.types, summary.lists), (manifest.types, manifest.lists));
    }

    #[test]
    fn the_epochs_of_a_checkpoint_are_those_that_are_done() {
        let epochs = |windows: u64, done: &[(u32, u64)]| {
            let done = done.iter().map(|&(epoch, end)| (epoch, std::iter::once(0..end).collect())).collect();
            let batches = TrainedBatches::of_windows(done, Default::default());
            let data = Some(DataPlan { epochs: 9, rows: 0, windows, fingerprint: 0 });
            let position = TrainPosition { batches, data, run: 9, ..TrainPosition::default() };
            let manifest = CheckpointManifest::new(1, Job::default(), position, Vec::new(), Vec::new());
            let summary = manifest.summary();
            assert_eq!(summary.run, Some(9));
            summary.epochs
        };
        // Several processes: windows end one by one.
        assert_eq!(epochs(4, &[(0, 4), (1, 4), (2, 3)]), 2);
        // One process: all of an epoch is done when the next begins.
        assert_eq!(epochs(4, &[(0, u64::MAX), (1, u64::MAX), (2, 1)]), 2);
        assert_eq!(epochs(0, &[(0, u64::MAX), (1, 7)]), 1);
        assert_eq!(epochs(0, &[]), 0);
        assert_eq!(epochs(4, &[(1, 4)]), 0);
    }
}
