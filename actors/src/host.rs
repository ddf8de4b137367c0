//! A group of services that outlives any one pipeline: the parameter-server shards of a process.
//!
//! Comes in: services to serve. Goes out: [`Client`]s, and a report. [`Host::start`] and [`Host::serve`] block until
//! a thread is up; [`Host::stop`] blocks until what is queued has been answered and the threads have ended.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use actix::{ArbiterHandle, System};
use tokio::sync::mpsc;

use crate::context::StageCx;
use crate::fault::{Fault, Phase};
use crate::ledger::Ledger;
use crate::link::{Capacity, Link, Room};
use crate::meter::{StageMeter, StageReport};
use crate::place::{Place, Places};
use crate::plan::PlanStage;
use crate::service::{Ask, Client, Service, serve};
use crate::shell::{Alive, mailbox};
use crate::switch::{Close, Switch};

/// How long [`Host::stop`] waits for threads to end after their services have.
const GRACE: Duration = Duration::from_secs(10);

/// Services on threads of their own. Dropping it stops it.
pub struct Host {
    name: String,
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<bool>>,
    staff: Arc<Staff>,
    alive: Option<Alive>,
}

/// Asks the host's thread for an arbiter.
struct Order {
    place: Place,
    name: String,
    answer: std::sync::mpsc::Sender<Result<ArbiterHandle, Fault>>,
}

/// The services, as reports and plans see them.
#[derive(Default)]
pub(crate) struct Staff {
    servants: Mutex<Vec<Servant>>,
}

struct Servant {
    name: String,
    place: Place,
    capacity: Capacity,
    meter: Arc<StageMeter>,
    switch: Switch,
    /// Closes the way in, then says the last word.
    stop: Box<dyn Fn() + Send + Sync>,
}

impl Staff {
    pub(crate) fn report(&self) -> Vec<StageReport> {
        let servants = self.servants.lock().unwrap_or_else(PoisonError::into_inner);
        servants
            .iter()
            .map(|servant| {
                let mut report = StageReport {
                    name: servant.name.clone(),
                    kind: "service".to_owned(),
                    place: servant.place.to_string(),
                    replicas: 1,
                    ..StageReport::default()
                };
                report.add(&servant.meter);
                report
            })
            .collect()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Host {
    /// Starts a host without services.
    ///
    /// # Errors
    /// The operating system gave no thread.
    pub fn start(name: &str) -> Result<Self, Fault> {
        let (orders, mut order) = mpsc::unbounded_channel::<Order>();
        let (alive, mut ended) = mpsc::channel(1);
        let run = name.to_owned();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                System::new().block_on(async move {
                    let mut places = Places::new(&run);
                    while let Some(Order { place, name, answer }) = order.recv().await {
                        let _ = answer.send(places.arbiter(place, &name));
                    }
                    // No more orders: the host is being stopped. Every shell holds a sender.
                    while ended.recv().await.is_some() {}
                    places.stop(GRACE)
                })
            })
            .map_err(|e| Fault::external(format!("cannot start the thread `{name}`")).because(e))?;
        Ok(Self {
            name: name.to_owned(),
            orders: Some(orders),
            thread: Some(thread),
            staff: Arc::default(),
            alive: Some(alive),
        })
    }

    /// Starts a service with room for `capacity` waiting calls. `make` runs on the thread the service stays on.
    ///
    /// A thread that cannot be started, or a fault in `open`, is what the client's first call returns.
    pub fn serve<S: Service>(
        &self,
        name: &str,
        place: Place,
        capacity: usize,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Client<S::Call, S::Reply> {
        let switch = Switch::default();
        let capacity = Capacity::items(capacity);
        let room = Room::new(capacity);
        switch.closes(Arc::clone(&room) as Arc<dyn Close>);
        let meter = Arc::<StageMeter>::default();
        let cx = StageCx::new(name, 0, Ledger::default(), Arc::clone(&meter), switch.clone());
        let (recipient, mailbox) = mailbox::<Ask<S::Call, S::Reply>>();
        let link = Link::new(recipient, room);
        match self.arbiter(place, name) {
            Ok(arbiter) => {
                let alive = self.alive.clone().expect("taken only when the host is stopped");
                mailbox.start(&arbiter, cx.clone(), alive, move |cx, inbox, scene| {
                    Box::pin(serve(make, cx, inbox, scene))
                });
            }
            Err(fault) => {
                switch.kill(fault.at(name, Phase::Open, None));
            }
        }
        let last = link.clone();
        self.staff.servants.lock().unwrap_or_else(PoisonError::into_inner).push(Servant {
            name: name.to_owned(),
            place,
            capacity,
            meter,
            switch,
            stop: Box::new(move || {
                last.room.close();
                let _ = last.hand(Ask::Stop);
            }),
        });
        Client::new(link, cx)
    }

    fn arbiter(&self, place: Place, name: &str) -> Result<ArbiterHandle, Fault> {
        let gone = || Fault::internal("the host's thread has ended");
        let (answer, arbiter) = std::sync::mpsc::channel();
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        orders.send(Order { place, name: name.to_owned(), answer }).map_err(|_| gone())?;
        arbiter.recv().map_err(|_| gone())?
    }

    /// The meters of all services, in the order they were started.
    pub fn report(&self) -> Vec<StageReport> {
        self.staff.report()
    }

    pub(crate) fn plan(&self) -> Vec<PlanStage> {
        let servants = self.staff.servants.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = |servant: &Servant| PlanStage {
            capacity: Some(servant.capacity),
            ..PlanStage::new(&servant.name, "service", servant.place)
        };
        servants.iter().map(plan).collect()
    }

    pub(crate) fn staff(&self) -> Weak<Staff> {
        Arc::downgrade(&self.staff)
    }

    /// Refuses further calls, answers what is queued, and ends the threads. Blocks.
    ///
    /// # Errors
    /// The first service's fault, if one died; or a thread that would not end.
    pub fn stop(mut self) -> Result<(), Fault> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let root = {
            let servants = self.staff.servants.lock().unwrap_or_else(PoisonError::into_inner);
            for servant in servants.iter() {
                (servant.stop)();
            }
            servants.iter().map(|servant| servant.switch.clone()).collect::<Vec<_>>()
        };
        self.orders = None;
        self.alive = None;
        let joined = thread.join();
        if let Some(fault) = root.iter().find_map(Switch::take_root) {
            return Err(fault);
        }
        match joined {
            Ok(true) => Ok(()),
            Ok(false) => Err(Fault::internal(format!("threads of the host `{}` did not end", self.name))),
            Err(_) => Err(Fault::internal(format!("the thread of the host `{}` panicked", self.name))),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(fault) = self.end() {
            tracing::warn!(%fault, "the host `{}` did not end well", self.name);
        }
    }
}
