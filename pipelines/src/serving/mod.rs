//! Scoring rows for requests: a model in memory that many threads read, and threads that score.
//!
//! ```text
//!   bytes of JSON ─→ ScoringThreads ── a free thread ─→ JsonRows ─→ Parse ─→ Batcher ─→ rows of the table ─→ dense model ─→ Scores
//!                        │ the model that is current when the request is begun: an Arc
//!   Follower ── a new model folder, or deltas ──→ ScoringThreads::replace
//! ```
//!
//! A [`ServingModel`] never changes. A delta makes another one, which shares all rows but those that changed. A request is scored
//! with one model from begin to end, so it sees the old rows or the new ones, never a mix, and never waits for a new model.

mod follower;
mod json_cell;
mod json_column;
mod json_rows;
mod row_scorer;
mod scoring_threads;
mod serving_model;
mod serving_rows;

pub use self::follower::{Followed, Follower};
pub use self::row_scorer::{BadScore, Scores};
pub use self::scoring_threads::ScoringThreads;
pub use self::serving_model::ServingModel;
