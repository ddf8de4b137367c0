//! The job: everything a training run is told, as a TOML file or as Rust code.
//!
//! Every field has a default that is documented where it stands, and an unknown field is refused with the nearest
//! valid name. One file per part: [`Data`], [`Columns`], [`Model`], [`Table`], [`TrainOptions`],
//! [`Pipeline`], [`Placement`], [`Network`], [`Output`].

mod data;
mod model;
mod network;
mod parse;
mod pipeline;
mod placement;
mod table;
mod train;

use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

pub use data::{ByteSize, DataOptions, Format};
pub use forebay_ps::remote::Wire;
pub use model::{ModelKind, ModelOptions};
pub use network::NetworkOptions;
pub use pipeline::{Links, OwnStage, PipelineOptions};
pub use placement::{DenseAt, LookupAt, Placement};
pub use table::TableOptions;
pub use train::{Backend, TrainOptions, Transfers};

use crate::columns::Columns;

/// A whole job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Job {
    /// Every random choice follows from it. Default 0.
    pub seed: u64,
    /// Where the rows are and how they are read.
    pub data: DataOptions,
    /// Which column is what.
    pub columns: Columns,
    /// The model.
    pub model: ModelOptions,
    /// The table of sparse rows.
    pub table: TableOptions,
    /// How it is trained.
    pub train: TrainOptions,
    /// Replicas and the capacities of the links.
    pub pipeline: PipelineOptions,
    /// Which processes there are. Default: one that does everything.
    pub placement: Placement,
    /// How they find and trust each other.
    pub network: NetworkOptions,
    /// What is left behind.
    pub output: OutputOptions,
}

/// What a run leaves behind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputOptions {
    /// The model folder, a path or a URL (`hdfs://`, `s3://`, `file://`). Written aside and renamed at the end; a model that
    /// was there before is replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl Job {
    /// Refuses numbers that make no sense, by name.
    pub fn check(&self) -> Result<(), Fault> {
        let Links { parse, batch, lookup, train, push } = self.pipeline.links;
        for (name, value) in [
            ("data.epochs", self.data.epochs),
            ("data.read_rows", self.data.read_rows),
            ("data.decode_threads", self.data.decode_threads),
            ("train.batch_rows", self.train.batch_rows),
            ("table.shards", self.table.shards),
            ("pipeline.parse_replicas", self.pipeline.parse_replicas),
            ("pipeline.links.parse", parse),
            ("pipeline.links.batch", batch),
            ("pipeline.links.lookup", lookup),
            ("pipeline.links.train", train),
            ("pipeline.links.push", push),
        ] {
            if value == 0 {
                return Err(Fault::user(format!("{name} is 0, expected at least 1")));
            }
        }
        if self.columns.slots.is_empty() {
            return Err(Fault::user("columns.slots is empty, expected at least one categorical column"));
        }
        if self.data.shuffle_rows > MOST_WINDOW_ROWS || self.train.batch_rows > MOST_WINDOW_ROWS {
            return Err(Fault::user(format!(
                "data.shuffle_rows is {} and train.batch_rows {}, expected at most {MOST_WINDOW_ROWS} of each",
                self.data.shuffle_rows, self.train.batch_rows
            )));
        }
        if (self.model.kind == ModelKind::Own) != self.model.name.is_some() {
            return Err(Fault::user(
                "model.kind = \"own\" and model.name go together: the name is that of a model in the program's registry",
            ));
        }
        self.train.check()?;
        self.placement.check(self)
    }

    /// Where the rows to train on are.
    pub(crate) fn train_path(&self) -> Result<&str, Fault> {
        self.data.train.as_deref().ok_or_else(|| {
            Fault::user("the job names no rows to train on: set data.train to a file, a folder or a glob")
        })
    }

    /// Trainers that take each step together; 1 if each goes at its own pace.
    pub(crate) fn in_step(&self) -> usize {
        if self.train.sync { self.placement.trainers } else { 1 }
    }

    /// How many trainers push for one step, if several take it together.
    pub(crate) fn round(&self) -> Option<u32> {
        (self.in_step() > 1).then_some(self.in_step() as u32)
    }

    /// The same job, reading once and in order, whatever files it is pointed at.
    pub(crate) fn for_evaluation(&self) -> Self {
        let mut job = self.clone();
        job.data.epochs = 1;
        job.data.shuffle = false;
        job.data.format = None;
        job.data.filter = job.data.eval_filter.take();
        job
    }
}

/// Rows that a window or a batch may hold: places in it are 32-bit numbers, 4,096 values a row included.
const MOST_WINDOW_ROWS: usize = 1 << 20;
