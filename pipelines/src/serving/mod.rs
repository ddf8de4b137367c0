//! Scoring rows for requests: a model in memory that many threads read, and threads that score.
//!
//! ```text
//!   JSON, or a record batch ─→ ScoringThreads ── a free thread ─→ json_rows, arrow_rows ─→ Parse ─→ Batcher ─→ rows of the table
//!                                  │ the model that is current when the request is begun: an Arc        ─→ dense model ─→ Scores
//!   Follower ── a new model folder, or deltas ──→ ScoringThreads::replace
//! ```
//!
//! If a thread is idle when another one reaches the dense model, both compute rows of the request ([`split_batch`]).
//!
//! A [`ServingModel`] never changes. A delta makes another one, which shares all rows except the changed ones. One model scores all of a
//! request, so the request sees the old rows or the new ones, never a mix, and never waits for a new model.
//!
//! Read in this order: `request_rows.rs`, `json_rows.rs` with `json_column.rs` and `json_cell.rs`, `arrow_rows.rs`, `column_order.rs`,
//! `serving_columns.rs` and `request_size.rs` (the rows of a request); `serving_model.rs` with `serving_rows.rs`; `row_scorer.rs`,
//! `scoring_threads.rs` with `score_queue.rs` and `split_batch.rs`; `score_exchange.rs` (Arrow Flight); `follower.rs` with
//! `delta_folder.rs`, `failed.rs` and `outage.rs` (newer versions).

mod arrow_rows;
mod column_order;
mod delta_folder;
mod failed;
mod follower;
mod json_cell;
mod json_column;
mod json_rows;
mod outage;
mod request_rows;
mod request_size;
mod row_scorer;
mod score_exchange;
mod score_queue;
mod scoring_threads;
mod serving_columns;
mod serving_model;
mod serving_rows;
mod split_batch;

pub use self::follower::{Followed, Follower};
pub use self::request_rows::RequestRows;
pub use self::row_scorer::{BadScore, Scores};
pub use self::score_exchange::ScoreExchange;
pub use self::scoring_threads::ScoringThreads;
pub use self::serving_model::ServingModel;
