//! Wiring: a [`Topology`] becomes a [`Flow`], and that a [`Pipeline`], typed from end to end.
//!
//! Each stage is given as a closure that makes it on the thread where it runs. Wiring starts no thread.
//!
//! A flow is wired back to front: it holds a closure that takes the link downstream and starts everything upstream. So
//! no stage looks a peer up by name, and a mismatch of types does not compile.

use std::sync::Arc;
use std::time::Duration;

use crate::batch::Batch;
use crate::fault::Fault;
use crate::host::Host;
use crate::link::{Capacity, Link};
use crate::outbox::{Item, Outbox};
use crate::place::Place;
use crate::plan::{Plan, PlanStage};
use crate::replicas::Replicas;
use crate::report::Report;
use crate::run::Running;
use crate::shell::mailbox;
use crate::stage::{Sink, Source, Stage};
use crate::stage_future;
use crate::state::Settings;
use crate::timeline::Observer;
use crate::wiring::{Wire, Wiring};

/// The default capacity of a link.
pub const DEFAULT_CAPACITY: usize = 8;

/// The beginning of a pipeline: its name, its settings, the services it uses.
#[derive(Debug)]
pub struct Topology {
    pub(crate) plan: Plan,
    settings: Settings,
}

/// Starts what lies upstream, given the link downstream.
pub(crate) type Upstream<T> = Box<dyn FnOnce(&mut Wiring, Link<Item<T>>) -> Result<(), Fault> + Send>;

/// A pipeline from the source to here; its output is batches of type `T`.
#[must_use = "a flow does nothing until it ends in a sink and is started"]
pub struct Flow<T: Batch> {
    pub(crate) topology: Topology,
    pub(crate) capacity: Capacity,
    pub(crate) upstream: Upstream<T>,
    /// Place and replicas of the next stage that is made of a closure.
    pub(crate) closure: (Place, Option<Replicas>),
}

/// A whole pipeline, ready to start.
#[must_use = "a pipeline does nothing until it is started"]
pub struct Pipeline {
    pub(crate) topology: Topology,
    pub(crate) start: Wire,
}

impl Topology {
    /// A pipeline called `name`; its threads carry the name.
    pub fn new(name: &str) -> Self {
        Self { plan: Plan { name: name.to_owned(), ..Plan::default() }, settings: Settings::default() }
    }

    /// Shows the services of `host` in the plan and in reports. The host keeps running when the pipeline ends.
    #[must_use]
    pub fn attach(mut self, host: &Host) -> Self {
        self.plan.services.extend(host.plan());
        self.settings.hosts.push(host.services());
        self
    }

    /// How long the run waits for its stages to end after a fault (default 10 s). A stage that awaits is dropped at
    /// once; only a stage that blocks its thread takes longer. The conformance suite and tests of such stages shorten it.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// Sends the work of the replicas of all stages to `observer`.
    #[must_use]
    pub fn observed_by(mut self, observer: Option<Arc<dyn Observer>>) -> Self {
        self.settings.observer = observer;
        self
    }

    /// Adds the source.
    pub fn source<S: Source>(
        mut self,
        name: &str,
        place: Place,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Flow<S::Out> {
        self.plan.add(PlanStage::new(name, "source", place));
        let name = name.to_owned();
        let upstream: Upstream<S::Out> = Box::new(move |wiring, down| {
            let (cx, meter) = wiring.single(&name, "source", place);
            let arbiter = wiring.arbiter(place, &name)?;
            // A source has no input: its mailbox stays empty.
            let (_, mailbox) = mailbox::<()>();
            mailbox.start(&arbiter, cx, wiring.liveness(), move |cx, _, error_context| {
                Box::pin(stage_future::source(make, cx, Outbox::new(down, meter, None), error_context))
            });
            Ok(())
        });
        Flow::new(self, upstream)
    }
}

impl<T: Batch> Flow<T> {
    pub(crate) fn new(topology: Topology, upstream: Upstream<T>) -> Self {
        Self { topology, capacity: DEFAULT_CAPACITY.into(), upstream, closure: (Place::Shared, None) }
    }

    /// Sets the capacity of the next link: a number of items, or `Capacity::items(8).bytes(64 << 20)`. The default is
    /// [`DEFAULT_CAPACITY`] items.
    pub fn link(mut self, capacity: impl Into<Capacity>) -> Self {
        self.capacity = capacity.into();
        self
    }

    /// Adds a stage. `make` runs on the stage's thread, so the stage need not be `Send`.
    pub fn stage<S: Stage<In = T>>(
        mut self,
        name: &str,
        place: Place,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Flow<S::Out> {
        self.topology.plan.link(self.capacity);
        self.topology.plan.add(PlanStage::new(name, "stage", place));
        let (name, capacity, upstream) = (name.to_owned(), self.capacity, self.upstream);
        let upstream: Upstream<S::Out> = Box::new(move |wiring, down| {
            let (cx, meter) = wiring.single(&name, "stage", place);
            let arbiter = wiring.arbiter(place, &name)?;
            let (recipient, mailbox) = mailbox();
            mailbox.start(&arbiter, cx, wiring.liveness(), move |cx, inbox, error_context| {
                Box::pin(stage_future::stage(make, cx, inbox, Outbox::new(down, meter, None), error_context))
            });
            let link = wiring.link(recipient, capacity);
            upstream(wiring, link)
        });
        Flow::new(self.topology, upstream)
    }

    /// Ends the pipeline with a sink.
    pub fn sink<S: Sink<In = T>>(
        mut self,
        name: &str,
        place: Place,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Pipeline {
        self.topology.plan.link(self.capacity);
        self.topology.plan.add(PlanStage::new(name, "sink", place));
        let (name, capacity, upstream) = (name.to_owned(), self.capacity, self.upstream);
        let start: Wire = Box::new(move |wiring| {
            let (cx, _) = wiring.single(&name, "sink", place);
            let arbiter = wiring.arbiter(place, &name)?;
            let barriers = wiring.barriers();
            let (recipient, mailbox) = mailbox();
            mailbox.start(&arbiter, cx, wiring.liveness(), move |cx, inbox, error_context| {
                Box::pin(stage_future::sink(make, cx, inbox, error_context, barriers))
            });
            let link = wiring.link(recipient, capacity);
            upstream(wiring, link)
        });
        Pipeline { topology: self.topology, start }
    }
}

impl Pipeline {
    /// The plan: stages, places and capacities.
    pub fn plan(&self) -> &Plan {
        &self.topology.plan
    }

    /// Starts the run on a thread of its own. Blocks until all stages are wired, not until they are open.
    ///
    /// # Errors
    /// Two stages have one name, or a thread cannot be started.
    pub fn start(self) -> Result<Running, Fault> {
        self.topology.plan.check()?;
        Running::start(self.topology.plan, self.topology.settings, self.start)
    }

    /// Starts the run and blocks until its end.
    ///
    /// # Errors
    /// The root cause. For the report of a failed run, use [`start`](Pipeline::start) and [`Running::wait`].
    pub fn run(self) -> Result<Report, Fault> {
        let outcome = self.start()?.wait();
        outcome.result.map(|()| outcome.report)
    }
}
