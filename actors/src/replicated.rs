//! Wiring of a stage or a sink in several replicas behind one link; `replicas.rs` runs them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use actix::ArbiterHandle;
use tokio::sync::watch;

use crate::barrier::Barriers;
use crate::batch::{BarrierNumber, Batch, Lineage};
use crate::context::StageCx;
use crate::fault::Fault;
use crate::link::{Capacity, Link, Room};
use crate::outbox::{Item, Outbox};
use crate::place::Place;
use crate::plan::PlanStage;
use crate::replicas::{Front, Replicas, replica};
use crate::shell::{Inbox, mailbox};
use crate::stage::{Sink, Stage};
use crate::state::Scale;
use crate::topology::{Flow, Pipeline, Upstream};
use crate::turn::Turn;
use crate::wiring::Wire;

impl<T: Batch> Flow<T> {
    /// Adds a stage in several replicas behind one link; each batch goes to a free replica. `make` gets the replica's
    /// number, from 0. With [`Place::Own`] each replica has a thread of its own.
    /// [`Control::scale`](crate::Control::scale) changes the number of replicas during the run.
    pub fn replicated<S: Stage<In = T>>(
        self,
        name: &str,
        place: Place,
        replicas: Replicas,
        make: impl Fn(usize) -> S + Send + Sync + 'static,
    ) -> Flow<S::Out> {
        self.several(name, "stage", place, replicas, make)
    }

    /// Ends the pipeline with a sink in several replicas. Each batch goes to a free replica, so batches may be written
    /// out of order. Otherwise as [`replicated`](Self::replicated).
    pub fn replicated_sink<S: Sink<In = T>>(
        self,
        name: &str,
        place: Place,
        replicas: usize,
        make: impl Fn(usize) -> S + Send + Sync + 'static,
    ) -> Pipeline {
        let replicas = Replicas::unordered(replicas);
        let make = move |number| Last(make(number));
        let Flow { topology, upstream, .. } = self.several(name, "sink", place, replicas, make);
        let name = name.to_owned();
        let start: Wire = Box::new(move |wiring| {
            let cx = wiring.unlisted(&name);
            let arbiter = wiring.arbiter(Place::Shared, &name)?;
            let barriers = wiring.barriers();
            let (recipient, mailbox) = mailbox();
            mailbox.start(&arbiter, cx, wiring.liveness(), move |_, inbox, _| Box::pin(end(inbox, barriers)));
            upstream(wiring, Link::new(recipient, Room::new(Capacity::items(1))))
        });
        Pipeline { topology, start }
    }

    fn several<S: Stage<In = T>>(
        mut self,
        name: &str,
        kind: &'static str,
        place: Place,
        replicas: Replicas,
        make: impl Fn(usize) -> S + Send + Sync + 'static,
    ) -> Flow<S::Out> {
        self.topology.plan.link(self.capacity);
        self.topology.plan.add(PlanStage { replicas: Some(replicas), ..PlanStage::new(name, kind, place) });
        let (name, capacity, upstream) = (name.to_owned(), self.capacity, self.upstream);
        let make = Arc::new(make);
        let upstream: Upstream<S::Out> = Box::new(move |wiring, down: Link<Item<S::Out>>| {
            let (target, targets) = watch::channel(replicas.count);
            let count = Arc::new(AtomicUsize::new(replicas.count));
            let group =
                wiring.group(&name, kind, place, Scale { began: replicas.count, target, count: Arc::clone(&count) });
            let front_cx = wiring.unlisted(&name);
            let front_meter = front_cx.meter_arc();
            let arbiter = wiring.arbiter(Place::Shared, &name)?;
            let below = down.clone();
            // A replica that is added again runs on its earlier thread. So a stage that is scaled often has at most as many threads as it
            // once had replicas at the same time.
            let threads = RefCell::new(HashMap::<usize, ArbiterHandle>::new());
            let spawn = Box::new(move |number: usize, front, turn: Option<Turn>| {
                let (cx, meter) = group.spawn(number);
                let thread = threads.borrow().get(&number).cloned();
                let arbiter = match thread {
                    Some(thread) => thread,
                    None => group.arbiter(place, &format!("{}.{number}", cx.name()))?,
                };
                threads.borrow_mut().insert(number, arbiter.clone());
                let (recipient, mailbox) = mailbox();
                let out = Outbox::new(below.clone(), meter, turn.as_ref().map(Turn::twin));
                let make = Arc::clone(&make);
                mailbox.start(&arbiter, cx, group.liveness(), move |cx, inbox, error_context| {
                    Box::pin(replica(move || make(number), cx, inbox, out, error_context, turn, front))
                });
                Ok(Link::new(recipient, Room::new(Capacity::items(1))))
            });
            let front = Front::<T>::new(spawn, replicas.ordered, targets, count);
            let (recipient, mailbox) = mailbox();
            mailbox.start(&arbiter, front_cx, wiring.liveness(), move |_, inbox, error_context| {
                Box::pin(front.live(inbox, Outbox::new(down, front_meter, None), error_context))
            });
            let link = wiring.link(recipient, capacity);
            upstream(wiring, link)
        });
        Flow::new(self.topology, upstream)
    }
}

/// The output of a sink: a type without values.
pub(crate) enum Nothing {}

impl Batch for Nothing {
    fn rows(&self) -> usize {
        match *self {}
    }

    fn bytes(&self) -> usize {
        match *self {}
    }

    fn lineage(&self) -> &Lineage {
        match *self {}
    }
}

/// Makes a stage of a sink, and counts the rows it wrote as delivered.
pub(crate) struct Last<S>(pub(crate) S);

impl<S: Sink> Stage for Last<S> {
    type In = S::In;
    type Out = Nothing;

    fn describe(&self) -> String {
        self.0.describe()
    }

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.0.open(cx).await
    }

    async fn on_batch(&mut self, batch: S::In, cx: &StageCx, _out: &mut Outbox<Nothing>) -> Result<(), Fault> {
        let rows = batch.rows() as u64;
        self.0.write(batch, cx).await?;
        cx.ledger().delivered(rows);
        Ok(())
    }

    async fn on_barrier(
        &mut self,
        barrier: BarrierNumber,
        cx: &StageCx,
        _out: &mut Outbox<Nothing>,
    ) -> Result<(), Fault> {
        self.0.on_barrier(barrier, cx).await
    }

    async fn finish(&mut self, cx: &StageCx, _out: &mut Outbox<Nothing>) -> Result<(), Fault> {
        self.0.finish(cx).await
    }
}

/// Receives the barriers and the end behind the replicas of a sink.
async fn end(mut inbox: Inbox<Item<Nothing>>, barriers: Arc<Barriers>) -> Result<(), Fault> {
    loop {
        match inbox.next().await {
            Item::Batch(nothing) => match nothing {},
            Item::Barrier(barrier) => barriers.arrives(barrier),
            Item::Eof => return Ok(()),
        }
    }
}
