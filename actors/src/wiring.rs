//! What a flow is given to start its stages with: contexts, meters, arbiters, links.
//!
//! Comes in: the name and place of each stage, from the sink to the source. Goes out: what its shell needs; and the
//! entries in the run's [`State`]. Asking for an arbiter blocks until its thread is up.

use std::sync::{Arc, Mutex};

use actix::ArbiterHandle;
use tokio::sync::mpsc;

use crate::barrier::{BarrierRequest, Barriers};
use crate::context::StageCx;
use crate::fault::{Fault, Phase};
use crate::link::{Capacity, Room};
use crate::meter::StageMeter;
use crate::place::{Place, Places};
use crate::shell::LivenessToken;
use crate::stage_future::SourceHandles;
use crate::state::{Entry, Scale, State, lock};
use crate::switch::Close;

/// Starts a whole pipeline.
pub(crate) type Wire = Box<dyn FnOnce(&mut Wiring) -> Result<(), Fault> + Send>;

/// What a flow needs to start its stages; lives on the run's thread while it is wired.
pub(crate) struct Wiring {
    pub(crate) state: Arc<State>,
    pub(crate) places: Arc<Mutex<Places>>,
    pub(crate) liveness: LivenessToken,
    pub(crate) requests: Option<mpsc::UnboundedReceiver<BarrierRequest>>,
}

/// What the front of a replicated stage needs to hire.
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

    /// The source's; once.
    pub(crate) fn handles(&mut self) -> SourceHandles {
        SourceHandles {
            barriers: self.barriers(),
            requests: self.requests.take().expect("a flow has one source"),
            position: Arc::clone(&self.state.position),
        }
    }

    /// A stage that is not replicated.
    pub(crate) fn single(&mut self, name: &str, kind: &'static str, place: Place) -> (StageCx, Arc<StageMeter>) {
        let meter = Arc::<StageMeter>::default();
        let meters = Arc::new(Mutex::new(vec![Arc::clone(&meter)]));
        lock(&self.state.registry).stages.push(Entry { name: name.to_owned(), kind, place, meters, scale: None });
        (self.state.cx(name, 0, &meter), meter)
    }

    /// A stage that is.
    pub(crate) fn group(&mut self, name: &str, kind: &'static str, place: Place, scale: Scale) -> ReplicaGroup {
        let meters = Arc::<Mutex<Vec<_>>>::default();
        let entry = Entry { name: name.to_owned(), kind, place, meters: Arc::clone(&meters), scale: Some(scale) };
        lock(&self.state.registry).stages.push(entry);
        ReplicaGroup {
            name: name.to_owned(),
            state: Arc::clone(&self.state),
            places: Arc::clone(&self.places),
            liveness: self.liveness(),
            meters,
        }
    }

    /// The context of a part of a stage (the front of replicas, what stands behind those of a sink), whose meter is in no report.
    pub(crate) fn unlisted(&self, name: &str) -> StageCx {
        self.state.cx(name, 0, &Arc::default())
    }

    /// The link into the stage wired last.
    pub(crate) fn link(&mut self, capacity: Capacity) -> Arc<Room> {
        let room = Room::new(capacity);
        self.state.switch.closes(Arc::clone(&room) as Arc<dyn Close>);
        lock(&self.state.registry).links.push(Arc::clone(&room));
        room
    }
}

impl ReplicaGroup {
    pub(crate) fn spawn(&self, number: usize) -> (StageCx, Arc<StageMeter>) {
        let meter = Arc::<StageMeter>::default();
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
