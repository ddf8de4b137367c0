//! The stages of Forebay and their wiring: from rows to a trained model.
//!
//! ```text
//!  source ─8→ parse ─8→ batch ─4→ lookup ─2→ train ─2→ push
//!                                   ⇅                   ↓
//!                                 shard × S  ←──────────┘
//! ```
//!
//! On a GPU, `train` is three stages: `upload ─1→ train ─1→ download` ([`job::Transfers`]).
//!
//! The folders are layers: a file uses files of its own folder and of folders below, so rows, batches and models flow one way (a test
//! checks it). Read them from the top of this list for an overview, or from its end to see each part before its use, after [`flow`] (the
//! batches) and [`job`] (the configuration):
//!
//! 1. Uses of a finished model: [`scoring`](Model) (evaluation, prediction, vectors), `serving/` (answers requests), `export/` (ONNX,
//!    numpy), `delta/` (changes between versions). `planning/`: how many machines a run needs.
//! 2. [`roles`]: the processes of a cluster. `training/`: a [`Training`], from its job to its end, in one process or as a trainer.
//! 3. `tuning/` (replicas and threads), `analysis/` ([`Analysis`]: where the time went).
//! 4. [`stages`]: what the processes do with batches.
//! 5. `sampling/`: what a sample of rows decides. `sources/`: the rows of a job. `checkpointer/`: makes checkpoints during a run.
//! 6. `evaluations/`: when a model is evaluated during training, and which model is kept.
//! 7. [`cluster`]: the protocol between processes. `predecessor`: the model that a run continues from.
//! 8. `checkpoint/`: the files of a checkpoint. `order/`: the order of look-ups and pushes.
//! 9. [`model_folder`], `model/` ([`Model`]), `dense_model/`, `columns/` (types and scales), `metrics/` (counts).
//! 10. `context`: what all parts of a process share. `extension/`: what a program adds.
//! 11. Helpers: `fault`, `retries`, `own_thread`, `shared_state`, `trainer_count`, `window_rows`, `checkpoint_name`, `signed_json` and
//!     `versioned_json` (manifests). `fuzzing`: hostile bytes for the readers of files.
//!
//! A program adds custom stages, sources and models with [`Training::builder`], or by name in a [`Registry`]. Every process of a
//! cluster has the registry in its [`Context`], and evaluation uses it too.
//!
//! ```no_run
//! use forebay_pipelines::{Job, Training};
//!
//! let job = Job::from_toml("data.train = 'rows/train'\nmodel.kind = 'lr'", &[])?;
//! let trained = Training::new(job)?.run()?;
//! println!("{}", trained.report);
//! let (evaluation, _) = trained.model.evaluate("rows/test")?;
//! println!("{evaluation}");
//! trained.save("model")?;
//! # Ok::<(), forebay_actors::Fault>(())
//! ```

mod analysis;
mod checkpoint;
mod checkpoint_name;
mod checkpointer;
pub mod cluster;
mod columns;
mod context;
mod delta;
mod dense_model;
mod evaluations;
mod export;
mod extension;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod metrics;
mod model;
pub mod model_folder;
mod order;
mod own_thread;
mod planning;
mod predecessor;
mod retries;
pub mod roles;
mod sampling;
mod scoring;
mod serving;
mod shared_state;
mod signed_json;
mod sources;
pub mod stages;
mod trainer_count;
mod training;
mod tuning;
mod versioned_json;
mod window_rows;

pub use analysis::{Analysis, BusyCores, Certainty, Change, Limit, LimitKind, Load};
pub use checkpoint::{CheckpointFolder, CheckpointManifest, Compaction, TableLayer, TableLayers, check_checkpoints};
pub use checkpointer::checkpoint_thread::NewestCheckpoint;
pub use checkpointer::drained_to::DrainedTo;
pub use columns::score_columns::ScoreColumns;
pub use context::Context;
pub use delta::{Delta, DeltaManifest, ModelVersions};
pub use dense_model::dense_memory::DenseMemory;
pub use dense_model::job_model::JobModel;
pub use export::{ExportManifest, ExportParts, ExportedGroup, ExportedPart, npy_header};
pub use extension::drop_rows::DropRows;
pub use extension::own_model::{ModelFactory, OwnModel};
pub use extension::registry::{Registry, SourceRequest};
pub use forebay_batches::{self as flow, ColumnType, Staleness, Ticket};
pub use forebay_job::{
    self as job, Clip, Columns, Comparison, DenseColumn, DenseStatistics, Job, LabelColumn, Labels, Positive,
    PositiveRule, RunEnd, Scale, Slot, SlotCross, SlotKind, Transform, UnixUnit,
};
pub use metrics::evaluation_points::{EvaluationHistory, EvaluationPoint};
pub use metrics::process_report::ProcessReport;
pub use metrics::progress::{Progress, Snapshot};
pub use metrics::quality::{Evaluation, Gauc, ProbabilityMetrics, Slice};
pub use metrics::retrieval::{RecallAt, Retrieval};
pub use metrics::scored_rows::ScoredRows;
pub use metrics::slots_seen::SlotReport;
pub use metrics::training_summary::TrainingSummary;
pub use model::Model;
pub use model::model_version::ModelVersion;
pub use order::look_ahead::LookAheadReport;
pub use planning::{
    Assumption, Bound, MachineKind, Machines, PlanOptions, PlannedLink, PlannedRole, PlannedTable, RunPlan, RunProfile,
    plan,
};
pub use predecessor::check_predecessor;
pub use retries::Retries;
pub use sampling::statistics::{ColumnStatistics, column_statistics};
pub use scoring::followed_checkpoints::{CheckpointEvaluations, EvaluatedCheckpoint};
pub use scoring::prediction::Predictions;
pub use serving::{BadScore, Followed, Follower, RequestRows, ScoreExchange, Scores, ScoringThreads, ServingModel};
pub use stages::PredictedRows;
pub use training::builder::TrainingBuilder;
pub use training::drained::DrainedTraining;
pub use training::failed_training::FailedTraining;
pub use training::headspace::{Headspace, Speed, headspace};
pub use training::preflight::{check_not_among_rows, preflight, warn_if_it_may_pass};
pub use training::run_report::{AllTrainers, RunReport};
pub use training::wiring::{Compute, feed, feed_from};
pub use training::{RunPosition, RunningTraining, Trained, Training};
