//! The headspace of a job, its speed with a perfect feed: the same job, fed from batches in memory.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_actors::{Batch, Fault, Lineage, Place, Report, Sink, Source, StageCx, Topology};
use forebay_base::cpu_seconds;
use forebay_batches::TrainBatch;
use forebay_job::Job;

use super::resources::Resources;
use super::wiring;
use crate::context::Context;
use crate::tuning::TuningThread;

/// A speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Rows that were processed.
    pub rows: u64,
    /// How long that took.
    pub wall: Duration,
    /// CPU seconds of all threads of this process meanwhile; NaN without /proc.
    pub cpu_seconds: f64,
}

impl Speed {
    /// Rows per second of wall time.
    pub fn rows_per_second(&self) -> f64 {
        self.rows as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// What [`headspace`] measured.
#[derive(Debug)]
pub struct Headspace {
    /// The feed alone: rows are read, parsed and batched, and nothing is trained.
    pub feed: Speed,
    /// Training alone: look-up, dense compute and push of the same batches, out of memory.
    pub training: Speed,
    /// The report of the training.
    pub report: Report,
}

/// Measures the feed of a job and its training separately, over the first `rows` rows at `data.train`. The training goes over them once to
/// create the rows of the table, then `passes` times that are measured. Holds the batches in memory, about as many bytes as their keys and
/// dense features have. Writes no model and no checkpoint, and makes no evaluation.
///
/// # Errors
/// A user fault if the job is of several processes, or its rows are missing. The first fault of a run.
pub fn headspace(mut job: Job, context: &Context, rows: u64, passes: usize) -> Result<Headspace, Fault> {
    if !job.placement.is_one_process() {
        return Err(Fault::user("bench headspace runs in one process: leave `placement` out of the job"));
    }
    (job.output, job.checkpoint, job.evaluation) = Default::default();
    (job.data.eval, job.data.epochs) = (None, 1);
    let (feed, batches) = held(&job, context, rows)?;
    if batches.is_empty() {
        return Err(Fault::user("no batch came from `data.train`, expected at least one"));
    }
    let mut resources = Resources::alone(job, context.clone())?;
    let held_rows: u64 = batches.iter().map(|batch| batch.rows() as u64).sum();
    let measured = Arc::new(OnceLock::new());
    let begins = Arc::clone(&measured);
    let source = move || HeldBatches { batches, passes: passes.max(1) as u32 + 1, pass: 0, next: 0, begins };
    let flow = Topology::new("headspace").attach(&resources.host).source("memory", Place::Own, source);
    let pipeline = wiring::learn(flow.link(resources.job.pipeline.links.to_lookup()), &mut resources);
    let report = pipeline.run()?;
    let (start, cpu) = *measured.get().expect("the source began its second pass before it ended");
    let cpu = cpu_seconds().unwrap_or(f64::NAN) - cpu;
    let training = Speed { rows: held_rows * passes.max(1) as u64, wall: start.elapsed(), cpu_seconds: cpu };
    Ok(Headspace { feed, training, report })
}

/// Runs the feed until it has made `rows` rows of batches, and holds them.
fn held(job: &Job, context: &Context, rows: u64) -> Result<(Speed, Vec<TrainBatch>), Fault> {
    let batches = Arc::new(Mutex::new(Vec::new()));
    let (enough, is_enough) = channel();
    let hold = Hold { batches: Arc::clone(&batches), rows: 0, most: rows.max(1), enough: Some(enough) };
    let (start, cpu) = (Instant::now(), cpu_seconds().unwrap_or(f64::NAN));
    let flow = wiring::feed(Topology::new("feed"), job, context)?;
    let running = flow.sink("hold", Place::Own, move || hold).start()?;
    let tuning = TuningThread::of(job, running.control());
    // An error means that the sink has ended.
    let made = is_enough.recv();
    drop(tuning);
    let (wall, cpu) = (start.elapsed(), cpu_seconds().unwrap_or(f64::NAN) - cpu);
    if made.is_ok() {
        running.control().drain();
    }
    running.wait().result?;
    let batches = std::mem::take(&mut *batches.lock().unwrap_or_else(PoisonError::into_inner));
    let rows = batches.iter().map(|batch: &TrainBatch| batch.rows() as u64).sum();
    Ok((Speed { rows, wall, cpu_seconds: cpu }, batches))
}

/// Holds batches up to a number of rows, and drops those that come after.
struct Hold {
    batches: Arc<Mutex<Vec<TrainBatch>>>,
    rows: u64,
    most: u64,
    enough: Option<Sender<()>>,
}

impl Sink for Hold {
    type In = TrainBatch;

    fn describe(&self) -> String {
        format!("holds {} rows", self.most)
    }

    async fn write(&mut self, batch: TrainBatch, _cx: &StageCx) -> Result<(), Fault> {
        if self.rows >= self.most {
            return Ok(());
        }
        self.rows += batch.rows() as u64;
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
        if self.rows >= self.most
            && let Some(enough) = self.enough.take()
        {
            // The caller waits for this message, or has failed.
            let _ = enough.send(());
        }
        Ok(())
    }
}

/// Copies of held batches, pass after pass.
struct HeldBatches {
    batches: Vec<TrainBatch>,
    passes: u32,
    pass: u32,
    next: usize,
    /// Set when the second pass begins, to the time and the CPU seconds.
    begins: Arc<OnceLock<(Instant, f64)>>,
}

impl Source for HeldBatches {
    type Out = TrainBatch;

    fn describe(&self) -> String {
        format!("{} batches in memory, {} passes", self.batches.len(), self.passes)
    }

    async fn next(&mut self, _cx: &StageCx) -> Result<Option<TrainBatch>, Fault> {
        if self.next == self.batches.len() {
            (self.pass, self.next) = (self.pass + 1, 0);
        }
        if self.pass == self.passes {
            return Ok(None);
        }
        if self.pass == 1 {
            self.begins.get_or_init(|| (Instant::now(), cpu_seconds().unwrap_or(f64::NAN)));
        }
        let batch = self.batches[self.next].clone();
        let seq = u64::from(self.pass) * self.batches.len() as u64 + self.next as u64;
        self.next += 1;
        // Each pass is an epoch, so that no two batches have the same id.
        Ok(Some(TrainBatch { lineage: Lineage { epoch: self.pass, seq, ..batch.lineage }, ..batch }))
    }
}
