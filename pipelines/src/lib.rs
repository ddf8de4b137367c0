//! The stages of Forebay and their wiring: from rows to a trained model.
//!
//! ```text
//!  source ─8→ parse ─8→ batch ─4→ lookup ─2→ train ─2→ push
//!                                   ⇅                   ↓
//!                                 shard × S  ←──────────┘
//! ```
//!
//! Where the way to the device is long, `train` is three: `upload ─1→ train ─1→ download` ([`job::Transfers`]).
//!
//! Read these files in this order: [`flow`] (what travels), [`stages`] (what works on it), `wiring.rs` (how they are
//! put together), [`job`] (what a user may say), [`Training`] and [`Model`] (what a user holds).
//!
//! ```no_run
//! use forebay_pipelines::{Job, Training};
//!
//! let job = Job::from_toml("data.train = 'rows/train'\nmodel.kind = 'lr'", &[])?;
//! let trained = Training::new(job)?.run()?;
//! println!("{}", trained.report);
//! let (evaluation, _) = trained.model.evaluate("rows/test")?;
//! println!("{evaluation}");
//! trained.model.save("model")?;
//! # Ok::<(), forebay_actors::Fault>(())
//! ```

mod backend;
pub mod cluster;
mod columns;
mod dedup;
mod dense;
pub mod flow;
pub mod job;
mod model;
pub mod model_folder;
mod participation;
mod progress;
mod registry;
mod sources;
pub mod stages;
mod staleness;
mod training;
mod wiring;

pub use columns::{Columns, DenseColumn, Slot, SlotKind, Transform};
pub use job::Job;
pub use model::{Model, ModelFactory};
pub use progress::{Progress, Snapshot};
pub use registry::Registry;
pub use stages::Evaluation;
pub use staleness::{Staleness, Ticket};
pub use training::{Failed, OwnModel, RunningTraining, Trained, Training};
pub use wiring::Compute;

use forebay_actors::Fault;
use forebay_models::ModelError;

/// Whose fault a model's error is.
pub(crate) fn model_fault(error: ModelError) -> Fault {
    match error {
        ModelError::Batch(_) => Fault::internal("a batch does not fit the model").because(error),
        ModelError::Spec(_) | ModelError::Optimizer(_) | ModelError::Load(_) => Fault::user(error.to_string()),
        ModelError::NonFinite(_) => {
            Fault::user(format!("{error} (a smaller learning rate, or cleaner data, may help)"))
        }
        ModelError::Backend(_) => Fault::user(error.to_string()),
    }
}
