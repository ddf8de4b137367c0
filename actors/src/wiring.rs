//! Starts the stages of a flow: makes their contexts, meters, arbiters and links.
//!
//! Stages are wired from the sink to the source, and each gets an entry in the run's [`State`].

use std::sync::{Arc, Mutex};

use actix::{ArbiterHandle, Recipient};

use crate::barrier::Barriers;
use crate::context::StageCx;
use crate::fault::{Fault, Phase};
use crate::link::{Capacity, Envelope, Link, Room};
use crate::lock::lock;
use crate::meter::StageMeter;
use crate::outbox::Item;
use crate::place::{Place, Places};
use crate::shell::LivenessToken;
use crate::state::{Entry, Scale, State};
use crate::switch::Close;

/// Starts a whole pipeline.
pub(crate) type Wire = Box<dyn FnOnce(&mut Wiring) -> Result<(), Fault> + Send>;

/// Starts the stages of a flow; lives on the run's thread while the flow is wired.
pub(crate) struct Wiring {
    pub(crate) state: Arc<State>,
    pub(crate) places: Arc<Mutex<Places>>,
    pub(crate) liveness: LivenessToken,
}

/// The parts that the front of a replicated stage needs to start replicas.
pub(crate) struct ReplicaGroup {
    name: String,
    pub(crate) state: Arc<State>,
    pub(crate) places: Arc<Mutex<Places>>,
    pub(crate) liveness: LivenessToken,
    meters: Arc<Mutex<Vec<Arc<StageMeter>>>>,
}

fn arbiter(places: &Mutex<Places>, place: Place, name: &str) -> Result<ArbiterHandle, Fault> {
    lock(places).arbiter(place, name).map_err(|fault| fault.at(name, Phase::Open, None))
}

impl Wiring {
    pub(crate) fn arbiter(&self, place: Place, name: &str) -> Result<ArbiterHandle, Fault> {
        arbiter(&self.places, place, name)
    }

    pub(crate) fn liveness(&self) -> LivenessToken {
        self.liveness.clone()
    }

    pub(crate) fn barriers(&self) -> Arc<Barriers> {
        Arc::clone(&self.state.barriers)
    }

    /// Adds a stage that is not replicated.
    pub(crate) fn single(&mut self, name: &str, kind: &'static str, place: Place) -> (StageCx, Arc<StageMeter>) {
        let meter = self.state.meter(name, 0);
        let meters = Arc::new(Mutex::new(vec![Arc::clone(&meter)]));
        lock(&self.state.registry).stages.push(Entry {
            name: name.to_owned(),
            kind,
            place,
            meters,
            scale: None,
            take_barrier: None,
        });
        (self.state.cx(name, 0, &meter), meter)
    }

    /// Adds a replicated stage.
    pub(crate) fn group(&mut self, name: &str, kind: &'static str, place: Place, scale: Scale) -> ReplicaGroup {
        let meters = Arc::<Mutex<Vec<_>>>::default();
        let meters_of_entry = Arc::clone(&meters);
        let (name_of_entry, scale) = (name.to_owned(), Some(scale));
        let entry = Entry { name: name_of_entry, kind, place, meters: meters_of_entry, scale, take_barrier: None };
        lock(&self.state.registry).stages.push(entry);
        ReplicaGroup {
            name: name.to_owned(),
            state: Arc::clone(&self.state),
            places: Arc::clone(&self.places),
            liveness: self.liveness(),
            meters,
        }
    }

    /// A context whose meter is in no report: for the front of replicas, and the actor behind the replicas of a sink.
    pub(crate) fn unlisted(&self, name: &str) -> StageCx {
        self.state.cx(name, 0, &Arc::default())
    }

    /// Adds the link into the stage that was wired last.
    pub(crate) fn link<T: Send + 'static>(
        &mut self,
        to: Recipient<Envelope<Item<T>>>,
        capacity: Capacity,
    ) -> Link<Item<T>> {
        let room = Room::new(capacity);
        self.state.switch.closes(Arc::clone(&room) as Arc<dyn Close>);
        let link = Link::new(to, Arc::clone(&room));
        let mut registry = lock(&self.state.registry);
        registry.links.push(room);
        if let Some(stage) = registry.stages.last_mut() {
            let link = link.clone();
            stage.take_barrier = Some(Box::new(move |epoch| link.send_now(Item::Barrier(epoch)).is_ok()));
        }
        link.clone()
    }
}

impl ReplicaGroup {
    pub(crate) fn spawn(&self, number: usize) -> (StageCx, Arc<StageMeter>) {
        let meter = self.state.meter(&self.name, number);
        lock(&self.meters).push(Arc::clone(&meter));
        (self.state.cx(&self.name, number, &meter), meter)
    }

    pub(crate) fn arbiter(&self, place: Place, name: &str) -> Result<ArbiterHandle, Fault> {
        arbiter(&self.places, place, name)
    }

    pub(crate) fn liveness(&self) -> LivenessToken {
        self.liveness.clone()
    }
}
