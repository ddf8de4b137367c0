//! `forebay bench device`: the speed of dense compute on a device that never waits for input, and the cost of transfers.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::Job;
use crate::actors::{Fault, Lineage, Place, Report, Sink, Source, StageCx, Topology, commas};
use crate::models::ModelSpec;
use crate::pipelines::flow::{GradBatch, ReadyBatch};
use crate::pipelines::{Compute, JobModel, Progress, Registry, Snapshot, Staleness};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::ready::Ready;
use crate::out;
use crate::usage::Usage;

/// Rows per second of the dense compute alone, fed from memory, with its transfers apart and inline
///
/// Generated batches of Criteo's shape go through the stages of a training (upload, train, download, or train alone), without
/// lookup and push. Prints the share of time that the device was busy.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay bench device --device cuda:0
  forebay bench device --batch-rows 512 --tower 64-32 --batches 20 --json        (on the CPU, small)")]
pub(crate) struct Device {
    /// The device: "cpu", "cuda:0", and so on.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// The backend: "torch", or "native", which has no transfers.
    #[arg(long, default_value = if cfg!(feature = "torch") { "torch" } else { "native" })]
    backend: String,
    /// Widths of the hidden layers; may be repeated.
    #[arg(long = "tower", value_name = "WIDTHS", value_delimiter = ',', default_values = ["400-400-400", "4096-2048-1024"])]
    towers: Vec<String>,
    /// Rows of a batch; several with commas.
    #[arg(long, value_delimiter = ',', default_values_t = [4096, 16_384, 65_536])]
    batch_rows: Vec<usize>,
    /// Unique keys of a batch per row; Criteo's rows have 6.77 in batches of 2,048 rows.
    #[arg(long, default_value_t = 6.77)]
    unique_per_row: f64,
    /// Batches to measure.
    #[arg(long, default_value_t = 200)]
    batches: usize,
    /// Batches before the measurement.
    #[arg(long, default_value_t = 20)]
    warm_up: usize,
    /// How many earlier batches may be unfinished when a batch starts.
    #[arg(long, default_value_t = 4)]
    staleness: usize,
    /// Threads of dense compute on the CPU; 0 for the number of cores.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Which transfers to measure.
    #[arg(long, value_enum, default_value_t = MeasuredTransfers::Both)]
    transfers: MeasuredTransfers,
    /// Print JSON, one object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum MeasuredTransfers {
    Apart,
    Inline,
    Both,
}

#[derive(Serialize)]
struct Measurement {
    device: String,
    tower: String,
    batch_rows: usize,
    transfers: &'static str,
    rows: u64,
    seconds: f64,
    rows_per_second: f64,
    /// Share of the time in which a step ran: by the device's clock if transfers are apart, else by the clock of the train stage.
    busy_share: f64,
    /// 1 - `busy_share`.
    stall_share: f64,
    cpu_seconds_per_million_rows: Option<f64>,
    gflops_per_second: f64,
    /// Nanoseconds per row that each stage's thread works, without waits for the device.
    stage_nanoseconds_per_row: Vec<(String, f64)>,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tower, batch_rows, transfers, rows_per_second, busy_share, stall_share, gflops_per_second, .. } =
            self;
        let rate = commas(*rows_per_second as u64);
        let cpu = self.cpu_seconds_per_million_rows.map_or("?".into(), |cpu| format!("{cpu:.2}"));
        write!(
            f,
            "{tower:16} {batch_rows:>7} {transfers:8} {rate:>12} {busy_share:>7.3} {stall_share:>7.3} {cpu:>10} \
             {gflops_per_second:>10.0}",
        )
    }
}

/// Fewest batches to measure: several are unfinished when the measurement starts, and are not part of it.
const FEWEST: usize = 8;

const HEAD: &str = "tower              batch transfers      rows/s    busy   stall  CPU s/M r    GFLOP/s";

impl Device {
    pub(crate) fn run(self) -> Result<(), Fault> {
        if self.batches < FEWEST || self.batch_rows.contains(&0) {
            return Err(Fault::user(format!("--batches is at least {FEWEST}, --batch-rows at least 1")));
        }
        if self.towers.iter().any(String::is_empty) {
            return Err(Fault::user("--tower has an empty entry, expected widths such as 400-400-400"));
        }
        if !(self.unique_per_row > 0.0 && self.unique_per_row <= 26.0) {
            return Err(Fault::user(format!(
                "--unique-per-row is {}, expected more than 0 and at most 26",
                self.unique_per_row
            )));
        }
        let kinds: &[&str] = match self.transfers {
            _ if self.backend == "native" && self.transfers == MeasuredTransfers::Both => &["inline"],
            MeasuredTransfers::Apart => &["apart"],
            MeasuredTransfers::Inline => &["inline"],
            MeasuredTransfers::Both => &["apart", "inline"],
        };
        if !self.json {
            out::print(format_args!("{HEAD}"))?;
        }
        for tower in &self.towers {
            for &batch_rows in &self.batch_rows {
                for &transfers in kinds {
                    let measurement = self.measure(tower, batch_rows, transfers)?;
                    if self.json {
                        out::print(format_args!("{}", serde_json::json!(measurement)))?;
                    } else {
                        out::print(format_args!("{measurement}"))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn measure(&self, tower: &str, batch_rows: usize, transfers: &'static str) -> Result<Measurement, Fault> {
        let job = Job::from_toml(
            "",
            &[
                format!("model.hidden=[{}]", tower.replace('-', ",")),
                format!("train.batch_rows={batch_rows}"),
                format!("train.backend={}", self.backend),
                format!("train.device={}", self.device),
                format!("train.transfers={transfers}"),
                format!("train.threads={}", self.threads),
            ],
        )?;
        job.check()?;
        let model = JobModel::of(&job, &Registry::default())?;
        let spec = model.spec.clone().expect("a built-in model has a spec");
        let batches = Ready::made(&spec, batch_rows, self.unique_per_row);
        let compute = Compute::new(&job, &model);
        let clock = Clock { progress: compute.progress.clone(), ..Clock::new(self.warm_up, self.batches) };
        let span = Arc::clone(&clock.span);
        let feed = MemoryFeed {
            batches,
            left: self.warm_up + self.batches,
            sent: 0,
            rows: batch_rows,
            staleness: Staleness::new(self.staleness),
        };
        let links = &job.pipeline.links;
        let flow = Topology::new("device").source("feed", Place::Own, move || feed).link(links.to_train());
        let report = compute.wire(flow).link(links.to_push()).sink("done", Place::Shared, move || clock).run()?;
        let [from, to] = span
            .lock()
            .expect("no holder of this lock panics")
            .take()
            .ok_or_else(|| Fault::internal("the measurement ended before its batches did"))?;
        let rows = to.rows - from.rows;
        let seconds = to.at.duration_since(from.at).as_secs_f64();
        let busy_share = match transfers {
            "apart" => ((to.device_seconds - from.device_seconds) / seconds).min(1.0),
            _ => report.stage("train").map_or(0.0, |train| train.busy_share()),
        };
        let rate = rows as f64 / seconds;
        Ok(Measurement {
            device: self.device.clone(),
            tower: tower.into(),
            batch_rows,
            transfers,
            rows,
            seconds,
            rows_per_second: rate,
            busy_share,
            stall_share: (1.0 - busy_share).max(0.0),
            cpu_seconds_per_million_rows: from.cpu.zip(to.cpu).map(|(from, to)| (to - from) / rows as f64 * 1e6),
            gflops_per_second: flops(&spec) * rate / 1e9,
            stage_nanoseconds_per_row: stages(&report),
        })
    }
}

/// Floating-point operations of the matrix products of a step, per row: two per weight forward, four backward.
fn flops(spec: &ModelSpec) -> f64 {
    let hidden = spec.tower.as_ref().map_or(&[][..], |tower| &tower.hidden);
    let widths = [&[spec.input_width()], hidden, &[1]].concat();
    widths.windows(2).map(|pair| 6.0 * (pair[0] * pair[1]) as f64).sum()
}

/// Nanoseconds per row of each stage, over the whole run with its warm-up.
fn stages(report: &Report) -> Vec<(String, f64)> {
    let own = |stage: &crate::actors::StageReport| {
        (stage.name.clone(), stage.busy.as_secs_f64() / stage.rows_in.max(1) as f64 * 1e9)
    };
    report.stages.iter().map(own).collect()
}

/// Sends batches with their rows from memory, in place of all stages before `train`.
struct MemoryFeed {
    batches: Vec<Ready>,
    left: usize,
    sent: u64,
    rows: usize,
    staleness: Staleness,
}

impl Source for MemoryFeed {
    type Out = ReadyBatch;

    fn describe(&self) -> String {
        format!("{} batches of {} rows, in turns, from memory", self.batches.len(), self.rows)
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<ReadyBatch>, Fault> {
        if self.left == 0 {
            return Ok(None);
        }
        let ticket = cx.meter().blocked_on("ticket", self.staleness.ticket(self.sent)).await;
        let lineage = Lineage { seq: self.sent, row: self.sent * self.rows as u64, ..Lineage::default() };
        let batch = self.batches[self.sent as usize % self.batches.len()].batch(lineage, ticket);
        self.left -= 1;
        self.sent += 1;
        Ok(Some(batch))
    }
}

/// Clocks and counts at one moment.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    cpu: Option<f64>,
    /// Rows of finished steps.
    rows: u64,
    device_seconds: f64,
}

/// Drops gradients, in place of `push`, and records the end of the warm-up and the end of the run.
struct Clock {
    progress: Progress,
    done: usize,
    warm_up: usize,
    all: usize,
    from: Option<Moment>,
    span: Arc<Mutex<Option<[Moment; 2]>>>,
}

impl Clock {
    fn new(warm_up: usize, batches: usize) -> Self {
        let (progress, span) = (Progress::default(), Arc::default());
        Self { progress, done: 0, warm_up, all: warm_up + batches, from: None, span }
    }

    fn now(&self) -> Moment {
        let Snapshot { rows, device_seconds, .. } = self.progress.snapshot();
        Moment { at: Instant::now(), cpu: Usage::now().map(|usage| usage.cpu_seconds), rows, device_seconds }
    }
}

impl Sink for Clock {
    type In = GradBatch;

    fn describe(&self) -> String {
        "drops the gradients".into()
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.from = Some(self.now());
        Ok(())
    }

    async fn write(&mut self, batch: GradBatch, _cx: &StageCx) -> Result<(), Fault> {
        drop(batch);
        self.done += 1;
        if self.done == self.warm_up {
            self.from = Some(self.now());
        }
        if self.done == self.all {
            *self.span.lock().expect("no holder of this lock panics") = self.from.map(|from| [from, self.now()]);
        }
        Ok(())
    }
}
