//! The processes of a cluster: a reader, a trainer and a ps, and the processes of a prediction.
//!
//! Read in this order: `reader.rs`, `trainer.rs`, `ps.rs`, `away_rows.rs` (rows that cannot be read at a restart), `prediction_run.rs`.

pub(crate) mod away_rows;
pub(crate) mod prediction_run;
pub(crate) mod ps;
pub(crate) mod reader;
pub(crate) mod trainer;

pub use ps::Ps;
pub use reader::Reader;
pub use trainer::trainer;
