//! A group of services that outlives any one pipeline: the parameter-server shards of a process.
//!
//! [`Host::start`] and [`Host::serve`] block until a thread has started. [`Host::stop`] blocks until all queued calls
//! are answered and the threads have ended.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::ArbiterHandle;
use tokio::sync::mpsc;

use crate::context::StageCx;
use crate::fault::{Fault, Phase};
use crate::ledger::{Ledger, LedgerReport};
use crate::link::{Capacity, Link, Room};
use crate::lock::lock;
use crate::machine::MachineMeter;
use crate::meter::StageMeter;
use crate::place::{Place, Places, spawn_system};
use crate::plan::PlanStage;
use crate::report::{Report, Verdict};
use crate::service::{Ask, Client, Service, serve};
use crate::shell::{LivenessToken, mailbox};
use crate::stage_report::{Reading, StageReport};
use crate::switch::{Close, Switch};
use crate::timeline::Track;

/// How long [`Host::stop`] waits for the threads after their services have ended.
const GRACE: Duration = Duration::from_secs(10);

/// Runs services on threads of its own. Dropping it stops it.
pub struct Host {
    name: String,
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<Result<(), Fault>>>,
    services: Arc<ServiceRegistry>,
    liveness: Option<LivenessToken>,
}

/// Asks the host's thread for an arbiter.
struct Order {
    place: Place,
    name: String,
    answer: std::sync::mpsc::Sender<Result<ArbiterHandle, Fault>>,
}

/// The services, as reports and plans see them.
#[derive(Default)]
pub(crate) struct ServiceRegistry {
    entries: Mutex<Vec<ServiceEntry>>,
}

struct ServiceEntry {
    name: String,
    place: Place,
    capacity: Capacity,
    meter: Arc<StageMeter>,
    switch: Switch,
    /// Closes the link, then sends [`Ask::Stop`].
    stop: Box<dyn Fn() + Send + Sync>,
}

impl ServiceRegistry {
    /// The readings of the meters, in the order in which the services were started.
    pub(crate) fn readings(&self) -> Vec<Reading> {
        let entries = lock(&self.entries);
        entries.iter().map(|entry| entry.meter.read()).collect()
    }

    /// The reports of the services since the `earlier` readings; for a service without one, since it was started.
    pub(crate) fn report(&self, earlier: &[Reading]) -> Vec<StageReport> {
        let entries = lock(&self.entries);
        entries
            .iter()
            .enumerate()
            .map(|(number, entry)| {
                let mut report = StageReport {
                    name: entry.name.clone(),
                    kind: "service".to_owned(),
                    place: entry.place.to_string(),
                    replicas: 1,
                    ..StageReport::default()
                };
                let reading = entry.meter.read();
                report.add(match earlier.get(number) {
                    Some(earlier) => reading.since(earlier),
                    None => reading,
                });
                report
            })
            .collect()
    }

    pub(crate) fn timeline(&self) -> Vec<Track> {
        let entries = lock(&self.entries);
        entries.iter().map(|entry| entry.meter.recorder().track(&entry.name, 0)).collect()
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
    /// The thread cannot be started.
    pub fn start(name: &str) -> Result<Self, Fault> {
        let (orders, mut order) = mpsc::unbounded_channel::<Order>();
        let (liveness, mut ended) = mpsc::channel(1);
        let run = name.to_owned();
        let thread = spawn_system(name, move |system| {
            system.block_on(async move {
                let mut places = Places::new(&run);
                while let Some(Order { place, name, answer }) = order.recv().await {
                    let _ = answer.send(places.arbiter(place, &name));
                }
                // No more orders: the host is stopping. Every shell holds a sender of `ended`.
                while ended.recv().await.is_some() {}
                places.stop(GRACE)
            })
        })?;
        Ok(Self {
            name: name.to_owned(),
            orders: Some(orders),
            thread: Some(thread),
            services: Arc::default(),
            liveness: Some(liveness),
        })
    }

    /// Starts a service with room for `capacity` waiting calls. `make` runs on the service's thread.
    ///
    /// If the thread cannot be started or `open` fails, calls return that fault.
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
                let liveness = self.liveness.clone().expect("taken only when the host is stopped");
                mailbox.start(&arbiter, cx.clone(), liveness, move |cx, inbox, error_context| {
                    Box::pin(serve(make, cx, inbox, error_context))
                });
            }
            Err(fault) => {
                switch.kill(fault.at(name, Phase::Open, None));
            }
        }
        let last = link.clone();
        lock(&self.services.entries).push(ServiceEntry {
            name: name.to_owned(),
            place,
            capacity,
            meter,
            switch,
            stop: Box::new(move || {
                last.room.close();
                let _ = last.send_now(Ask::Stop);
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

    /// The meters of all services, in the order they were started, since each was started.
    pub fn report(&self) -> Vec<StageReport> {
        self.services.report(&[])
    }

    /// The meters of the services from this call on, for a process that only serves.
    pub fn meters(&self) -> HostMeters {
        let (started, machine) = (Instant::now(), MachineMeter::start());
        let before = self.services.readings().into();
        HostMeters { name: self.name.clone(), services: self.services(), before, started, machine }
    }

    pub(crate) fn plan(&self) -> Vec<PlanStage> {
        let entries = lock(&self.services.entries);
        let plan = |entry: &ServiceEntry| PlanStage {
            capacity: Some(entry.capacity),
            ..PlanStage::new(&entry.name, "service", entry.place)
        };
        entries.iter().map(plan).collect()
    }

    pub(crate) fn services(&self) -> Weak<ServiceRegistry> {
        Arc::downgrade(&self.services)
    }

    /// Refuses further calls, answers the queued ones, and ends the threads. Blocks.
    ///
    /// # Errors
    /// The fault of the first service that died, or one that says that a thread did not end.
    pub fn stop(mut self) -> Result<(), Fault> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let root = {
            let entries = lock(&self.services.entries);
            for entry in entries.iter() {
                (entry.stop)();
            }
            entries.iter().map(|entry| entry.switch.clone()).collect::<Vec<_>>()
        };
        self.orders = None;
        self.liveness = None;
        let joined = thread.join();
        if let Some(fault) = root.iter().find_map(Switch::take_root) {
            return Err(fault);
        }
        match joined {
            Ok(stopped) => stopped.map_err(|fault| fault.context(format!("the host `{}`", self.name))),
            Err(panic) => Err(Fault::of_panic(&format!("the thread of the host `{}` panicked", self.name), &*panic)),
        }
    }
}

/// The meters of a host's services since a moment. Does not keep the host alive.
#[derive(Clone)]
pub struct HostMeters {
    name: String,
    services: Weak<ServiceRegistry>,
    /// The readings of the meters at `started`.
    before: Arc<[Reading]>,
    started: Instant,
    machine: MachineMeter,
}

impl HostMeters {
    /// A report without stages. Times and counts begin with [`Host::meters`].
    pub fn report(&self) -> Report {
        let services = self.services.upgrade().map(|services| services.report(&self.before)).unwrap_or_default();
        let wall = self.started.elapsed();
        Report {
            name: self.name.clone(),
            verdict: Verdict::Running,
            wall,
            machine: self.machine.read(),
            stages: Vec::new(),
            links: Vec::new(),
            services: services.into_iter().map(|service| service.over(wall)).collect(),
            ledger: LedgerReport::default(),
            adjustments: Vec::new(),
        }
    }

    /// The timeline of each service: its first and its newest calls, a few thousand in all.
    pub fn timeline(&self) -> Vec<Track> {
        self.services.upgrade().map(|services| services.timeline()).unwrap_or_default()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(fault) = self.end() {
            tracing::warn!(%fault, "the host `{}` did not end well", self.name);
        }
    }
}
