//! The stages, one per file, named by a verb.
//!
//! Training is [`Parse`] → [`Batcher`] → [`Lookup`] → [`Train`] → [`Push`]. [`Evaluate`], [`Predict`] or `Embed` replaces the last two in
//! evaluation and prediction. With `train.transfers = "apart"`, [`Upload`] → [`TrainOnDevice`] → [`Download`] replace [`Train`].
//!
//! Read in this order: `lookup.rs`, `train.rs` (on a device `upload.rs`, `train_on_device.rs`, `download.rs`), `push.rs` with `apply.rs`;
//! `state_output.rs`. In a cluster: `ship.rs` (of a reader), `receive.rs`, `refresh.rs`, `participation.rs` and `rounds_end.rs`. Without
//! training: `scorer.rs`, `evaluate.rs` with `ranked_rows.rs`, `predict.rs`, `embed.rs`.

mod apply;
#[cfg(test)]
mod conformance;
mod download;
mod embed;
mod evaluate;
#[cfg(test)]
mod in_step;
mod lookup;
pub(crate) mod participation;
mod predict;
mod push;
mod ranked_rows;
mod receive;
mod refresh;
pub(crate) mod rounds_end;
mod scorer;
mod ship;
mod state_output;
mod train;
mod train_on_device;
mod upload;

pub use download::Download;
pub(crate) use embed::{Embed, VECTOR};
pub use evaluate::Evaluate;
pub use forebay_batches::{BatchPlan, Batcher, Parse};
pub use lookup::Lookup;
pub(crate) use lookup::{STOPPED_EARLY, TRAINED_BEFORE};
pub use predict::{Predict, PredictedRows};
pub use push::Push;
pub(crate) use ranked_rows::RankedRows;
pub(crate) use receive::Receive;
pub(crate) use refresh::Refresh;
pub use scorer::Scorer;
pub(crate) use ship::Ship;
pub(crate) use state_output::{OptimizerState, StateOutput};
pub use train::{ModelMaker, Train};
pub use train_on_device::TrainOnDevice;
pub use upload::Upload;
