//! The stages, in the order that a batch meets them: one file, one verb.
//!
//! [`Parse`] → [`Batcher`] → [`Lookup`] → [`Train`] → [`Push`], and [`Evaluate`] in the place of the last two. Where the way to
//! the device is long, [`Upload`] → [`Launch`] → [`Download`] stand in the place of [`Train`].

mod batch;
mod download;
mod drop_rows;
mod evaluate;
mod launch;
mod lookup;
mod parse;
mod push;
mod receive;
mod refresh;
mod ship;
mod train;
mod upload;

pub use batch::{BatchPlan, Batcher};
pub use download::Download;
pub use drop_rows::DropRows;
pub use evaluate::{Evaluate, Evaluation};
pub use launch::Launch;
pub use lookup::Lookup;
pub use parse::Parse;
pub use push::Push;
pub(crate) use receive::Receive;
pub(crate) use refresh::Refresh;
pub(crate) use ship::Ship;
pub use train::{ModelMaker, Train};
pub use upload::Upload;
