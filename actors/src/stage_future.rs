//! The futures that the shells of sources, stages and sinks run, from open to finish.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::barrier::Barriers;
use crate::batch::Batch;
use crate::clock::now;
use crate::context::StageCx;
use crate::fault::{Fault, Phase};
use crate::outbox::{Item, Outbox};
use crate::shell::{ErrorContext, Inbox};
use crate::stage::{Sink, Source, Stage};

pub(crate) async fn source<S: Source>(
    make: impl FnOnce() -> S,
    cx: StageCx,
    mut out: Outbox<S::Out>,
    error_context: Rc<ErrorContext>,
) -> Result<(), Fault> {
    let mut source = make();
    source.open(&cx).await?;
    cx.meter().describe(source.describe());
    error_context.set(Phase::Batch, None);
    let mut stopped = pin!(cx.stopped());
    let mut began = now();
    loop {
        // A drain drops the future of `next`, which is cancel safe.
        let batch = tokio::select! {
            biased;
            () = &mut stopped => None,
            batch = source.next(&cx) => batch?,
        };
        let Some(batch) = batch else { break };
        error_context.set(Phase::Batch, Some(batch.lineage()));
        cx.ledger().read(batch.rows() as u64);
        let work = cx.meter().works(&batch, began);
        out.send(batch).await?;
        work.done();
        began = now();
        // A source that never waits must not starve the other actors on its arbiter.
        tokio::task::yield_now().await;
    }
    error_context.set(Phase::Finish, None);
    cx.meter().describe(source.describe());
    out.mark(Item::Eof).await
}

pub(crate) async fn stage<S: Stage>(
    make: impl FnOnce() -> S,
    cx: StageCx,
    mut inbox: Inbox<Item<S::In>>,
    mut out: Outbox<S::Out>,
    error_context: Rc<ErrorContext>,
) -> Result<(), Fault> {
    let mut stage = make();
    stage.open(&cx).await?;
    cx.meter().describe(stage.describe());
    let mut arrivals = 0;
    loop {
        match inbox.next().await {
            Item::Batch(batch) => {
                cx.arrives(arrivals);
                arrivals += 1;
                error_context.set(Phase::Batch, Some(batch.lineage()));
                let work = cx.meter().takes(&batch);
                stage.on_batch(batch, &cx, &mut out).await?;
                work.done();
            }
            Item::Barrier(epoch) => {
                error_context.set(Phase::Barrier, None);
                stage.on_barrier(epoch, &cx, &mut out).await?;
                out.mark(Item::Barrier(epoch)).await?;
            }
            Item::Eof => break,
        }
    }
    error_context.set(Phase::Finish, None);
    stage.finish(&cx, &mut out).await?;
    cx.meter().describe(stage.describe());
    out.mark(Item::Eof).await
}

pub(crate) async fn sink<S: Sink>(
    make: impl FnOnce() -> S,
    cx: StageCx,
    mut inbox: Inbox<Item<S::In>>,
    error_context: Rc<ErrorContext>,
    barriers: Arc<Barriers>,
) -> Result<(), Fault> {
    let mut sink = make();
    sink.open(&cx).await?;
    cx.meter().describe(sink.describe());
    loop {
        match inbox.next().await {
            Item::Batch(batch) => {
                let rows = batch.rows();
                error_context.set(Phase::Batch, Some(batch.lineage()));
                let work = cx.meter().takes(&batch);
                sink.write(batch, &cx).await?;
                work.done();
                cx.ledger().delivered(rows as u64);
            }
            Item::Barrier(epoch) => {
                error_context.set(Phase::Barrier, None);
                sink.on_barrier(epoch, &cx).await?;
                barriers.arrives(epoch);
            }
            Item::Eof => break,
        }
    }
    error_context.set(Phase::Finish, None);
    sink.finish(&cx).await?;
    cx.meter().describe(sink.describe());
    Ok(())
}
