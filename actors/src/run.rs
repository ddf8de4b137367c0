//! A pipeline that runs: its own thread with an actix system, what can be asked of it, and how it ends.
//!
//! Comes in: wiring to carry out; wishes to drain, kill, scale, pass a barrier. Goes out: an [`Outcome`]. The run
//! lives on a thread of its own, so it can be embedded in a program with any executor: [`Running::outcome`] is a
//! future for any of them, [`Running::wait`] blocks. All of [`Control`] returns at once.

use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use actix::{ArbiterHandle, System};
use tokio::sync::{mpsc, oneshot, watch};

use crate::barrier::{Barrier, Barriers, Wish};
use crate::context::StageCx;
use crate::fault::{Fault, Phase};
use crate::host::Staff;
use crate::ledger::Ledger;
use crate::life::{Desk, Position};
use crate::link::{Capacity, Room};
use crate::meter::{Doing, StageMeter, StageReport};
use crate::place::{Place, Places};
use crate::plan::Plan;
use crate::report::{Report, Verdict};
use crate::shell::Alive;
use crate::switch::{Close, Switch};

/// What a topology may set.
pub(crate) struct Settings {
    pub(crate) hosts: Vec<Weak<Staff>>,
    pub(crate) drain_deadline: Option<Duration>,
    pub(crate) grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { hosts: Vec::new(), drain_deadline: None, grace: Duration::from_secs(10) }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("hosts", &self.hosts.len())
            .field("drain_deadline", &self.drain_deadline)
            .field("grace", &self.grace)
            .finish()
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// All rows accounted for, or the root cause.
    pub result: Result<(), Fault>,
    /// The meters, whatever the result.
    pub report: Report,
    /// Where the source stood at the end, as serde writes its `Position`; `None` after a fault.
    pub position: Option<serde_json::Value>,
}

/// Steers a run; cheap to clone, and may be kept: once the run has ended it only reports.
#[derive(Clone)]
pub struct Control {
    state: Arc<State>,
}

/// A run under way. Dropping it kills the run.
pub struct Running {
    control: Control,
    done: Option<oneshot::Receiver<Outcome>>,
}

struct State {
    plan: Plan,
    settings: Settings,
    switch: Switch,
    ledger: Ledger,
    barriers: Arc<Barriers>,
    position: Position,
    crew: Mutex<Crew>,
    started: Instant,
    drain_until: watch::Sender<Option<Instant>>,
    ended: Mutex<Option<(Verdict, Duration)>>,
}

/// Stages and links, from the sink to the source: in the order of wiring.
#[derive(Default)]
struct Crew {
    stages: Vec<Entry>,
    links: Vec<Arc<Room>>,
}

struct Entry {
    name: String,
    kind: &'static str,
    place: Place,
    meters: Arc<Mutex<Vec<Arc<StageMeter>>>>,
    scale: Option<Scale>,
}

/// The number of replicas: asked for, and as it is.
pub(crate) struct Scale {
    pub(crate) target: watch::Sender<usize>,
    pub(crate) count: Arc<AtomicUsize>,
}

/// What a flow needs to start its stages; lives on the run's thread while it is wired.
pub(crate) struct Wiring {
    state: Arc<State>,
    places: Arc<Mutex<Places>>,
    alive: Alive,
    wishes: Option<mpsc::UnboundedReceiver<Wish>>,
}

/// What the front of a replicated stage needs to hire.
pub(crate) struct Group {
    name: String,
    state: Arc<State>,
    places: Arc<Mutex<Places>>,
    alive: Alive,
    meters: Arc<Mutex<Vec<Arc<StageMeter>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn arbiter(places: &Mutex<Places>, place: Place, name: &str) -> Result<ArbiterHandle, Fault> {
    lock(places).arbiter(place, name).map_err(|fault| fault.at(name, Phase::Open, None))
}

impl Wiring {
    pub(crate) fn arbiter(&self, place: Place, name: &str) -> Result<ArbiterHandle, Fault> {
        arbiter(&self.places, place, name)
    }

    pub(crate) fn alive(&self) -> Alive {
        self.alive.clone()
    }

    pub(crate) fn barriers(&self) -> Arc<Barriers> {
        Arc::clone(&self.state.barriers)
    }

    /// The source's; once.
    pub(crate) fn desk(&mut self) -> Desk {
        Desk {
            barriers: self.barriers(),
            wishes: self.wishes.take().expect("a flow has one source"),
            position: Arc::clone(&self.state.position),
        }
    }

    /// A stage that is not replicated.
    pub(crate) fn single(&mut self, name: &str, kind: &'static str, place: Place) -> (StageCx, Arc<StageMeter>) {
        let meter = Arc::<StageMeter>::default();
        let meters = Arc::new(Mutex::new(vec![Arc::clone(&meter)]));
        lock(&self.state.crew).stages.push(Entry { name: name.to_owned(), kind, place, meters, scale: None });
        (self.state.cx(name, 0, &meter), meter)
    }

    /// A stage that is.
    pub(crate) fn group(&mut self, name: &str, kind: &'static str, place: Place, scale: Scale) -> Group {
        let meters = Arc::<Mutex<Vec<_>>>::default();
        let entry = Entry { name: name.to_owned(), kind, place, meters: Arc::clone(&meters), scale: Some(scale) };
        lock(&self.state.crew).stages.push(entry);
        Group {
            name: name.to_owned(),
            state: Arc::clone(&self.state),
            places: Arc::clone(&self.places),
            alive: self.alive(),
            meters,
        }
    }

    /// The link into the stage wired last.
    pub(crate) fn link(&mut self, capacity: Capacity) -> Arc<Room> {
        let room = Room::new(capacity);
        self.state.switch.closes(Arc::clone(&room) as Arc<dyn Close>);
        lock(&self.state.crew).links.push(Arc::clone(&room));
        room
    }
}

impl Group {
    /// The context of the front, whose meter is in no report.
    pub(crate) fn front(&self) -> StageCx {
        self.state.cx(&self.name, 0, &Arc::default())
    }

    pub(crate) fn hire(&self, number: usize) -> (StageCx, Arc<StageMeter>) {
        let meter = Arc::<StageMeter>::default();
        lock(&self.meters).push(Arc::clone(&meter));
        (self.state.cx(&self.name, number, &meter), meter)
    }

    pub(crate) fn arbiter(&self, place: Place, name: &str) -> Result<ArbiterHandle, Fault> {
        arbiter(&self.places, place, name)
    }

    pub(crate) fn alive(&self) -> Alive {
        self.alive.clone()
    }
}

impl State {
    fn cx(&self, name: &str, replica: usize, meter: &Arc<StageMeter>) -> StageCx {
        StageCx::new(name, replica, self.ledger.clone(), Arc::clone(meter), self.switch.clone())
    }

    fn report(&self) -> Report {
        let crew = lock(&self.crew);
        let stages: Vec<StageReport> = crew.stages.iter().rev().map(Entry::report).collect();
        let links = crew.links.iter().rev().zip(stages.windows(2));
        let links = links.map(|(room, ends)| room.report(&ends[0].name, &ends[1].name)).collect();
        let services = self.settings.hosts.iter().filter_map(Weak::upgrade).flat_map(|staff| staff.report()).collect();
        let (verdict, wall) = lock(&self.ended).clone().unwrap_or_else(|| (Verdict::Running, self.started.elapsed()));
        let name = self.plan.name.clone();
        Report { name, verdict, wall, stages, links, services, ledger: self.ledger.snapshot() }
    }

    /// The stage to blame for a drain that takes too long: the first from the source that is at work; those above it
    /// wait for room, those below for input.
    fn late(&self) -> String {
        let crew = lock(&self.crew);
        let doing = |entry: &&Entry, what: Doing| lock(&entry.meters).iter().any(|meter| meter.doing() == what);
        let flow = || crew.stages.iter().rev();
        flow()
            .find(|entry| doing(entry, Doing::Busy))
            .or_else(|| flow().rev().find(|entry| doing(entry, Doing::Blocked)))
            .or_else(|| flow().find(|entry| doing(entry, Doing::Starved)))
            .map_or_else(|| self.plan.name.clone(), |entry| entry.name.clone())
    }
}

impl Entry {
    fn report(&self) -> StageReport {
        let mut report = StageReport {
            name: self.name.clone(),
            kind: self.kind.to_owned(),
            place: self.place.to_string(),
            replicas: self.scale.as_ref().map_or(1, |scale| scale.count.load(Relaxed)),
            ..StageReport::default()
        };
        for meter in lock(&self.meters).iter() {
            report.add(meter);
        }
        report
    }
}

impl Control {
    /// Asks the source to stop at its next batch; what is under way is worked off. Within the topology's
    /// [`drain_deadline`](crate::Topology::drain_deadline), if it has one.
    pub fn drain(&self) {
        let deadline = self.state.settings.drain_deadline.map(|deadline| Instant::now() + deadline);
        self.state.drain_until.send_if_modified(|until| {
            let first = until.is_none() && deadline.is_some();
            if first {
                *until = deadline;
            }
            first
        });
        self.state.switch.drain();
    }

    /// The same with a deadline of its own: after it, the run ends with a fault that names the stage that was late.
    pub fn drain_within(&self, deadline: Duration) {
        self.state.drain_until.send_replace(Some(Instant::now() + deadline));
        self.state.switch.drain();
    }

    /// Stops everything at once. `fault` becomes the root cause, unless there is one already.
    pub fn kill(&self, fault: Fault) {
        self.state.switch.kill(fault);
    }

    /// The meters as they are now (or as they were at the end).
    pub fn snapshot(&self) -> Report {
        self.state.report()
    }

    /// Has the stage called `stage` run in `replicas` replicas from its next batch on. A replica that is dismissed
    /// finishes what it has in hand, and its `finish` sends what it held back.
    ///
    /// # Errors
    /// There is no such stage, it is not replicated, or `replicas` is 0.
    pub fn scale(&self, stage: &str, replicas: usize) -> Result<(), Fault> {
        if replicas == 0 {
            return Err(Fault::user(format!("the stage `{stage}` needs at least one replica, 0 were asked for")));
        }
        let crew = lock(&self.state.crew);
        let Some(entry) = crew.stages.iter().find(|entry| entry.name == stage) else {
            let names: Vec<_> = crew.stages.iter().rev().map(|entry| entry.name.as_str()).collect();
            return Err(Fault::user(format!("there is no stage `{stage}`; there are: {}", names.join(", "))));
        };
        let Some(scale) = &entry.scale else {
            return Err(Fault::user(format!("the stage `{stage}` is not replicated: wire it with `replicated`")));
        };
        scale.target.send_replace(replicas);
        Ok(())
    }

    /// Sends a barrier through the pipeline, from the source's next batch boundary; the future resolves when the sink
    /// has handled it. It is under way even if the future is dropped.
    ///
    /// # Errors
    /// The run ended first, or its source has no more batches.
    pub fn barrier(&self) -> impl Future<Output = Result<Barrier, Fault>> + Send + use<> {
        self.state.barriers.wish()
    }

    /// Whether the run has ended.
    pub fn ended(&self) -> bool {
        lock(&self.state.ended).is_some()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("name", &self.state.plan.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("name", &self.state.plan.name).finish_non_exhaustive()
    }
}

impl Deref for Running {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl Running {
    pub(crate) fn start(
        plan: Plan,
        settings: Settings,
        wire: Box<dyn FnOnce(&mut Wiring) -> Result<(), Fault> + Send>,
    ) -> Result<Self, Fault> {
        let (barriers, wishes) = Barriers::new();
        let state = Arc::new(State {
            plan,
            settings,
            switch: Switch::default(),
            ledger: Ledger::default(),
            barriers,
            position: Position::default(),
            crew: Mutex::default(),
            started: Instant::now(),
            drain_until: watch::Sender::new(None),
            ended: Mutex::default(),
        });
        let (wired, is_wired) = std::sync::mpsc::channel::<()>();
        let (done, outcome) = oneshot::channel();
        let run = Arc::clone(&state);
        let name = state.plan.name.clone();
        std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                let body = || System::new().block_on(conduct(&run, wire, wishes, wired));
                let joined = catch_unwind(AssertUnwindSafe(body));
                if joined.is_err() {
                    run.switch.kill(Fault::internal("the run's own thread panicked"));
                }
                let _ = done.send(conclude(&run));
            })
            .map_err(|e| Fault::external(format!("cannot start the thread `{name}`")).because(e))?;
        // An error means that the thread is past wiring, or has panicked, which the outcome will say.
        let _ = is_wired.recv();
        Ok(Self { control: Control { state }, done: Some(outcome) })
    }

    /// A handle to steer the run by while someone else waits for its end.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Resolves when the run has ended and its threads are gone. Works on any executor; dropping the future kills the
    /// run.
    pub async fn outcome(mut self) -> Outcome {
        let done = self.done.take().expect("taken only here and in wait, which consume the run");
        match done.await {
            Ok(outcome) => outcome,
            Err(_) => self.lost(),
        }
    }

    /// Blocks until the run has ended and its threads are gone. Not for use inside an executor: see
    /// [`outcome`](Running::outcome).
    pub fn wait(self) -> Outcome {
        futures::executor::block_on(self.outcome())
    }

    fn lost(&self) -> Outcome {
        let fault = Fault::internal("the run's own thread was lost");
        Outcome { result: Err(fault), report: self.state.report(), position: None }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.control.ended() {
            self.control.kill(Fault::user("the handle of the run was dropped before its end"));
        }
    }
}

/// Wires, waits for the end of all shells, and ends the threads.
async fn conduct(
    state: &Arc<State>,
    wire: Box<dyn FnOnce(&mut Wiring) -> Result<(), Fault> + Send>,
    wishes: mpsc::UnboundedReceiver<Wish>,
    wired: std::sync::mpsc::Sender<()>,
) {
    let places = Arc::new(Mutex::new(Places::new(&state.plan.name)));
    let (alive, mut ended) = mpsc::channel(1);
    let mut wiring = Wiring { state: Arc::clone(state), places: Arc::clone(&places), alive, wishes: Some(wishes) };
    if let Err(fault) = wire(&mut wiring) {
        state.switch.kill(fault);
    }
    drop(wiring);
    let _ = wired.send(());
    drop(wired);

    let grace = state.settings.grace;
    let stuck = AtomicBool::new(false);
    tokio::select! {
        // Nothing is ever sent: this resolves when the last shell drops its sender.
        _ = ended.recv() => {}
        () = async { late(state).await; state.switch.killed().await; tokio::time::sleep(grace).await } => {
            stuck.store(true, Relaxed);
        }
    }
    state.barriers.end();
    let stuck = stuck.into_inner();
    if stuck {
        tracing::error!(
            stage = state.late(),
            "a stage blocks its thread and cannot be stopped: its thread is left behind"
        );
    }
    let places = std::mem::replace(&mut *lock(&places), Places::new(""));
    if !places.stop(if stuck { Duration::ZERO } else { grace }) && !stuck {
        tracing::error!("a thread did not end: something a stage started blocks it, and it is left behind");
    }
}

/// Resolves when the run was killed, if need be by itself because a drain took too long.
async fn late(state: &Arc<State>) {
    let mut until = state.drain_until.subscribe();
    let asked = Instant::now;
    loop {
        let deadline = *until.borrow_and_update();
        let passed = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = state.switch.killed() => return,
            Ok(()) = until.changed() => {}
            () = passed => {
                let late = state.late();
                let over = deadline.map(|d| asked().saturating_duration_since(d)).unwrap_or_default();
                tracing::debug!(?over, "the drain is late");
                let message = "the drain took longer than its deadline: this stage was still at work";
                state.switch.kill(Fault::external(message).at(&late, Phase::Batch, None));
            }
        }
    }
}

/// The books are closed.
fn conclude(state: &Arc<State>) -> Outcome {
    if !state.switch.is_killed()
        && let Err(fault) = state.ledger.check()
    {
        state.switch.kill(fault);
    }
    let drained = state.switch.is_stopping();
    let result = match state.switch.take_root() {
        Some(fault) => Err(fault),
        None => Ok(()),
    };
    let verdict = match &result {
        Err(fault) => Verdict::failed(fault),
        Ok(()) if drained => Verdict::Drained,
        Ok(()) => Verdict::Finished,
    };
    *lock(&state.ended) = Some((verdict, state.started.elapsed()));
    let position = lock(&state.position).take().filter(|_| result.is_ok());
    Outcome { result, report: state.report(), position }
}
