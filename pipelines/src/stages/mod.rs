//! The stages, one per file, named by a verb.
//!
//! Training is [`Parse`] → [`Batcher`] → [`Lookup`] → [`Train`] → [`Push`]. [`Evaluate`], [`Predict`] or `Embed` replaces the last two in
//! evaluation and prediction. With `train.transfers = "apart"`, [`Upload`] → [`TrainOnDevice`] → [`Download`] replace [`Train`].

mod apply;
#[cfg(test)]
mod conformance;
mod download;
mod drop_rows;
mod embed;
mod evaluate;
#[cfg(test)]
mod in_step;
mod lookup;
mod predict;
mod push;
mod receive;
mod refresh;
mod row_groups;
mod scorer;
mod ship;
mod state_output;
mod train;
mod train_on_device;
mod unknown_values;
mod upload;

pub use download::Download;
pub use drop_rows::DropRows;
pub(crate) use embed::{Embed, VECTOR};
pub use evaluate::Evaluate;
pub use forebay_batches::{BatchPlan, Batcher, Parse};
pub use lookup::Lookup;
pub(crate) use lookup::{STOPPED_EARLY, TRAINED_BEFORE};
pub use predict::{Predict, PredictedRows};
pub use push::Push;
pub(crate) use receive::Receive;
pub(crate) use refresh::Refresh;
pub(crate) use row_groups::check_groups;
pub use scorer::Scorer;
pub(crate) use ship::Ship;
pub(crate) use state_output::{OptimizerState, StateOutput};
pub use train::{ModelMaker, Train};
pub use train_on_device::TrainOnDevice;
pub(crate) use unknown_values::{UnknownValues, WarnedSlots};
pub use upload::Upload;
