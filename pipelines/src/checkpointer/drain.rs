//! The drain of a run with checkpoints, which ends with one more checkpoint. If this checkpoint cannot be written, or the store stops
//! taking it, the run is drained as one without checkpoints: it saves its model instead of the checkpoint.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, park_timeout};
use std::time::{Duration, Instant};

use forebay_actors::{Control, Fault, FaultKind};
use forebay_job::{Job, RunEnd};

/// How often the thread checks whether the store takes bytes.
const TICK: Duration = Duration::from_millis(50);

/// If the store takes nothing of the last checkpoint for `output.retry_for`, limited to this range, the run ends without it.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// Drains a run as one without checkpoints. Returns at once.
pub(crate) type DrainWithout = Box<dyn Fn() + Send + Sync>;

/// Whether the model is being evaluated.
pub(crate) type IsEvaluating = Arc<dyn Fn() -> bool + Send + Sync>;

/// The drain of one run.
pub(super) struct Drain {
    control: Control,
    without_checkpoint: DrainWithout,
    /// The folder of the checkpoints, as messages name it.
    folder: String,
    /// The model of the drained run is saved if there is no checkpoint.
    saves_model: bool,
    patience: Duration,
    is_evaluating: IsEvaluating,
    asked: AtomicBool,
    /// Set while the thread of the checkpoints waits for the store.
    waits_for_store: AtomicBool,
    /// Grows while the store takes bytes, from this process or from the ps.
    written: Arc<AtomicU64>,
    /// Why the run ends without its last checkpoint.
    given_up: Mutex<Option<Fault>>,
}

impl Drain {
    /// The drain of a run of `job` that `control` controls, with checkpoints in `folder`. Calls `without_checkpoint` if the run must save
    /// its model instead of its last checkpoint.
    pub(super) fn new(
        job: &Job,
        folder: String,
        without_checkpoint: DrainWithout,
        control: Control,
        is_evaluating: IsEvaluating,
    ) -> Self {
        Self {
            control,
            without_checkpoint,
            folder,
            saves_model: job.output.folder(RunEnd::Drained).is_some(),
            patience: job.output.retry_for.0.clamp(PATIENCE.0, PATIENCE.1),
            is_evaluating,
            asked: AtomicBool::default(),
            waits_for_store: AtomicBool::default(),
            written: Arc::default(),
            given_up: Mutex::default(),
        }
    }

    /// A number that grows while the store takes bytes.
    pub(super) fn written(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.written)
    }

    /// Whether the run must end after one more checkpoint.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Tells the run to end after one more checkpoint. Returns at once. The thread of the checkpoints sees this only between two
    /// checkpoints, so another thread watches whether the store still takes bytes.
    pub(super) fn ask(self: &Arc<Self>) {
        if self.asked.swap(true, Ordering::SeqCst) {
            return;
        }
        let drain = Arc::clone(self);
        if let Err(e) = Builder::new().name("drain".into()).spawn(move || drain.watch()) {
            let fault = Fault::no_thread("the thread `drain`", e);
            tracing::warn!("the last checkpoint has no limit of time: {fault}");
        }
    }

    /// Makes a `call` that waits for the store.
    pub(super) fn at_store<T>(&self, call: impl FnOnce() -> T) -> T {
        self.written.fetch_add(1, Ordering::SeqCst);
        self.waits_for_store.store(true, Ordering::SeqCst);
        let done = call();
        self.waits_for_store.store(false, Ordering::SeqCst);
        done
    }

    /// Gives the last checkpoint up once the store has taken nothing for too long. Returns when the run ends.
    fn watch(&self) {
        let (mut before, mut since) = (0, Instant::now());
        while !self.control.killed() && !self.control.ended() {
            let now = self.written.load(Ordering::SeqCst);
            let evaluates = (self.is_evaluating)();
            if now != before || evaluates || !self.waits_for_store.load(Ordering::SeqCst) {
                (before, since) = (now, Instant::now());
            } else if since.elapsed() >= self.patience {
                let (folder, patience) = (&self.folder, self.patience);
                return self.give_up(Fault::external(format!("{folder} has taken nothing for {patience:?}")));
            }
            park_timeout(TICK);
        }
    }

    /// The run ends without its last checkpoint, because of `fault`.
    pub(super) fn give_up(&self, fault: Fault) {
        // In a cluster the run may have begun a new attempt, which ends with the checkpoint that it continues from.
        if self.control.killed() {
            return tracing::debug!("the run has ended before its last checkpoint: {fault}");
        }
        if !self.saves_model {
            let lost = "the last checkpoint failed, and the job saves no model of a drained run: what was trained on since the checkpoint \
                        before is lost, and --resume continues from that one or starts again from row 0";
            // The run was asked to shut down, so nothing must start it again.
            return self.control.kill(Fault::external(lost).because(fault).kind(FaultKind::Unsaved));
        }
        let mut given_up = self.given_up();
        if given_up.is_none() {
            tracing::warn!(
                "the last checkpoint is not written, so the run ends as one without checkpoints: it trains on what was read, then saves \
                 the model: {fault}"
            );
            *given_up = Some(fault.kind(FaultKind::Other));
        }
        (self.without_checkpoint)();
    }

    /// Whether the run ends without its last checkpoint, and saves its model instead.
    pub(super) fn has_given_up(&self) -> bool {
        self.given_up().is_some()
    }

    /// Why the run has ended without its last checkpoint; `None` if it has one, or was not drained.
    pub(super) fn why_without(&self) -> Option<Fault> {
        self.given_up().clone()
    }

    fn given_up(&self) -> MutexGuard<'_, Option<Fault>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
