//! Forebay trains recommendation models where reading the rows is the bottleneck. Readers, parsers, batchers, a parameter server
//! and dense compute are actors over bounded links, in one process or in many.
//!
//! This crate re-exports the others and holds the program. A crate depends only on crates below it:
//!
//! ```text
//!               forebay (facade, program)   examples   tests
//!                           └──────────────────┼──────────┘
//!                                     [`pipelines`]
//!                                        batches
//!                                          job
//!                       ┌──────────────────────┼──────────────────┐
//!                 [`connectors`]            [`ps`]            [`models`]
//!                       └──────────┬───────────┘            (no actors)
//!                               [`net`]
//!                              [`actors`]
//!                                base   (used by all)
//! ```
//!
//! - [`actors`]: the runtime. Stages, links with credits, replicas, faults, ledger, meters, report.
//! - [`connectors`]: input and output. Parquet, Arrow IPC, CSV, JSON lines, Criteo text, synthetic rows, any stream of record batches.
//! - [`net`]: Arrow Flight between processes. Servers, peers, TLS, tokens.
//! - [`ps`]: the sparse parameter server. Tables, optimizers, shards, client.
//! - [`models`]: dense compute. Specs, the native and the torch backend, losses, AUC.
//! - `forebay-job`: the options of a run; [`pipelines::job`] is the same.
//! - `forebay-batches`: the types of batches, parsing, batching; [`pipelines::flow`] is the same.
//! - [`pipelines`]: stages, wiring, model folder.
//!
//! One batch's journey (`docs/architecture.md` names the file of each step):
//!
//! ```text
//!  read ─8→ parse ─8→ batch ─4→ lookup ─2→ train ─2→ push
//!                                 ⇅                    ↓
//!                               shard × S  ←───────────┘
//! ```
//!
//! Files of the program: `cli` and `commands/` (a file for each command); `out`, `logs`, `progress`, `scoring_progress`, `rate`,
//! `time_left` (what it prints), `exit` (exit codes), `stop` (signals), `parent` (processes of `forebay launch`); `report/`, `dashboard/`,
//! `metrics/`, `tensorboard/`, `spans/` (OpenTelemetry), `usage` (what is known of a run); `listen_address`, `file_limit`, `whole_file`,
//! `heap`.
//!
//! A pipeline is a job file or code:
//!
//! ```no_run
//! use forebay::{Job, Training};
//!
//! let job = Job::load("examples/criteo.toml".as_ref(), &["train.staleness=2".into()])?;
//! let trained = Training::new(job)?.run()?;
//! trained.save("model")?;
//! # Ok::<(), forebay::Fault>(())
//! ```

// Standard output or error may be closed or full, and then the macros of the standard library panic: use `out`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

/// The Rust blocks of the documentation compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/in-rust.md")]
mod documentation {}

pub mod cli;

mod commands;
mod dashboard;
mod exit;
mod file_limit;
mod heap;
mod listen_address;
mod logs;
mod metrics;
mod out;
mod parent;
mod progress;
mod rate;
mod report;
mod scoring_progress;
#[cfg(feature = "otel")]
mod spans;
mod stop;
mod tensorboard;
mod time_left;
mod usage;
mod whole_file;

pub use forebay_actors as actors;
pub use forebay_connectors as connectors;
pub use forebay_models as models;
pub use forebay_net as net;
pub use forebay_pipelines as pipelines;
pub use forebay_ps as ps;

pub use forebay_actors::Fault;
pub use forebay_pipelines::{Job, Model, Registry, Training};
