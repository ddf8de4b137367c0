//! The thread that tunes a run: it reads the meters once a second, and makes the changes of the tuner.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_actors::{Control, Fault};
use forebay_job::Job;

use super::observation::{MemoryBudget, MeterReader};
use super::tuner::Tuner;

/// The time between two looks at the meters.
const EVERY: Duration = Duration::from_secs(1);

/// Tunes a run until the run ends or this is dropped.
pub(crate) struct TuningThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TuningThread {
    /// Tunes a run of `job` within its cores. `None` if no stage of the run has a knob that is `"auto"`.
    pub(crate) fn of(job: &Job, run: Control) -> Option<Self> {
        let replicated =
            |name: &String| run.plan().stages.iter().any(|stage| stage.name == *name && stage.replicas.is_some());
        let stages: Vec<String> = job.tuned_stages().into_iter().filter(replicated).collect();
        let memory = MemoryBudget::new(job.pipeline.memory.map(|bytes| bytes.0 as u64));
        (!stages.is_empty()).then(|| Self::start(run, stages, job.cores(), memory, EVERY))
    }

    /// Looks at the meters in this interval.
    pub(super) fn start(
        run: Control,
        stages: Vec<String>,
        cores: usize,
        memory: MemoryBudget,
        every: Duration,
    ) -> Self {
        let (stop, stopped) = channel::<()>();
        let tune = move || {
            let (mut meters, mut tuner) = (MeterReader::new(stages.clone(), memory), Tuner::new(cores));
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) && !run.ended() {
                let report = run.snapshot();
                if let Some(seen) = meters.read(&report) {
                    let change = tuner.observe(report.wall, &seen);
                    apply(&run, &stages, &tuner, change);
                }
            }
        };
        let thread = std::thread::Builder::new().name("tuner".into()).spawn(tune);
        let thread = thread.map_err(|e| {
            let fault = Fault::no_thread("the thread `tuner`", e);
            tracing::warn!("replicas stay as they are: {fault}");
        });
        Self { stop: Some(stop), thread: thread.ok() }
    }
}

/// Scales the stages, and writes what was done into the report and the log.
fn apply(run: &Control, stages: &[String], tuner: &Tuner, change: Option<Vec<usize>>) {
    run.set_adjustments(tuner.adjustments().to_vec());
    let Some(replicas) = change else { return };
    for (stage, replicas) in stages.iter().zip(replicas) {
        if let Err(fault) = run.scale(stage, replicas) {
            tracing::warn!("`{stage}` keeps its replicas: {fault}");
        }
    }
    if let Some(adjustment) = tuner.adjustments().last() {
        tracing::info!("{}: {adjustment}", run.plan().name);
    }
}

impl Drop for TuningThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the tuner's thread panicked; the run kept the replicas that it had");
        }
    }
}
