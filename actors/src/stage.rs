//! The three kinds of work a pipeline is made of: a [`Source`] produces batches, a [`Stage`] turns batches into
//! batches, a [`Sink`] takes them in.
//!
//! All three are plain structs with `async fn`. The runtime builds each on the thread it stays on, so it may hold
//! state that is not `Send`, and calls it with one batch at a time. Every call comes with the stage's [`StageCx`]: the
//! ledger, the meter, the number of the batch. Any method may await; a stage that blocks its thread for longer than a
//! batch's work belongs on a [`Place`](crate::Place) of its own.

use std::future::Future;

use crate::batch::{Batch, Epoch};
use crate::context::StageCx;
use crate::fault::Fault;
use crate::outbox::Outbox;

/// Produces batches until it has none left.
pub trait Source: 'static {
    /// What it produces.
    type Out: Batch;
    /// Enough to go on after the last batch returned.
    type Position: Clone + Send + serde::Serialize + serde::de::DeserializeOwned + 'static;

    /// Its line in the report, for instance `parquet 8 files, 16 row groups`; by default the name of its type.
    fn describe(&self) -> String {
        type_name::<Self>()
    }

    /// Called once, before the first batch; `from` is where an earlier run stopped.
    fn open(&mut self, cx: &StageCx, from: Option<Self::Position>) -> impl Future<Output = Result<(), Fault>>;

    /// The next batch, or `None` when there are no more.
    ///
    /// Cancel safe: when the future is dropped before it is ready, no batch is lost.
    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Out>, Fault>>;

    /// Where the source stands after the last batch returned.
    fn position(&self) -> Self::Position;
}

/// Turns batches into batches.
pub trait Stage: 'static {
    /// What it takes.
    type In: Batch;
    /// What it produces.
    type Out: Batch;

    /// Its line in the report; by default the name of its type.
    fn describe(&self) -> String {
        type_name::<Self>()
    }

    /// Called once, before the first batch.
    fn open(&mut self, _cx: &StageCx) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }

    /// Takes one batch and sends any number of batches to `out`.
    fn on_batch(
        &mut self,
        batch: Self::In,
        cx: &StageCx,
        out: &mut Outbox<Self::Out>,
    ) -> impl Future<Output = Result<(), Fault>>;

    /// Called when a barrier passes: everything before it was handled, nothing after it was.
    fn on_barrier(
        &mut self,
        _epoch: Epoch,
        _cx: &StageCx,
        _out: &mut Outbox<Self::Out>,
    ) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }

    /// Called once after the last batch; may still send.
    fn finish(&mut self, _cx: &StageCx, _out: &mut Outbox<Self::Out>) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }
}

/// Takes batches in, at the end of a pipeline.
pub trait Sink: 'static {
    /// What it takes.
    type In: Batch;

    /// Its line in the report; by default the name of its type.
    fn describe(&self) -> String {
        type_name::<Self>()
    }

    /// Called once, before the first batch.
    fn open(&mut self, _cx: &StageCx) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }

    /// Takes one batch.
    fn write(&mut self, batch: Self::In, cx: &StageCx) -> impl Future<Output = Result<(), Fault>>;

    /// Called when a barrier passes.
    fn on_barrier(&mut self, _epoch: Epoch, _cx: &StageCx) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }

    /// Called once after the last batch.
    fn finish(&mut self, _cx: &StageCx) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }
}

/// The name of a type without its path and parameters.
pub(crate) fn type_name<T: ?Sized>() -> String {
    let path = std::any::type_name::<T>();
    let path = path.split('<').next().unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path).to_owned()
}
