//! The parts of a pipeline: a [`Source`] produces batches, a [`Stage`] turns batches into batches, a [`Sink`] takes
//! them in.
//!
//! All three are plain structs with `async fn`. The runtime makes each on the thread where it runs, so it may hold
//! state that is not `Send`, and calls it with one batch at a time and its [`StageCx`]. Any method may await. A stage
//! that blocks its thread needs a [`Place`](crate::Place) of its own.

use std::future::Future;

use crate::batch::{BarrierNumber, Batch};
use crate::context::StageCx;
use crate::fault::Fault;
use crate::outbox::Outbox;

/// Produces batches until it has none left.
pub trait Source: 'static {
    /// The batches it produces.
    type Out: Batch;

    /// Its line in the report, for instance `parquet 8 files, 16 row groups`; by default the name of its type.
    fn describe(&self) -> String {
        type_name::<Self>()
    }

    /// The rows of all epochs, if the source knows or can estimate them. Called after `open` and after each batch.
    fn total_rows(&self) -> Option<u64> {
        None
    }

    /// Called once, before the first batch.
    fn open(&mut self, _cx: &StageCx) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }

    /// The next batch, or `None` when there are no more. `cx` is the one that `open` got.
    ///
    /// Must be cancel safe: if the future is dropped before it is ready, no batch is lost. A drain drops the future, and does not call
    /// `next` again: what the source has taken from elsewhere and not returned is not read.
    fn next(&mut self, cx: &StageCx) -> impl Future<Output = Result<Option<Self::Out>, Fault>>;
}

/// Turns batches into batches.
pub trait Stage: 'static {
    /// The batches it takes in.
    type In: Batch;
    /// The batches it produces.
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

    /// Called at a barrier, after all batches before it and before all batches after it.
    fn on_barrier(
        &mut self,
        _barrier: BarrierNumber,
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
    /// The batches it takes in.
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

    /// Called at a barrier, like [`Stage::on_barrier`].
    fn on_barrier(&mut self, _barrier: BarrierNumber, _cx: &StageCx) -> impl Future<Output = Result<(), Fault>> {
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
