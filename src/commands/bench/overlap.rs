//! `forebay bench overlap`: how much of the IO hides behind compute.
//!
//! The store has a fixed latency per range and a limited bandwidth; a fake device takes a fixed time per batch without using the
//! CPU. A pipeline that hides all IO takes as long as the slower of the two.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::Job;
use crate::actors::{Batch, Fault, Outbox, Place, Report, Sink, Source, Stage, StageCx, Topology};
use crate::connectors::throttle::ThrottledStore;
use crate::connectors::{Input, ParquetSource, ReadOptions, Rows, Stores};
use crate::out;
use crate::pipelines::flow::{ReadyBatch, TrainBatch};
use crate::pipelines::stages::Lookup;
use crate::pipelines::{Context, JobModel, Registry, Staleness, Ticket, feed_from};
use crate::ps::start_table;
use clap::Args;
use tokio::sync::watch;

/// Overlap of IO and compute, with a simulated slow store and device
///
/// Measures the store alone, the device alone, and the pipeline with and without overlap.
#[derive(Args)]
pub(crate) struct Overlap {
    /// Parquet with Criteo's columns.
    #[arg(long, value_name = "PATH")]
    data: String,
    /// Latency of a range, in milliseconds.
    #[arg(long, default_value_t = 20)]
    latency_ms: u64,
    /// Bandwidth of the store, in megabytes per second.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    megabytes_per_second: u64,
    /// Milliseconds that the device takes for a batch.
    #[arg(long, default_value_t = 20)]
    device_ms: u64,
    /// Rows of a batch.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    batch_rows: u32,
    /// Passes over the data. Short runs look worse, because the first range and the last batch cannot overlap.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
}

impl Overlap {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let job = Job::from_toml("", &[])?;
        let start = Instant::now();
        let (read, _) = self.pipeline(context, &job, Duration::ZERO, true)?;
        let store = start.elapsed();
        let rows = read.ledger.delivered;
        let batches = rows.div_ceil(u64::from(self.batch_rows));
        let device = Duration::from_millis(self.device_ms) * u32::try_from(batches).unwrap_or(u32::MAX);

        let time = Duration::from_millis(self.device_ms);
        let start = Instant::now();
        let (overlapped, first) = self.pipeline(context, &job, time, true)?;
        let whole = start.elapsed();
        let start = Instant::now();
        let (lockstep, _) = self.pipeline(context, &job, time, false)?;
        let one_by_one = start.elapsed();

        let slowest = store.max(device);
        out::print(format_args!("{overlapped}\n\nwith overlap off, one batch at a time:\n{lockstep}\n"))?;
        out::print(format_args!("{rows} rows, {batches} batches of {}", self.batch_rows))?;
        out::print(format_args!("store, parse, batch, lookup alone   {:>8.3} s", store.as_secs_f64()))?;
        out::print(format_args!("first rows of the pipeline          {:>8.3} s after its start", first.as_secs_f64()))?;
        out::print(format_args!("device alone                        {:>8.3} s", device.as_secs_f64()))?;
        out::print(format_args!(
            "pipeline                            {:>8.3} s   {:.3} of its slowest stage's speed",
            whole.as_secs_f64(),
            slowest.as_secs_f64() / whole.as_secs_f64()
        ))?;
        out::print(format_args!(
            "pipeline with overlap off           {:>8.3} s   {:.3} of its slowest stage's speed",
            one_by_one.as_secs_f64(),
            slowest.as_secs_f64() / one_by_one.as_secs_f64()
        ))?;
        Ok(())
    }

    /// Runs the pipeline. Returns its report, and the time from its start until the source has its first rows.
    fn pipeline(
        &self,
        context: &Context,
        job: &Job,
        device: Duration,
        overlap: bool,
    ) -> Result<(Report, Duration), Fault> {
        let (start, first) = (Instant::now(), Arc::new(OnceLock::new()));
        let (inner, path) = context.stores.open(&self.data)?;
        let (latency, speed) = (Duration::from_millis(self.latency_ms), self.megabytes_per_second * 1_000_000);
        let slow: Arc<ThrottledStore> = Arc::new(ThrottledStore::new(inner, latency, Some(speed)));
        let root = Stores::root(&self.data);
        let (mut job, batch_rows) = (job.clone(), self.batch_rows as usize);
        (job.train.batch_rows, job.data.shuffle_rows) = (batch_rows, 0);
        let options = ReadOptions {
            batch_rows,
            epochs: self.epochs as usize,
            read_ahead_bytes: if overlap { job.data.first_read_ahead() } else { 1 },
            decode_ahead_bytes: if overlap { job.data.decode_ahead.0 } else { 1 },
            ..ReadOptions::default()
        };
        let (columns, registry) = (job.columns.names(), Registry::default());
        let host = crate::actors::Host::start("ps")?;
        let table = start_table(&host, JobModel::of(&job, &registry)?.table_config(&job), 1)
            .map_err(|e| Fault::internal("the table cannot be made").because(e))?;
        let lookup = Lookup::for_training(&table, &Staleness::new(8));
        // Without overlap, the source reads only while less than a batch of rows is unfinished.
        let (turn, batch) = ((!overlap).then(|| watch::Sender::new(0)), batch_rows);
        let (done, has_rows) = (turn.clone(), Arc::clone(&first));
        let topology = Topology::new(if overlap { "overlapped" } else { "one by one" }).attach(&host);
        let source = move || InTurn {
            inner: ParquetSource::new(Input::in_store_at(&root, slow, path), options).columns(columns),
            turn,
            batch,
            has_rows,
        };
        let report = feed_from(topology, &job, &registry, source)?
            .stage("lookup", Place::Shared, move || lookup)
            .link(job.pipeline.links.to_train())
            .stage("device", Place::Own, move || TimedDevice::taking(device, !overlap))
            .link(job.pipeline.links.to_push())
            .sink("done", Place::Shared, move || Done { turn: done })
            .run()?;
        Ok((report, first.get().map_or(Duration::ZERO, |at: &Instant| at.duration_since(start))))
    }
}

/// The number of rows that are read and unfinished.
type Turn = watch::Sender<usize>;

/// If there is a `turn`, waits before each batch until less than a batch of rows is unfinished.
struct InTurn {
    inner: ParquetSource,
    turn: Option<Turn>,
    batch: usize,
    /// When the first rows came.
    has_rows: Arc<OnceLock<Instant>>,
}

impl Source for InTurn {
    type Out = Rows;

    fn describe(&self) -> String {
        self.inner.describe()
    }

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.inner.open(cx).await
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<Rows>, Fault> {
        if let Some(turn) = &self.turn {
            let wait = turn.subscribe().wait_for(|rows| *rows < self.batch).await.map(drop);
            wait.map_err(|e| Fault::internal("turns ended").because(e))?;
        }
        let rows = self.inner.next(cx).await?;
        self.has_rows.get_or_init(Instant::now);
        if let (Some(turn), Some(rows)) = (&self.turn, &rows) {
            turn.send_modify(|under_way| *under_way += rows.rows());
        }
        Ok(rows)
    }
}

/// Takes a fixed time per batch without using the CPU. Like a device with a queue, it starts the next batch at the end of the last: only a
/// missing batch costs time, and not a thread that wakes up late.
struct TimedDevice {
    time: Duration,
    /// Whether each batch ends before the next is taken.
    lockstep: bool,
    under_way: Option<(Finished, tokio::time::Instant)>,
}

impl TimedDevice {
    fn taking(time: Duration, lockstep: bool) -> Self {
        Self { time, lockstep, under_way: None }
    }

    /// Waits for the batch under way, and sends it on.
    async fn end(&mut self, out: &mut Outbox<Finished>) -> Result<(), Fault> {
        if let Some((batch, end)) = self.under_way.take() {
            tokio::time::sleep_until(end).await;
            out.send(batch).await?;
        }
        Ok(())
    }
}

impl Stage for TimedDevice {
    type In = ReadyBatch;
    type Out = Finished;

    fn describe(&self) -> String {
        format!("stand-in, {:?} a batch", self.time)
    }

    async fn on_batch(&mut self, batch: ReadyBatch, _cx: &StageCx, out: &mut Outbox<Finished>) -> Result<(), Fault> {
        let now = tokio::time::Instant::now();
        let start = self.under_way.as_ref().map_or(now, |(_, end)| now.max(*end));
        self.end(out).await?;
        self.under_way = Some((Finished { train: batch.train, _ticket: batch.ticket }, start + self.time));
        if self.lockstep { self.end(out).await } else { Ok(()) }
    }

    async fn finish(&mut self, _cx: &StageCx, out: &mut Outbox<Finished>) -> Result<(), Fault> {
        self.end(out).await
    }
}

/// A batch that the device has done.
struct Finished {
    train: TrainBatch,
    _ticket: Ticket,
}

impl crate::actors::Batch for Finished {
    fn rows(&self) -> usize {
        self.train.rows()
    }
    fn bytes(&self) -> usize {
        self.train.bytes()
    }
    fn lineage(&self) -> &crate::actors::Lineage {
        self.train.lineage()
    }
}

/// Tells the source that rows are done.
struct Done {
    turn: Option<Turn>,
}

impl Sink for Done {
    type In = Finished;

    fn describe(&self) -> String {
        "counts".into()
    }

    async fn write(&mut self, batch: Finished, _cx: &StageCx) -> Result<(), Fault> {
        if let Some(turn) = &self.turn {
            turn.send_modify(|under_way| *under_way -= batch.rows());
        }
        Ok(())
    }
}
