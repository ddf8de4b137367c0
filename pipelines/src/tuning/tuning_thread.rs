//! The thread that tunes a run: it reads the meters once a second, and makes the changes of the tuner.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_actors::{Adjustment, Control, Fault};
use forebay_base::MemoryBudget;
use forebay_job::Job;

use super::observation::MeterReader;
use super::thread_tuner::ThreadTuner;
use super::tuner::Tuner;
use crate::dense_model::dense_threads::DenseThreads;

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
        Self::with_threads(job, run, None)
    }

    /// Tunes a run that trains on these `threads`, too.
    pub(crate) fn of_training(job: &Job, run: Control, threads: &DenseThreads) -> Option<Self> {
        Self::with_threads(job, run, job.tunes_dense_threads().then(|| threads.clone()))
    }

    fn with_threads(job: &Job, run: Control, threads: Option<DenseThreads>) -> Option<Self> {
        let replicated =
            |name: &String| run.plan().stages.iter().any(|stage| stage.name == *name && stage.replicas.is_some());
        let stages: Vec<String> = job.tuned_stages().into_iter().filter(replicated).collect();
        let memory = MemoryBudget::new(job.memory_limit());
        let is_tuned = !stages.is_empty() || threads.is_some();
        is_tuned.then(|| Self::start(run, (stages, threads), job.cores(), memory, EVERY))
    }

    /// Looks at the meters in this interval.
    pub(super) fn start(
        run: Control,
        (stages, threads): (Vec<String>, Option<DenseThreads>),
        cores: usize,
        memory: MemoryBudget,
        every: Duration,
    ) -> Self {
        let (stop, stopped) = channel::<()>();
        let tune = move || {
            let mut meters = MeterReader::new(stages.clone(), memory);
            let (mut tuner, mut thread_tuner) = (Tuner::new(cores), ThreadTuner::new(cores));
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) && !run.ended() {
                let report = run.snapshot();
                let Some(seen) = meters.read(&report) else { continue };
                // One change at a time, so that the throughput says what came of it.
                if !thread_tuner.trials.is_trying() {
                    let change = tuner.observe(report.wall, &seen);
                    log(&run, change.as_ref().and(tuner.trials.adjustments().last()));
                    scale(&run, &stages, change);
                }
                if !tuner.trials.is_trying()
                    && let Some((threads, now)) = threads.as_ref().and_then(|threads| Some((threads, threads.now()?)))
                    && let Some(wanted) = thread_tuner.observe(report.wall, &seen, now)
                {
                    log(&run, thread_tuner.trials.adjustments().last());
                    threads.want(wanted);
                }
                run.set_adjustments([tuner.trials.adjustments(), thread_tuner.trials.adjustments()].concat());
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

/// Logs a change that was made or undone.
fn log(run: &Control, change: Option<&Adjustment>) {
    if let Some(adjustment) = change {
        tracing::info!("{}: {adjustment}", run.plan().name);
    }
}

/// Scales the stages.
fn scale(run: &Control, stages: &[String], change: Option<Vec<usize>>) {
    for (stage, replicas) in stages.iter().zip(change.unwrap_or_default()) {
        if let Err(fault) = run.scale(stage, replicas) {
            tracing::warn!("`{stage}` keeps its replicas: {fault}");
        }
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
