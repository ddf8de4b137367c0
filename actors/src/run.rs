//! Runs a pipeline, on a thread of its own with an actix system.
//!
//! So a program can use any executor: [`Running::outcome`] is a future for all of them, and [`Running::wait`] blocks.

use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::barrier::Barriers;
use crate::control::Control;
use crate::fault::{Fault, FaultKind};
use crate::lock::lock;
use crate::long_work::warn_of_long_work;
use crate::numbers::commas;
use crate::place::{Places, spawn_system};
use crate::plan::Plan;
use crate::report::{Report, Verdict};
use crate::results::Results;
use crate::state::{Settings, State};
use crate::wiring::{Wire, Wiring};

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// `Ok` if all rows are accounted for, otherwise the root cause.
    pub result: Result<(), Fault>,
    /// The meters, also after a fault.
    pub report: Report,
    /// The values that stages left, also after a fault.
    pub results: Results,
}

/// A run under way. Dropping it kills the run.
pub struct Running {
    control: Control,
    done: Option<oneshot::Receiver<Outcome>>,
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
    pub(crate) fn start(plan: Plan, settings: Settings, wire: Wire) -> Result<Self, Fault> {
        let state = State::new(plan, settings, Barriers::new());
        let (wired, is_wired) = std::sync::mpsc::channel::<()>();
        let (done, outcome) = oneshot::channel();
        let run = Arc::clone(&state);
        let name = state.plan.name.clone();
        spawn_system(&name, move |system| {
            let body = || system.block_on(run_pipeline(&run, wire, wired));
            let joined = catch_unwind(AssertUnwindSafe(body));
            if let Err(panic) = joined {
                run.switch.kill(Fault::of_panic("the run's own thread panicked", &*panic));
            }
            let _ = done.send(conclude(&run));
        })?;
        // An error means that the thread has panicked; the outcome will say so.
        let _ = is_wired.recv();
        Ok(Self { control: Control { state }, done: Some(outcome) })
    }

    /// A handle that controls the run while another thread waits for its end.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Resolves when the run and its threads have ended. Works on any executor. Dropping the future kills the run.
    pub async fn outcome(mut self) -> Outcome {
        let done = self.done.take().expect("taken only here and in wait, which consume the run");
        match done.await {
            Ok(outcome) => outcome,
            Err(_) => self.lost(),
        }
    }

    /// Blocks until the run and its threads have ended. Inside an executor, use [`outcome`](Running::outcome).
    pub fn wait(self) -> Outcome {
        block_on(self.outcome())
    }

    fn lost(&self) -> Outcome {
        let fault = Fault::internal("the run's own thread was lost");
        Outcome { result: Err(fault), report: self.state.report(), results: Results::default() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.control.ended() {
            self.control.kill(Fault::user("the handle of the run was dropped before its end").kind(FaultKind::Stopped));
        }
    }
}

/// Wires, waits for the end of all shells, and ends the threads.
async fn run_pipeline(state: &Arc<State>, wire: Wire, wired: std::sync::mpsc::Sender<()>) {
    let places = Arc::new(Mutex::new(Places::new(&state.plan.name)));
    let (liveness, mut ended) = mpsc::channel(1);
    let mut wiring = Wiring { state: Arc::clone(state), places: Arc::clone(&places), liveness };
    if let Err(fault) = wire(&mut wiring) {
        state.switch.kill(fault);
    }
    drop(wiring);
    let _ = wired.send(());
    drop(wired);

    let grace = state.settings.grace;
    let stuck = tokio::select! {
        // No shell sends: this resolves when the last one drops its sender.
        _ = ended.recv() => false,
        () = async { state.switch.killed().await; tokio::time::sleep(grace).await } => true,
        never = warn_of_long_work(state) => match never {},
    };
    state.barriers.end();
    if stuck {
        tracing::error!(
            stage = state.late(),
            "a stage blocks its thread and cannot be stopped: its thread is left behind"
        );
    }
    let places = std::mem::replace(&mut *lock(&places), Places::new(""));
    let stopped = places.stop(if stuck { Duration::ZERO } else { grace });
    if let Err(fault) = stopped
        && !stuck
    {
        tracing::error!("{fault}");
    }
}

/// Checks the ledger and makes the outcome.
fn conclude(state: &Arc<State>) -> Outcome {
    if !state.switch.is_killed()
        && let Err(fault) = state.ledger.check()
    {
        state.switch.kill(fault.followed_by(other_counts(&state.report())));
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
    *lock(&state.ended) = Some(state.now(verdict));
    state.end.notify_all();
    Outcome { result, report: state.report(), results: state.results.clone() }
}

/// The stages between source and sink that sent more or fewer rows than they took, as the end of a message about the ledger.
fn other_counts(report: &Report) -> String {
    let between = report.stages.len().saturating_sub(1);
    let stages = report.stages.iter().take(between).skip(1);
    let other = stages.filter(|stage| stage.rows_in != stage.rows_out);
    let counts: Vec<_> =
        other.map(|s| format!("`{}` ({} in, {} out)", s.name, commas(s.rows_in), commas(s.rows_out))).collect();
    if counts.is_empty() { String::new() } else { format!("; rows in and out differ at {}", counts.join(", ")) }
}

/// Blocks this thread. The executors of other crates may refuse to run inside another executor.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}
