//! The part of `report.json` that a plan needs. Refuses reports that lack a part of it.

use forebay_actors::{Fault, Report, StageReport, Verdict, counted};
use forebay_job::Job;
use serde::Deserialize;

use crate::metrics::process_report::ProcessReport;

/// The version of the fields that a plan reads.
const VERSION: u64 = 1;

/// Fewer batches than this say little about the cost of one.
const FEW_BATCHES: u64 = 20;

/// A measured run: what `forebay train --report` wrote.
#[derive(Clone, Debug, Deserialize)]
pub struct RunProfile {
    #[serde(flatten)]
    pub(super) report: Report,
    #[serde(default)]
    pub(super) processes: Vec<ProcessReport>,
    /// The job that it ran.
    pub(super) settings: Job,
    pub(super) progress: Counts,
    #[serde(default)]
    history: Option<Samples>,
    #[serde(default)]
    pub(super) look_ahead: Option<Pulled>,
    /// Absent in reports of older programs.
    #[serde(default)]
    pub(super) tables: Vec<MeasuredTable>,
    #[serde(default)]
    pub(super) saved: Option<SavedModel>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Counts {
    pub(super) rows: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct Samples {
    seconds: Vec<f64>,
    rows: Vec<u64>,
    table_rows: Vec<u64>,
}

/// A table at the end of the run.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct MeasuredTable {
    pub(super) name: String,
    pub(super) rows: u64,
}

/// The counts of look-ahead.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Pulled {
    pub(super) keys: u64,
    pub(super) rows_pulled: u64,
}

/// The model folder.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct SavedModel {
    pub(super) seconds: f64,
    pub(super) bytes: u64,
}

impl RunProfile {
    /// Reads a report.
    ///
    /// # Errors
    /// User: the text is no report, or it is the report of an older program, of a run that failed, or of a run that is too short; names the
    /// field.
    pub fn from_json(text: &str) -> Result<Self, Fault> {
        let no = |why: String| Err(Fault::user(why));
        let json: serde_json::Value = match serde_json::from_slice(text.as_bytes()) {
            Ok(json) => json,
            Err(e) => return no(format!("it is not JSON: {e}; expected the report.json of `forebay train --report`")),
        };
        if json.get("stages").is_none() || json.get("verdict").is_none() {
            return no("it has no stages: expected the report.json of `forebay train --report`, or of `launch`".into());
        }
        if let Some(message) = json["verdict"]["message"].as_str() {
            return no(format!("its run failed, so its costs are not those of a whole run: {message}"));
        }
        match json["version"].as_u64() {
            None => return no("it has no version: an older program wrote it; run the job again with this one".into()),
            Some(VERSION) => {}
            Some(other) => {
                return no(format!("it has version {other}, expected {VERSION}: run the job again with this program"));
            }
        }
        let profile: Self = match serde_json::from_slice(text.as_bytes()) {
            Ok(profile) => profile,
            Err(e) => return no(format!("it is not whole: {e}")),
        };
        profile.check()?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), Fault> {
        let no = |why: String| Err(Fault::user(why));
        if !matches!(self.report.verdict, Verdict::Finished | Verdict::Drained) {
            return no("its run has not ended: expected the report that is written at the end".into());
        }
        for name in ["lookup", "train", "push"] {
            if self.stage(name).is_none() {
                return no(format!("it has no stage `{name}`: expected the report of a training"));
            }
        }
        let batches = self.batches();
        if batches < FEW_BATCHES {
            let had = counted(batches, "batch");
            return no(format!("its run had {had}, expected at least {FEW_BATCHES}: train on more rows"));
        }
        let cores = self.reports().map(|(_, report)| report.machine.cores).min().unwrap_or(0);
        if cores == 0 || self.report.machine.cpu.is_zero() {
            return no("it has no `machine.cpu`: the run was too short, or on a system without /proc".into());
        }
        if self.shards().next().is_none() {
            return no("it has no `services`: the meters of its ps did not come; run the job again".into());
        }
        Ok(())
    }

    /// Name and meters of each process. One process is a trainer.
    pub(super) fn reports(&self) -> impl Iterator<Item = (&str, &Report)> {
        let alone = self.processes.is_empty().then_some(("trainer 0", &self.report));
        alone.into_iter().chain(self.processes.iter().map(|process| (process.process.as_str(), &process.report)))
    }

    pub(super) fn stage(&self, name: &str) -> Option<&StageReport> {
        self.report.stage(name)
    }

    /// The shards of the table.
    pub(super) fn shards(&self) -> impl Iterator<Item = &StageReport> {
        self.report.services.iter().filter(|service| service.rows_held.is_some())
    }

    pub(super) fn batches(&self) -> u64 {
        self.stage("train").map_or(0, |stage| stage.items_in)
    }

    /// Rows that all trainers trained on in this part of the run: the rows that all meters are about.
    pub(super) fn rows(&self) -> f64 {
        self.stage("train").map_or(0.0, |stage| stage.rows_in as f64)
    }

    /// Rows that the first trainer trained on in this part of the run.
    fn own_rows(&self) -> u64 {
        let own = self.reports().next().and_then(|(_, report)| report.stage("train"));
        own.map_or(0, |stage| stage.rows_in)
    }

    /// How many rows all trainers trained on for each row of the first one, which counts only its own.
    fn rows_of_all(&self) -> f64 {
        match self.own_rows() {
            0 => 1.0,
            own => self.rows() / own as f64,
        }
    }

    /// Rows that all trainers trained on, including rows before the run was resumed.
    pub(super) fn rows_since_the_start(&self) -> f64 {
        (self.progress.rows as f64 * self.rows_of_all()).max(self.rows())
    }

    /// Rows of the table at the end.
    pub(super) fn table_rows(&self) -> f64 {
        self.shards().filter_map(|shard| shard.rows_held).sum::<u64>() as f64
    }

    /// Rows that all trainers trained on and rows of the table, in the first pass over the data; the end of the run last, if it had one
    /// pass.
    pub(super) fn growth(&self) -> Vec<(f64, f64)> {
        let epochs = self.settings.data.epochs.max(1) as f64;
        let (pass, of_all) = (self.rows_since_the_start() / epochs, self.rows_of_all());
        let Some(Samples { rows, table_rows, .. }) = &self.history else { return Vec::new() };
        let samples = rows.iter().zip(table_rows).map(|(&rows, &keys)| (rows as f64 * of_all, keys as f64));
        let mut samples: Vec<_> = samples.filter(|&(rows, keys)| rows > 0.0 && keys > 0.0 && rows <= pass).collect();
        if epochs == 1.0 {
            samples.push((pass, self.table_rows()));
        }
        samples
    }

    /// Seconds from the start of the pipeline to the first rows trained on, to a fifth of a second; 0 if the run was too short to tell.
    pub(super) fn start_seconds(&self) -> f64 {
        let Some(Samples { seconds, rows, .. }) = &self.history else { return 0.0 };
        let before = self.progress.rows.saturating_sub(self.own_rows());
        let first = rows.iter().position(|&rows| rows > before).filter(|&at| at > 0);
        first.and_then(|at| seconds.get(at - 1)).copied().unwrap_or(0.0)
    }
}
