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
//! Read these files in this order, after [`flow`] (the batches) and [`job`] (the configuration):
//!
//! 1. [`stages`], and `wiring` (connects them for each role). `builder`, `training`, `resources`, `context`: a [`Training`], from its job
//!    to its end. `preflight`: checks before the first row.
//! 2. What a program adds: `registry`, `own_model`, `leased_rows` (checks of its sources).
//! 3. Input: `sources`, `source_progress`, `spread_windows`. Types of columns: `expected_types`, `run_types`, `trained_types`.
//! 4. Order of look-ups and pushes: `exact_order` (exact staleness), `step_order` (`train.sync`), `look_ahead`. Dense parameters:
//!    `job_model` (the model of a job), `dense` (in the ps), `dense_memory`.
//! 5. Decided by a sample of rows: `row_sample`, `sampled_settings`, `feature_scales`, `value_sample`, `initial_bias`. `statistics`: of
//!    columns (`data stats`).
//! 6. Warnings about rows: `empty_features`, `far_values`, `label_order`, `mean_weight`. Counts: `slots_seen`, `running_metrics`,
//!    `progress`.
//! 7. While a model is trained: `evaluations` (when, and which model is kept), `checkpoint/`, `dense_threads`, `tuning/` (replicas and
//!    threads).
//! 8. The end of a training: `training_summary`, `drained`, `failed_training`, `early_leave` (a trainer leaves), `rounds_end`.
//! 9. The model: `model` ([`Model`]), [`model_folder`], `saved_model` (loads), `model_version`, `delta/` (changes between versions),
//!    `export/` (ONNX, numpy), `sorted_rows`, `signed_json` and `versioned_json` (manifests), `fuzzing` (hostile bytes).
//! 10. Use of a model: `evaluation`, `quality`, `prediction`, `score_columns`, `kept_columns`, `scored_rows`, `embedding` (vectors of two
//!     towers), `serving/` (answers requests).
//! 11. [`cluster`]: several processes. `participation` (alone, or a member of a cluster), `trainer_count`, `process_report`.
//! 12. Where the time went: `run_report` ([`RunReport`]), `analysis/` ([`Analysis`]), `headspace` (speed with a perfect feed), `planning/`
//!     (how many machines).
//! 13. Helpers: `fault`, `retries`, `own_thread`, `shared_state`.
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
mod builder;
mod checkpoint;
pub mod cluster;
mod context;
mod delta;
mod dense;
mod dense_memory;
mod dense_threads;
mod drained;
mod early_leave;
mod embedding;
mod empty_features;
mod evaluation;
mod evaluations;
mod exact_order;
mod expected_types;
mod export;
mod failed_training;
mod far_values;
mod fault;
mod feature_scales;
#[doc(hidden)]
pub mod fuzzing;
mod headspace;
mod initial_bias;
mod job_model;
mod kept_columns;
mod label_order;
mod leased_rows;
mod look_ahead;
mod mean_weight;
mod model;
pub mod model_folder;
mod model_version;
mod own_model;
mod own_thread;
mod participation;
mod planning;
mod prediction;
mod preflight;
mod process_report;
mod progress;
mod quality;
mod registry;
mod resources;
mod retries;
mod rounds_end;
mod row_sample;
mod run_report;
mod run_types;
mod running_metrics;
mod sampled_settings;
mod saved_model;
mod score_columns;
mod scored_rows;
mod serving;
mod shared_state;
mod signed_json;
mod slots_seen;
mod sorted_rows;
mod source_progress;
mod sources;
mod spread_windows;
pub mod stages;
mod statistics;
mod step_order;
mod trained_types;
mod trainer_count;
mod training;
mod training_summary;
mod tuning;
mod value_sample;
mod versioned_json;
mod wiring;

pub use analysis::{Analysis, BusyCores, Certainty, Change, Limit, LimitKind, Load};
pub use builder::TrainingBuilder;
pub use checkpoint::{
    CheckpointFolder, CheckpointManifest, Compaction, DrainedTo, NewestCheckpoint, TableLayer, TableLayers,
    check_checkpoints,
};
pub use context::Context;
pub use delta::{Delta, DeltaManifest, ModelVersions};
pub use dense_memory::DenseMemory;
pub use drained::DrainedTraining;
pub use evaluations::{CheckpointEvaluations, EvaluatedCheckpoint, EvaluationHistory, EvaluationPoint};
pub use export::{ExportManifest, ExportParts, ExportedGroup, ExportedPart, npy_header};
pub use failed_training::FailedTraining;
pub use forebay_batches::{self as flow, ColumnType, Staleness, Ticket};
pub use forebay_job::{
    self as job, Clip, Columns, Comparison, DenseColumn, DenseStatistics, Job, LabelColumn, Labels, Positive,
    PositiveRule, RunEnd, Scale, Slot, SlotCross, SlotKind, Transform, UnixUnit,
};
pub use headspace::{Headspace, Speed, headspace};
pub use job_model::JobModel;
pub use look_ahead::LookAheadReport;
pub use model::Model;
pub use model_version::ModelVersion;
pub use own_model::{ModelFactory, OwnModel};
pub use planning::{
    Assumption, Bound, MachineKind, Machines, PlanOptions, PlannedLink, PlannedRole, PlannedTable, RunPlan, RunProfile,
    plan,
};
pub use prediction::Predictions;
pub use preflight::{check_not_among_rows, preflight, warn_if_it_may_pass};
pub use process_report::ProcessReport;
pub use progress::{Progress, Snapshot};
pub use quality::{Evaluation, Gauc, Slice};
pub use registry::{Registry, SourceRequest};
pub use retries::Retries;
pub use run_report::{AllTrainers, RunReport};
pub use score_columns::ScoreColumns;
pub use scored_rows::ScoredRows;
pub use serving::{BadScore, Followed, Follower, RequestRows, ScoreExchange, Scores, ScoringThreads, ServingModel};
pub use slots_seen::SlotReport;
pub use stages::PredictedRows;
pub use statistics::{ColumnStatistics, column_statistics};
pub use training::{RunPosition, RunningTraining, Trained, Training};
pub use training_summary::TrainingSummary;
pub use wiring::{Compute, feed, feed_from};
