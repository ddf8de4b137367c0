//! The job: all options of a training run, as a TOML file or as Rust code. One file per section.
//!
//! The doc comments of the fields are the text of `docs/job.md` and of `template.toml`, which `make docs` writes. The first
//! sentence must stand alone. A field without a default ends its sentence with an example: "for instance `rows/train`".
//!
//! Read these files in this order:
//!
//! 1. Sections, as in `template.toml`: `data`, `columns/` (dense features, slots, crosses, statistics) with `label_column`, `model` with
//!    `towers`, `table`, `tables` (tables of some slots), `train`, `evaluation`, `pipeline`, `placement`, `network`, `output`,
//!    `checkpoint`.
//! 2. Values of fields: `knob` (`"auto"` or a number), `paths`, `string_or_table` (a name, or a table of options), `staleness_rule`
//!    (`train.staleness`), `look_ahead` (`train.look_ahead`), `initial_bias` (`train.initial_bias`).
//! 3. `parse` and `formats`: from text to a job and back. `plain_words`, `meant_field`, `template`: errors in the words of a job file, and
//!    the name that was probably meant.
//! 4. Checks of combinations: `kind_fields` (which kinds of model read which fields), `sizes`, and `check` in `lib.rs`.
//! 5. What follows from a job: `model_spec`, `final_mlp`, `two_towers` (the structure of the model), `steps` (default optimizers, by the
//!    rows of a step), `cores` (default threads and replicas).
//! 6. `adapted` (the job of a trained model, for another use), `differences` (between two jobs), `run_end` (how a run ended).

mod adapted;
mod checkpoint;
mod columns;
mod cores;
mod data;
mod differences;
mod evaluation;
mod final_mlp;
mod formats;
mod initial_bias;
mod kind_fields;
mod knob;
mod label_column;
mod look_ahead;
mod meant_field;
mod model;
mod model_spec;
mod network;
mod output;
mod parse;
mod paths;
mod pipeline;
mod placement;
mod plain_words;
mod run_end;
mod sizes;
mod staleness_rule;
mod steps;
mod string_or_table;
mod table;
mod tables;
mod template;
mod towers;
mod train;
mod two_towers;

use forebay_actors::{Fault, FaultKind};
use forebay_connectors::OnBadRow;
use forebay_ps::MAX_SHARDS;
use serde::{Deserialize, Serialize};

pub use adapted::is_of_weights;
pub use checkpoint::{CheckpointOptions, Interval};
pub use columns::{
    Clip, Columns, DenseColumn, DenseStatistics, FeatureScale, FeatureScales, Padding, Scale, Slot, SlotCross,
    SlotKind, Transform, UnixUnit, check_key_spaces, look_like_counts,
};
pub use cores::BatchStage;
pub use data::{ByteSize, DataOptions};
pub use evaluation::{EvaluateEvery, EvaluationMetric, EvaluationOptions, KeepModel, ReduceLrOnPlateau};
pub use forebay_connectors::{CsvOptions, Format};
pub use forebay_ps::remote::Wire;
pub use initial_bias::InitialBias;
pub use knob::Knob;
pub use label_column::{Comparison, LabelColumn, Labels, Positive, PositiveRule, is_rounded};
pub use model::{HistoryAttention, ModelKind, ModelOptions};
pub use network::NetworkOptions;
pub use output::{OnDrain, OutputOptions};
pub use paths::Paths;
pub use pipeline::{Links, OwnStage, PipelineOptions};
pub use placement::{DenseAt, LookupAt, Placement};
pub use run_end::RunEnd;
pub use staleness_rule::StalenessRule;
pub use table::{AdmissionOptions, BloomOptions, EvictionOptions, TableOptions};
pub use tables::{SlotTable, Tables};
pub use towers::{TowerColumns, TowerLoss};
pub use train::{Backend, TrainOptions, Transfers};

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
// `formats.rs` calls the derived functions.
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct Job {
    /// Seed of every random choice: initial weights, shuffling, synthetic rows.
    pub seed: u64,
    /// Where the rows are and how they are read.
    pub data: DataOptions,
    /// The columns of the rows: label, dense features, slots.
    pub columns: Columns,
    /// The model.
    pub model: ModelOptions,
    /// The table of embeddings and linear weights.
    pub table: TableOptions,
    /// Tables of some slots, by name; a slot names its table ([tables.md](tables.md)). Missing fields of such a table are those of
    /// `[table]`.
    #[serde(skip_serializing_if = "Tables::is_empty")]
    pub tables: Tables,
    /// How the model is trained.
    pub train: TrainOptions,
    /// What evaluation measures besides the quality over all rows, and what a run does with evaluations while it trains.
    pub evaluation: EvaluationOptions,
    /// Replicas of stages and the capacities of links.
    pub pipeline: PipelineOptions,
    /// The processes of the run and their connections. The default is one process that does everything.
    pub placement: Placement,
    /// Addresses, TLS and tokens of a run of several processes.
    pub network: NetworkOptions,
    /// What the run writes.
    pub output: OutputOptions,
    /// Checkpoints of a run: everything that it needs to resume after its processes died.
    pub checkpoint: CheckpointOptions,
}

impl Job {
    /// Checks values and combinations of values.
    ///
    /// # Errors
    /// User: names the field, its value and what is expected.
    pub fn check(&self) -> Result<(), Fault> {
        self.check_all().map_err(|fault| fault.kind_if_none(FaultKind::InvalidJob))
    }

    fn check_all(&self) -> Result<(), Fault> {
        self.check_paths()?;
        self.model.check_fields_of_kinds()?;
        self.columns.check_twice()?;
        self.checkpoint.check_folder()?;
        self.check_limits()?;
        self.check_saved()?;
        self.check_sizes(&self.model_spec()?)?;
        self.dense_optimizer()
            .validate()
            .map_err(|e| Fault::user(format!("train.optimizer cannot be used: {e}")).with_source(e))?;
        self.check_device()?;
        self.check_dense_l2()
    }

    /// Refuses a device on which the backend does not compute. Only a program knows where its own model computes.
    fn check_device(&self) -> Result<(), Fault> {
        let device = &self.train.device;
        if self.train.backend == Backend::Torch || self.model.kind == ModelKind::Own || device == "cpu" {
            return Ok(());
        }
        Err(Fault::user(format!(
            "train.device is {device:?}, but train.backend is \"native\", which computes on \"cpu\": set backend to \"torch\""
        )))
    }

    /// Refuses empty paths. [`check`](Self::check) does that, too.
    ///
    /// # Errors
    /// User: names the field.
    pub fn check_paths(&self) -> Result<(), Fault> {
        let rows = [("data.train", &self.data.train), ("data.eval", &self.data.eval)].into_iter();
        let rows =
            rows.flat_map(|(field, paths)| paths.iter().flat_map(|paths| &paths.0).map(move |path| (field, path)));
        let folders = [
            ("train.from", &self.train.from),
            ("checkpoint.to", &self.checkpoint.to),
            ("checkpoint.from", &self.checkpoint.from),
            ("output.model", &self.output.model),
        ];
        let folders = folders.into_iter().filter_map(|(field, folder)| Some((field, folder.as_ref()?)));
        match rows.chain(folders).find(|(_, path)| path.is_empty()) {
            Some((field, _)) => Err(Fault::user(format!("{field} is empty, expected a path or a URL"))),
            None => Ok(()),
        }
    }

    /// Refuses L2 of dense parameters for a model that has none. The job does not know the parameters of a program's own model.
    fn check_dense_l2(&self) -> Result<(), Fault> {
        let l2 = self.dense_optimizer().l2();
        let spec = self.model_spec()?;
        // Later checks refuse a spec that is not valid.
        if l2 == 0.0 || self.model.kind == ModelKind::Own || spec.validate().is_err() || spec.dense_len() > 0 {
            return Ok(());
        }
        Err(Fault::user(format!(
            "train.optimizer.l2 is {l2}, but this model has no dense parameters: leave it out, or set the l2 of \
             table.embedding_optimizer and table.linear_optimizer"
        )))
    }

    /// Refuses numbers so large that they overflow or take absurd memory. [`check`](Self::check) does that, too.
    ///
    /// # Errors
    /// A user fault that names the field.
    pub fn check_limits(&self) -> Result<(), Fault> {
        let Links { parse, batch, lookup, train, push, .. } = self.pipeline.links;
        for (name, value, most) in [
            ("data.epochs", self.data.epochs, MOST_EPOCHS),
            ("data.read_rows", self.data.read_rows, MOST_WINDOW_ROWS),
            ("train.staleness", self.train.staleness.batches, MOST_BATCHES),
            ("pipeline.links.parse", parse, MOST_BATCHES),
            ("pipeline.links.batch", batch, MOST_BATCHES),
            ("pipeline.links.lookup", lookup, MOST_BATCHES),
            ("pipeline.links.train", train, MOST_BATCHES),
            ("pipeline.links.push", push, MOST_BATCHES),
            ("placement.in_flight", self.placement.in_flight, MOST_BATCHES),
        ] {
            if value > most {
                return Err(Fault::user(format!("{name} is {value}, expected at most {most}")));
            }
        }
        let (shards, ps) = (self.table.shards.or(1), self.placement.ps.max(1));
        if shards.saturating_mul(ps) > MAX_SHARDS {
            let of_each = if ps > 1 { format!(" for each of {ps} ps") } else { String::new() };
            return Err(Fault::user(format!(
                "table.shards is {shards}{of_each}, expected at most {MAX_SHARDS} in all ps together"
            )));
        }
        let cores = self.pipeline.cores;
        if cores.or(1) > MOST_THREADS {
            return Err(Fault::user(format!("pipeline.cores is {cores}, expected at most {MOST_THREADS}")));
        }
        self.placement.check_seconds()
    }

    /// As [`check`](Self::check), for the job of a saved model: earlier versions took fields of `[model]` that the kind does not read,
    /// fields of `[checkpoint]` without a folder, the same column twice, and larger numbers.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_saved(&self) -> Result<(), Fault> {
        self.check_with(&self.data.on_bad_row)
    }

    /// As [`check_saved`](Self::check_saved), for a job that only says how a model was trained: earlier versions accepted a URL for the
    /// folder of bad rows. A command that writes bad rows checks this field of its own job.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_trained(&self) -> Result<(), Fault> {
        self.check_with(&OnBadRow::Fail)
    }

    /// The checks of a saved job, with `on_bad_row` instead of its own.
    fn check_with(&self, on_bad_row: &OnBadRow) -> Result<(), Fault> {
        let Links { parse, batch, lookup, train, push, bytes } = self.pipeline.links;
        for (name, value) in [
            ("data.epochs", self.data.epochs),
            ("data.read_rows", self.data.read_rows),
            ("data.decode_threads", self.data.decode_threads.or(1)),
            ("train.batch_rows", self.train.batch_rows),
            ("table.shards", self.table.shards.or(1)),
            ("pipeline.cores", self.pipeline.cores.or(1)),
            ("pipeline.parse_replicas", self.pipeline.parse_replicas.or(1)),
            ("pipeline.batch_replicas", self.pipeline.batch_replicas.or(1)),
            ("pipeline.links.parse", parse),
            ("pipeline.links.batch", batch),
            ("pipeline.links.lookup", lookup),
            ("pipeline.links.train", train),
            ("pipeline.links.push", push),
            ("pipeline.links.bytes", bytes.0),
            ("pipeline.memory", self.pipeline.memory.map_or(1, |memory| memory.0)),
        ] {
            if value == 0 {
                return Err(Fault::user(format!("{name} is 0, expected at least 1")));
            }
        }
        for (name, threads) in [
            ("data.decode_threads", self.data.decode_threads),
            ("pipeline.parse_replicas", self.pipeline.parse_replicas),
            ("pipeline.batch_replicas", self.pipeline.batch_replicas),
            ("train.threads", self.train.threads),
        ] {
            if threads.or(1) > MOST_THREADS {
                return Err(Fault::user(format!("{name} is {threads}, expected at most {MOST_THREADS}")));
            }
        }
        if self.columns.slots.is_empty() {
            return Err(Fault::user(
                "columns.slots is empty, expected at least one categorical column; a number can be one, for instance { column = \"age\", \
                 kind = \"boundaries\", boundaries = [18, 30, 50] }",
            ));
        }
        if self.data.shuffle_rows > MOST_WINDOW_ROWS || self.train.batch_rows > MOST_WINDOW_ROWS {
            return Err(Fault::user(format!(
                "data.shuffle_rows is {} and train.batch_rows {}, expected at most {MOST_WINDOW_ROWS} of each",
                self.data.shuffle_rows, self.train.batch_rows
            )));
        }
        self.model.check()?;
        self.data.check(on_bad_row)?;
        self.columns.check()?;
        self.check_two_towers()?;
        self.check_final_mlp()?;
        self.model_spec()?;
        self.model.check_labels(self.columns.label.len())?;
        if self.data.negatives < 1.0 && self.columns.label.len() > 1 {
            return Err(Fault::user(
                "data.negatives leaves rows of label 0 out, but columns.label has several labels: set it to 1",
            ));
        }
        if self.data.negatives < 1.0 && self.columns.label.main().soft {
            return Err(Fault::user(
                "data.negatives leaves rows of label 0 out, but columns.label has soft labels: set it to 1",
            ));
        }
        self.table.check()?;
        self.check_tables()?;
        self.train.check()?;
        self.check_initial_bias()?;
        self.evaluation.check(self)?;
        self.checkpoint.check()?;
        self.output.check(self, on_bad_row)?;
        self.placement.check(self)?;
        self.check_look_ahead()
    }

    /// `data.train`, or a user fault if it is not set.
    pub fn train_paths(&self) -> Result<&Paths, Fault> {
        self.data.train.as_ref().ok_or_else(|| {
            Fault::user("the job names no rows to train on: set data.train to a file, a folder or a glob")
        })
    }

    /// Trainers that take each step together (synchronous SGD); 1 if each trainer steps on its own.
    pub fn in_step(&self) -> usize {
        if self.train.sync { self.placement.trainers } else { 1 }
    }

    /// How many trainers push in one round, if several take each step together.
    pub fn round(&self) -> Option<u32> {
        (self.in_step() > 1).then_some(self.in_step() as u32)
    }

    /// Whether the run goes on without trainers that are asked to shut down, all but the first, which saves the model. Not with
    /// `train.sync`: every step needs all trainers.
    pub fn trainers_may_leave(&self) -> bool {
        self.placement.trainers > 1 && self.in_step() == 1
    }

    /// The job that evaluation runs: one epoch, all negatives, no shuffling, `eval_where`, and `eval_format`. Files whose names tell no
    /// format have the format of the training rows.
    pub fn for_evaluation(&self) -> Self {
        let mut job = self.clone();
        job.data.epochs = 1;
        job.data.negatives = 1.0;
        job.data.shuffle = false;
        (job.data.format, job.data.eval_format) = (self.data.eval_format, self.data.format);
        job.data.filter = job.data.eval_filter.take();
        job
    }
}

/// Most threads or replicas of one kind: more is taken for a typing error, and no machine starts a million threads.
const MOST_THREADS: usize = 1024;

/// Most passes over the rows: epochs are counted in 32 bits.
const MOST_EPOCHS: usize = 1_000_000_000;

/// Most batches in a link, or under way: more is taken for a typing error.
const MOST_BATCHES: usize = 65_536;

/// Most rows of a window or a batch: offsets within it are 32-bit numbers, and a row may have 4,096 values.
const MOST_WINDOW_ROWS: usize = 1 << 20;
