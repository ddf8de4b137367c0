//! The stages, in the order that a batch meets them: one file, one verb.
//!
//! [`Parse`] → [`Batch`] → [`Lookup`] → [`Train`] → [`Push`], and [`Evaluate`] in the place of the last two.

mod batch;
mod evaluate;
mod lookup;
mod parse;
mod push;
mod receive;
mod refresh;
mod ship;
mod train;

pub use batch::{Batch, BatchPlan};
pub use evaluate::{Evaluate, Evaluation};
pub use lookup::Lookup;
pub use parse::Parse;
pub use push::Push;
pub(crate) use receive::Receive;
pub(crate) use refresh::Refresh;
pub(crate) use ship::Ship;
pub use train::{ModelMaker, Train, TrainedDense};
