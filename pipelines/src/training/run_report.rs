//! The report of a run, of all its processes: their meters merged into one graph, and what follows from them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use forebay_actors::{Adjustment, Capacity, LedgerReport, LinkReport, Machine, Report, StageReport, Verdict};
use forebay_job::Job;
use serde::{Deserialize, Serialize};

use crate::analysis::Analysis;
use crate::metrics::process_report::ProcessReport;
use crate::stages::STOPPED_EARLY;

/// The report of a run. In JSON: the fields of [`Report`] (in a cluster, of all processes together), `analysis`, and `processes`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The stages of all processes, from the source to the sink.
    #[serde(flatten)]
    pub report: Report,
    /// What limits the run, and what to change.
    pub analysis: Analysis,
    /// The reports of the processes; empty if there is one.
    pub processes: Vec<ProcessReport>,
    /// The rows and steps of all trainers.
    #[serde(default)]
    pub all_trainers: AllTrainers,
    /// The part of `all_trainers` from before the run was resumed or rolled back, and so not of this report's time.
    #[serde(default)]
    pub trained_before: AllTrainers,
}

/// The rows and steps of all trainers of a run together, also from before the run was resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllTrainers {
    /// Rows of all epochs together: a row counts once in each epoch.
    pub rows: u64,
    /// Steps (batches). A step that several trainers take together counts once.
    pub steps: u64,
}

impl RunReport {
    /// The report of a process that trains, together with the reports of the `others`. `device` is the time that its device computed, by
    /// its own clock, if it is known.
    pub fn new(own: ProcessReport, others: Vec<ProcessReport>, job: &Job, device: Option<Duration>) -> Self {
        let mut processes = vec![own];
        processes.extend(others);
        // A trainer that finds no more rows ends before the others.
        let trainers = processes.iter().filter(|process| trains(&process.report));
        let wall = trainers.map(|process| process.report.wall).max().unwrap_or(processes[0].report.wall);
        let mut processes: Vec<_> = processes.into_iter().map(|process| over_the_run(process, wall)).collect();
        let analysis = Analysis::new(&processes.iter().collect::<Vec<_>>(), job, device);
        if processes.len() == 1 {
            let report = processes.remove(0).report;
            return Self::of(report, analysis, processes);
        }
        Self::of(merged(&processes, job), analysis, processes)
    }

    /// A report without the rows and steps of the trainers.
    fn of(report: Report, analysis: Analysis, processes: Vec<ProcessReport>) -> Self {
        let (all_trainers, trained_before) = Default::default();
        Self { report, analysis, processes, all_trainers, trained_before }
    }

    /// Rows and batches that the trainers have trained on since the run was started or resumed, by their meters.
    pub(crate) fn trained(&self) -> (u64, u64) {
        self.report.stage("train").map_or((0, 0), |train| (train.rows_out, train.items_out))
    }

    /// The machines of the other processes; none if there is one process.
    pub fn other_machines(&self) -> impl Iterator<Item = &Machine> {
        self.processes.iter().skip(1).map(|process| &process.report.machine)
    }

    /// Rows that this process trained on. After `--resume` without the rows of the earlier process.
    pub fn own_rows(&self) -> u64 {
        self.processes.first().map_or(&self.report, |own| &own.report).ledger.delivered
    }
}

/// Whether it is the report of a trainer: readers end with `ship`, and a ps has no stages.
fn trains(report: &Report) -> bool {
    report.stages.last().is_some_and(|stage| stage.name != "ship")
}

/// Makes the shares of a process that has ended relative to the run's wall time.
fn over_the_run(mut process: ProcessReport, wall: Duration) -> ProcessReport {
    let report = &mut process.report;
    if report.verdict != Verdict::Running && report.wall < wall {
        let more = wall - report.wall;
        report.wall = wall;
        let over = |stage: StageReport| stage.longer_by(more);
        report.stages = std::mem::take(&mut report.stages).into_iter().map(over).collect();
    }
    process
}

/// The stages of readers, then the stages of trainers, then all services.
fn merged(processes: &[ProcessReport], job: &Job) -> Report {
    let first = &processes[0].report;
    let (mut stages, mut links): (Vec<StageReport>, Vec<LinkReport>) = Default::default();
    let reads = |process: &&ProcessReport| process.report.stages.iter().any(|stage| stage.name == "ship");
    let (readers, trainers): (Vec<_>, Vec<_>) = processes.iter().partition(reads);
    for side in [readers, trainers] {
        let (mut own, mut between): (Vec<StageReport>, Vec<LinkReport>) = Default::default();
        for ProcessReport { report, .. } in side.iter().filter(|process| !process.report.stages.is_empty()) {
            report.stages.iter().for_each(|stage| match own.iter_mut().find(|known| known.name == stage.name) {
                Some(known) => known.merge(stage),
                None => own.push(stage.clone()),
            });
            report.links.iter().for_each(|link| match between.iter_mut().find(|known| known.to == link.to) {
                Some(known) => known.merge(link),
                None => between.push(link.clone()),
            });
        }
        if let (Some(from), Some(to)) = (stages.last(), own.first()) {
            let (capacity, items) = (Capacity::items(job.placement.in_flight), to.items_in);
            links.push(LinkReport { items, rows: to.rows_in, ..LinkReport::new(&from.name, &to.name, capacity) });
        }
        stages.extend(own);
        links.extend(between);
    }
    let mut ledger = LedgerReport::default();
    let has_readers = job.placement.readers > 0;
    for ProcessReport { report, .. } in processes {
        // Readers count all rows that were read after the training had stopped early, also those that they had sent.
        let counted = |reason: &str| !(has_readers && trains(report) && reason == STOPPED_EARLY);
        for (reason, rows) in report.ledger.rejected.iter().filter(|(reason, _)| counted(reason)) {
            *ledger.rejected.entry(reason.clone()).or_default() += rows;
        }
        ledger.unwritten += report.ledger.unwritten;
        if trains(report) {
            ledger.delivered += report.ledger.delivered;
        }
    }
    // The ledgers of the readers would be wrong: another reader reads the rows of a lost one again, and a restarted reader counts from 0.
    ledger.read = ledger.delivered + ledger.rejected_total();
    let cpu = processes.iter().map(|process| process.report.machine.cpu).sum();
    let mut threads = BTreeMap::new();
    for (name, cpu) in processes.iter().flat_map(|process| &process.report.machine.threads) {
        *threads.entry(name.clone()).or_insert(0.0) += cpu;
    }
    let memory = |bytes: fn(&Machine) -> u64| processes.iter().map(|process| bytes(&process.report.machine)).sum();
    let (resident_bytes, peak_bytes) = (memory(|machine| machine.resident_bytes), memory(|machine| machine.peak_bytes));
    Report {
        name: "run".into(),
        verdict: first.verdict.clone(),
        wall: first.wall,
        // Hosts have cores of their own: each process says what its cores did.
        machine: Machine { cpu, threads, resident_bytes, peak_bytes, core_seconds: None, ..first.machine.clone() },
        stages,
        links,
        services: processes.iter().flat_map(|process| process.report.services.iter().cloned()).collect(),
        ledger,
        adjustments: adjustments(processes),
    }
}

/// The changes of the tuners of all processes, in the order of time.
fn adjustments(processes: &[ProcessReport]) -> Vec<Adjustment> {
    let of = |process: &ProcessReport| {
        let at = process.process.clone();
        let all = process.report.adjustments.clone().into_iter();
        all.map(move |adjustment| Adjustment { process: Some(at.clone()), ..adjustment }).collect::<Vec<_>>()
    };
    let mut all: Vec<Adjustment> = processes.iter().flat_map(of).collect();
    all.sort_by_key(|adjustment| adjustment.at);
    all
}

impl Deref for RunReport {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.report
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.report, self.analysis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, stages: &[(&str, u64, u64)], ledger: LedgerReport) -> ProcessReport {
        let stage = |&(name, rows_out, items_out): &(&str, u64, u64)| StageReport {
            name: name.into(),
            replicas: 1,
            rows_out,
            items_out,
            ..StageReport::default()
        };
        let report = Report {
            name: name.into(),
            verdict: Verdict::Finished,
            wall: Duration::from_secs(9),
            machine: Machine::default(),
            stages: stages.iter().map(stage).collect(),
            links: Vec::new(),
            services: Vec::new(),
            ledger,
            adjustments: Vec::new(),
        };
        ProcessReport { process: name.into(), report }
    }

    fn trainer(rank: u64, rows: u64) -> ProcessReport {
        let ledger = LedgerReport { read: rows, delivered: rows, ..LedgerReport::default() };
        process(&format!("trainer {rank}"), &[("receive", rows, 9), ("train", rows, 8), ("push", 0, 0)], ledger)
    }

    #[test]
    fn rows_of_a_lost_reader_count_once() {
        let job = Job::from_toml("", &[]).unwrap();
        let reader = |rank: u64, read: u64, bad: u64| {
            let rejected = [("bad".to_owned(), bad)].into();
            let ledger = LedgerReport { read, rejected, unwritten: bad, ..LedgerReport::default() };
            process(&format!("reader {rank}"), &[("read", read, 9), ("ship", read - bad, 9)], ledger)
        };
        // The second one was lost with 300 rows, which the first one read again.
        let others = vec![reader(0, 510, 10), reader(1, 300, 0)];
        let ledger = RunReport::new(trainer(0, 500), others, &job, None).report.ledger;
        assert_eq!((ledger.read, ledger.delivered, ledger.unwritten), (510, 500, 10));
    }

    /// The trainer has 40 of the 100 rows that the reader had sent.
    #[test]
    fn rows_that_were_read_after_the_training_had_stopped_early_count_once() {
        let left_out = |rows: u64| [(STOPPED_EARLY.to_owned(), rows)].into();
        let apart = Job::from_toml("placement.readers = 1", &[]).unwrap();
        let reader = LedgerReport { read: 600, delivered: 500, rejected: left_out(100), ..LedgerReport::default() };
        let reader = process("reader 0", &[("read", 600, 9), ("ship", 600, 9)], reader);
        let mut stopped = trainer(0, 500);
        (stopped.report.ledger.read, stopped.report.ledger.rejected) = (540, left_out(40));
        let ledger = RunReport::new(stopped.clone(), vec![reader], &apart, None).report.ledger;
        assert_eq!((ledger.read, ledger.delivered, ledger.rejected_total()), (600, 500, 100));
        // A trainer that reads by itself has none of its rows counted by others.
        let ps = process("ps 0", &[], LedgerReport::default());
        let here = Job::from_toml("placement.ps = 1", &[]).unwrap();
        let ledger = RunReport::new(stopped, vec![ps], &here, None).report.ledger;
        assert_eq!((ledger.read, ledger.delivered, ledger.rejected_total()), (540, 500, 40));
    }

    #[test]
    fn the_rows_of_all_trainers_count() {
        let job = Job::from_toml("", &[]).unwrap();
        let reader = process("reader 0", &[("read", 900, 9), ("ship", 900, 9)], LedgerReport::default());
        let report = RunReport::new(trainer(0, 500), vec![reader, trainer(1, 300)], &job, None);
        assert_eq!(report.trained(), (800, 16));
        assert_eq!(RunReport::new(trainer(0, 500), Vec::new(), &job, None).trained(), (500, 8));
    }
}
