//! The state that a run shares among its threads: the switch, the ledger, the barriers, and the list of stages and links.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::adjustment::Adjustments;
use crate::barrier::Barriers;
use crate::batch::BarrierNumber;
use crate::clock::{Activity, Times};
use crate::context::StageCx;
use crate::host::ServiceRegistry;
use crate::ledger::Ledger;
use crate::link::Room;
use crate::lock::lock;
use crate::machine::{Machine, MachineMeter};
use crate::meter::StageMeter;
use crate::place::Place;
use crate::plan::Plan;
use crate::report::{Report, Verdict};
use crate::results::Results;
use crate::stage_report::{Reading, StageReport};
use crate::switch::Switch;
use crate::timeline::{Observer, Watched};

/// The settings of a topology.
pub(crate) struct Settings {
    pub(crate) hosts: Vec<Weak<ServiceRegistry>>,
    pub(crate) grace: Duration,
    /// A stage that has been at work on one batch for this long is warned of.
    pub(crate) long_work: Duration,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { hosts: Vec::new(), grace: Duration::from_secs(10), long_work: Duration::from_secs(60), observer: None }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("hosts", &self.hosts.len()).field("grace", &self.grace).finish_non_exhaustive()
    }
}

pub(crate) struct State {
    pub(crate) plan: Plan,
    pub(crate) settings: Settings,
    pub(crate) switch: Switch,
    pub(crate) ledger: Ledger,
    pub(crate) results: Results,
    pub(crate) barriers: Arc<Barriers>,
    pub(crate) registry: Mutex<StageRegistry>,
    pub(crate) started: Instant,
    /// The readings of the services of each host when the run began: the services may have loaded a table before.
    services_before: Vec<Vec<Reading>>,
    machine: MachineMeter,
    pub(crate) ended: Mutex<Option<(Verdict, Duration, Machine)>>,
    /// Notified when `ended` is set.
    pub(crate) end: Condvar,
    pub(crate) adjustments: Adjustments,
}

/// Stages and links in the order of wiring, from the sink to the source.
#[derive(Default)]
pub(crate) struct StageRegistry {
    pub(crate) stages: Vec<Entry>,
    pub(crate) links: Vec<Arc<Room>>,
}

pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) place: Place,
    pub(crate) meters: Arc<Mutex<Vec<Arc<StageMeter>>>>,
    pub(crate) scale: Option<Scale>,
    /// Puts a barrier into the stage's mailbox, behind the batches that wait there. `None` for a source.
    pub(crate) take_barrier: Option<TakeBarrier>,
}

/// Returns false if the stage has ended.
pub(crate) type TakeBarrier = Box<dyn Fn(BarrierNumber) -> bool + Send>;

/// The first, the wanted and the actual number of replicas.
pub(crate) struct Scale {
    pub(crate) began: usize,
    pub(crate) target: watch::Sender<usize>,
    pub(crate) count: Arc<AtomicUsize>,
}

impl State {
    pub(crate) fn new(plan: Plan, settings: Settings, barriers: Arc<Barriers>) -> Arc<Self> {
        let started = Instant::now();
        let readings = |host: &Weak<ServiceRegistry>| host.upgrade().map(|services| services.readings());
        let services_before = settings.hosts.iter().map(|host| readings(host).unwrap_or_default()).collect();
        Arc::new(Self {
            plan,
            settings,
            switch: Switch::default(),
            ledger: Ledger::default(),
            results: Results::default(),
            barriers,
            registry: Mutex::default(),
            started,
            services_before,
            machine: MachineMeter::start(),
            ended: Mutex::default(),
            end: Condvar::new(),
            adjustments: Adjustments::default(),
        })
    }

    pub(crate) fn cx(&self, name: &str, replica: usize, meter: &Arc<StageMeter>) -> StageCx {
        let cx = StageCx::new(name, replica, self.ledger.clone(), Arc::clone(meter), self.switch.clone());
        cx.leaving(&self.results).adjusting(&self.adjustments)
    }

    pub(crate) fn meter(&self, stage: &str, replica: usize) -> Arc<StageMeter> {
        let observer = self.settings.observer.clone();
        Arc::new(StageMeter::watched(
            self.started,
            observer.map(|observer| Watched { observer, stage: stage.into(), replica }),
        ))
    }

    /// The services of the hosts that were attached and have not ended.
    pub(crate) fn services(&self) -> impl Iterator<Item = Arc<ServiceRegistry>> {
        self.settings.hosts.iter().filter_map(Weak::upgrade)
    }

    /// The reports of the services since the run began.
    fn services_report(&self) -> Vec<StageReport> {
        let hosts = self.settings.hosts.iter().zip(&self.services_before);
        let attached = hosts.filter_map(|(host, before)| Some((host.upgrade()?, before)));
        attached.flat_map(|(services, before)| services.report(before)).collect()
    }

    pub(crate) fn report(&self) -> Report {
        let registry = lock(&self.registry);
        let stages: Vec<Lifetimes> = registry.stages.iter().rev().map(|entry| entry.lifetimes(self.started)).collect();
        let links = registry.links.iter().rev().zip(stages.windows(2));
        let links = links.map(|(room, ends)| room.report(&ends[0].stage.name, &ends[1].stage.name)).collect();
        let services = self.services_report();
        // The wall time is read after the meters, so that no stage has lived longer than the run.
        let (verdict, wall, machine) = lock(&self.ended).clone().unwrap_or_else(|| self.now(Verdict::Running));
        let stages = stages.into_iter().map(|lifetimes| lifetimes.over(wall)).collect();
        let services = services.into_iter().map(|service| service.over(wall)).collect();
        let name = self.plan.name.clone();
        let (ledger, adjustments) = (self.ledger.snapshot(), self.adjustments.all());
        Report { name, verdict, wall, machine, stages, links, services, ledger, adjustments }
    }

    /// The current state of the run.
    pub(crate) fn now(&self, verdict: Verdict) -> (Verdict, Duration, Machine) {
        (verdict, self.started.elapsed(), self.machine.read())
    }

    /// The stage that the others wait for: the first from the source that is busy or waiting. Stages above it wait for room,
    /// stages below it for input.
    pub(crate) fn late(&self) -> String {
        let registry = lock(&self.registry);
        let doing = |entry: &&Entry, what: Activity| lock(&entry.meters).iter().any(|meter| meter.doing() == what);
        let flow = || registry.stages.iter().rev();
        flow()
            .find(|entry| doing(entry, Activity::Busy) || doing(entry, Activity::Waiting))
            .or_else(|| flow().rev().find(|entry| doing(entry, Activity::Blocked)))
            .or_else(|| flow().find(|entry| doing(entry, Activity::Starved)))
            .map_or_else(|| self.plan.name.clone(), |entry| entry.name.clone())
    }
}

/// The readings of a stage at one moment.
struct Lifetimes {
    /// Times of the stage while it lives, and its counts.
    stage: StageReport,
    /// The times of each replica.
    replicas: Vec<Times>,
    /// Whether replicas were added or removed.
    changed: bool,
}

impl Lifetimes {
    /// The report of the stage in a run of `wall`. Its idle time comes from the clocks of its replicas, up to the end of the run.
    fn over(self, wall: Duration) -> StageReport {
        let Self { stage, replicas, changed } = self;
        if changed {
            // Each replica counts for its lifetime, and the stage has the longest of these.
            let longest = replicas.into_iter().max_by_key(Times::sum).unwrap_or_default();
            return stage.longer_by(longest.idle.min(wall.saturating_sub(longest.sum())));
        }
        stage.idle_at_most(replicas.iter().map(|times| times.idle).sum(), wall)
    }
}

impl Entry {
    /// The current readings of the stage, in a run that began at `started`.
    fn lifetimes(&self, started: Instant) -> Lifetimes {
        let mut stage = StageReport {
            name: self.name.clone(),
            kind: self.kind.to_owned(),
            place: self.place.to_string(),
            replicas: self.scale.as_ref().map_or(1, |scale| scale.count.load(Relaxed)),
            ..StageReport::default()
        };
        let before_replicas = Times { idle: started.elapsed(), ..Times::default() };
        let mut replicas = Vec::new();
        for meter in lock(&self.meters).iter() {
            let reading = meter.read();
            replicas.push(reading.times);
            stage.add(reading);
        }
        if replicas.is_empty() {
            replicas.push(before_replicas);
        }
        let began = self.scale.as_ref().map(|scale| scale.began);
        let changed = began.is_some_and(|began| (replicas.len(), stage.replicas) != (began, began));
        Lifetimes { stage, replicas, changed }
    }
}
