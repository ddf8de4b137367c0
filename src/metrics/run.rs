//! The meters of a training. docs/metrics.md lists them.

use std::fmt::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::{Registry, Unit};

use super::{Labelled, Labels, counter, gauge, one, text, write};
use crate::actors::{Machine, Report, StageReport};
use crate::pipelines::cluster::RunStatus;
use crate::pipelines::{
    AllTrainers, FailedTraining, NewestCheckpoint, ProcessReport, RunReport, RunningTraining, Snapshot, Trained,
};

/// The name of a process that runs alone.
const ALONE: &str = "trainer 0";

/// The meters of a run at one time.
#[derive(Clone, Debug)]
pub(crate) struct RunMetrics {
    report: RunReport,
    progress: Snapshot,
    status: Option<RunStatus>,
    /// The share of the rows that is trained on, 0 to 1, if known.
    share: Option<f64>,
    checkpoint: Option<NewestCheckpoint>,
    /// The staleness of the newest look-up, while the run goes on, and the largest.
    staleness: (Option<u64>, u64),
}

impl RunMetrics {
    /// The metrics of a run that goes on.
    pub(crate) fn of(running: &RunningTraining) -> Self {
        Self {
            report: running.run_report(),
            progress: running.progress(),
            status: running.status(),
            share: running.position().share,
            checkpoint: running.newest_checkpoint(),
            staleness: (Some(running.staleness_now()), running.staleness_observed()),
        }
    }

    /// The metrics of a run that has ended.
    pub(crate) fn of_ended(trained: &Trained, status: Option<&RunStatus>) -> Self {
        Self {
            report: trained.report.clone(),
            progress: trained.progress.clone(),
            status: status.cloned(),
            share: None,
            checkpoint: None,
            staleness: (None, trained.staleness_observed),
        }
    }

    /// The counters of an attempt that was rolled back, as far as its trainer has them.
    pub(crate) fn of_failed(failed: &FailedTraining) -> Self {
        Self {
            report: failed.report.clone(),
            progress: failed.progress.clone(),
            status: None,
            share: None,
            checkpoint: None,
            staleness: (None, 0),
        }
    }

    /// The metrics as text.
    pub(crate) fn text(&self) -> String {
        let mut registry = Registry::with_prefix("forebay");
        registry.register_collector(Box::new(self.clone()));
        text(&[&registry])
    }

    fn processes(&self) -> Vec<(&str, &Report)> {
        match self.report.processes.as_slice() {
            [] => vec![(ALONE, &self.report.report)],
            all => all.iter().map(|ProcessReport { process, report }| (process.as_str(), report)).collect(),
        }
    }
}

/// The stages or links of all processes, with their labels.
fn in_each<'a, T>(
    processes: &[(&'a str, &'a Report)],
    parts: fn(&'a Report) -> &'a [T],
    labels: fn(&'a T) -> Labels<'a>,
) -> Vec<(Labels<'a>, &'a T)> {
    let mut all = Vec::new();
    for (process, report) in processes {
        all.extend(parts(report).iter().map(|part| ([vec![("process", *process)], labels(part)].concat(), part)));
    }
    all
}

impl Collector for RunMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let e = &mut encoder;
        let Snapshot { rows: own_rows, logloss, auc, .. } = self.progress;
        let report = &self.report;
        let AllTrainers { rows, steps } = report.all_trainers;
        let AllTrainers { rows: rows_before, steps: steps_before } = report.trained_before;
        let own = |all: u64, before: u64| one(all.saturating_sub(before) as f64);
        write(e, counter("train_rows", "Rows that all trainers trained on", None), own(rows, rows_before))?;
        write(e, counter("train_steps", "Batches that all trainers trained on", None), own(steps, steps_before))?;
        write(e, gauge("model_rows", "Rows that the model was trained on", None), one(rows as f64))?;
        write(e, gauge("model_steps", "Batches that the model was trained on", None), one(steps as f64))?;
        let logloss_help = "Mean logloss of the first trainer over about its last 100,000 rows";
        write(e, gauge("train_logloss", logloss_help, None), one((own_rows > 0).then_some(logloss)))?;
        write(e, gauge("train_auc", "AUC of the first trainer over recent rows", None), one(auc))?;
        write(
            e,
            gauge("train_done", "Part of all rows that is trained on", Some(Unit::Other("ratio".into()))),
            one(self.share),
        )?;
        let stall = report.analysis.stall_share;
        write(
            e,
            gauge(
                "train_stall",
                "Part of the run in which the dense compute waited",
                Some(Unit::Other("ratio".into())),
            ),
            one(stall),
        )?;
        let (now, most) = self.staleness;
        let staleness = "Batches not applied yet at the newest look-up of the first trainer";
        write(e, gauge("train_staleness_batches", staleness, None), one(now.map(|now| now as f64)))?;
        let staleness = "The most batches not applied yet at a look-up of the first trainer";
        write(e, gauge("train_staleness_max_batches", staleness, None), one(most as f64))?;
        self.checkpoints(e)?;

        let ledger = &report.ledger;
        write(e, counter("rows_read", "Rows read", None), one(ledger.read as f64))?;
        write(
            e,
            counter("rows_delivered", "Rows that reached the end of the pipeline", None),
            one(ledger.delivered as f64),
        )?;
        let rejected = ledger.rejected.iter().map(|(reason, rows)| (vec![("reason", reason.as_str())], *rows as f64));
        write(e, counter("rows_rejected", "Rows that were left out, by reason", None), rejected)?;

        if let Some(status) = &self.status {
            write(e, gauge("windows_done", "Windows of rows that are done", None), one(status.windows_done as f64))?;
            let again = status.lost_leases as f64;
            write(e, counter("leases_reassigned", "Leases that were given out again", None), one(again))?;
        }
        self.stages(e)?;
        self.links(e)?;
        self.services(e)
    }
}

impl RunMetrics {
    fn checkpoints(&self, e: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(NewestCheckpoint { number, seconds, age, .. }) = self.checkpoint else { return Ok(()) };
        write(e, gauge("checkpoint_number", "The newest checkpoint of this process", None), one(number as f64))?;
        let took = "Time that the newest checkpoint took";
        write(e, gauge("checkpoint_duration", took, Some(Unit::Seconds)), one(seconds))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let written = "When the newest checkpoint was written, in seconds since 1970";
        write(e, gauge("checkpoint_timestamp", written, Some(Unit::Seconds)), one(now - age))
    }

    fn stages(&self, e: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let processes = self.processes();
        let cpu =
            processes.iter().map(|(process, report)| (vec![("process", *process)], report.machine.cpu.as_secs_f64()));
        write(e, counter("process_cpu", "CPU time of a process", Some(Unit::Seconds)), cpu)?;
        let machines = |bytes: fn(&Machine) -> u64| {
            let known = processes.iter().map(move |(process, report)| (*process, bytes(&report.machine)));
            known.filter(|(_, bytes)| *bytes > 0).map(|(process, bytes)| (vec![("process", process)], bytes as f64))
        };
        let (resident, peak) =
            ("Memory of a process that is in RAM", "The most memory of a process that was in RAM at one time");
        let resident_bytes = machines(|machine| machine.resident_bytes);
        write(e, gauge("process_resident_memory", resident, Some(Unit::Bytes)), resident_bytes)?;
        let peak_bytes = machines(|machine| machine.peak_bytes);
        write(e, gauge("process_peak_memory", peak, Some(Unit::Bytes)), peak_bytes)?;
        let stages = || in_each(&processes, |report| &report.stages, |stage| vec![("stage", stage.name.as_str())]);
        let each =
            |value: fn(&StageReport) -> f64| stages().into_iter().map(move |(labels, stage)| (labels, value(stage)));
        write(e, gauge("stage_replicas", "Replicas of a stage", None), each(|stage| stage.replicas as f64))?;
        write(e, counter("stage_rows_in", "Rows that a stage took", None), each(|stage| stage.rows_in as f64))?;
        write(e, counter("stage_rows_out", "Rows that a stage passed on", None), each(|stage| stage.rows_out as f64))?;
        write(
            e,
            counter("stage_out", "Bytes that a stage passed on", Some(Unit::Bytes)),
            each(|stage| stage.bytes_out as f64),
        )?;
        let fetched = stages().into_iter().filter(|(_, stage)| stage.bytes_fetched > 0);
        let fetched = fetched.map(|(labels, stage)| (labels, stage.bytes_fetched as f64));
        write(e, counter("store_read", "Bytes that a source fetched from its store", Some(Unit::Bytes)), fetched)?;
        let times = stages().into_iter().flat_map(|(labels, stage)| states(labels, stage));
        write(e, counter("stage", "Time of a stage by what it did, over its replicas", Some(Unit::Seconds)), times)?;
        let waits = stages().into_iter().flat_map(|(labels, stage)| {
            stage.waits.iter().map(move |(wait, total)| {
                let labels = [labels.as_slice(), &[("wait", wait.as_str())]].concat();
                (labels, total.total.as_secs_f64())
            })
        });
        write(e, counter("stage_waits", "Time that a stage awaited something, by what", Some(Unit::Seconds)), waits)
    }

    fn links(&self, e: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let processes = self.processes();
        let links = || {
            in_each(
                &processes,
                |report| &report.links,
                |link| vec![("from", link.from.as_str()), ("to", link.to.as_str())],
            )
        };
        let depth = links().into_iter().map(|(labels, link)| (labels, link.depth as f64));
        write(e, gauge("link_batches", "Batches that wait in a link", None), depth)?;
        let capacity = links().into_iter().map(|(labels, link)| (labels, link.capacity.max_items() as f64));
        write(e, gauge("link_capacity_batches", "Batches that a link holds at most", None), capacity)?;
        let blocked = links().into_iter().map(|(labels, link)| (labels, link.blocked.as_secs_f64()));
        write(e, counter("link_blocked", "Time that senders waited for room in a link", Some(Unit::Seconds)), blocked)
    }

    fn services(&self, e: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let shards = || self.report.services.iter().map(|shard| (vec![("shard", shard.name.as_str())], shard));
        let requests = shards().map(|(labels, shard)| (labels, shard.items_in as f64));
        write(e, counter("shard_requests", "Pulls, pushes and others that a shard answered", None), requests)?;
        let rows = shards().filter_map(|(labels, shard)| Some((labels, shard.rows_held? as f64)));
        write(e, gauge("shard_rows", "Rows of the table that a shard holds", None), rows)?;
        let busy = shards().map(|(labels, shard)| (labels, shard.busy.as_secs_f64()));
        write(e, counter("shard_busy", "Time that a shard worked", Some(Unit::Seconds)), busy)
    }
}

/// The times of a stage.
fn states<'a>(labels: Labels<'a>, stage: &StageReport) -> impl Iterator<Item = Labelled<'a>> + use<'a> {
    let times = [
        ("busy", stage.busy),
        ("waiting", stage.waiting),
        ("starved", stage.starved),
        ("blocked", stage.blocked),
        ("idle", stage.idle),
    ];
    times.into_iter().map(move |(state, time)| ([labels.as_slice(), &[("state", state)]].concat(), time.as_secs_f64()))
}
