//! A run as event files of TensorBoard, for `--tensorboard FOLDER`: quality, speed and the times of the stages while it goes on,
//! and its evaluations. Read on: `event_file.rs` (the format), `messages.rs` (its messages).

mod event_file;
mod messages;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Fault;
use crate::actors::Report;
use crate::connectors::staged;
use crate::pipelines::{Evaluation, EvaluationPoint, RunningTraining, Snapshot, Trained};

use event_file::EventFile;

/// The least time between two samples.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);

/// The time between two samples is at least this part of the run so far: a run of a day has some 5,000.
const PART_OF_RUN: u32 = 1000;

/// Writes event files.
pub(crate) struct TensorBoard {
    folder: PathBuf,
    state: RefCell<State>,
}

struct State {
    /// `None` after it could not be written: the run goes on without.
    file: Option<EventFile>,
    /// The step of the newest event since training began or went on; none before the first.
    step: Option<u64>,
    /// The step of the newest sample.
    sampled: Option<u64>,
    began: Instant,
    next: Instant,
    /// At the newest sample: when, rows, bytes of the source, and the times of each stage.
    before: Option<Sample>,
    /// Evaluations that are written.
    evaluations: usize,
}

/// Meters that only grow.
struct Sample {
    at: Instant,
    rows: u64,
    bytes: u64,
    stages: BTreeMap<String, StageSeconds>,
}

/// Seconds of a stage since the run began, over all replicas.
struct StageSeconds {
    occupied: f64,
    starved: f64,
    blocked: f64,
    wall: f64,
}

impl TensorBoard {
    /// Makes the folder, and an event file in it: what cannot be written is found before the training.
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub(crate) fn start(folder: &Path) -> Result<TensorBoard, Fault> {
        let file = fs::create_dir_all(folder)
            .and_then(|()| EventFile::new(folder))
            .map_err(|e| staged::fault(folder.display(), "cannot write event files to", e))?;
        let (began, next) = (Instant::now(), Instant::now());
        let state = State { file: Some(file), step: None, sampled: None, began, next, before: None, evaluations: 0 };
        Ok(TensorBoard { folder: folder.into(), state: RefCell::new(state) })
    }

    /// Fails if [`start`](Self::start) of another process would. Leaves no file.
    ///
    /// # Errors
    /// As those of `start`.
    pub(crate) fn probe(folder: &Path) -> Result<(), Fault> {
        fs::create_dir_all(folder)
            .and_then(|()| tempfile::tempfile_in(folder).map(drop))
            .map_err(|e| staged::fault(folder.display(), "cannot write event files to", e))
    }

    /// Writes a sample if it is time for one, and evaluations that are new.
    pub(crate) fn follow(&self, running: &RunningTraining) {
        let now = Instant::now();
        let points = running.evaluations().map(|history| history.points).unwrap_or_default();
        let is_first = self.state.borrow().step.is_none();
        if is_first {
            // Those before the run was resumed are in the files of the earlier session.
            let steps = running.progress().steps;
            self.state.borrow_mut().evaluations = points.iter().filter(|point| point.steps < steps).count();
        }
        self.evaluated(points);
        let is_due = now >= self.state.borrow().next;
        if is_due {
            self.sample(now, running.progress(), &running.run_report());
        }
    }

    /// Writes the last sample of a training and the quality of its model, if they are known.
    pub(crate) fn end(&self, trained: &Trained, evaluation: Option<&Evaluation>) {
        match (trained.evaluations(), evaluation) {
            // With that of the last model, unless another one was the best.
            (Some(history), _) => self.evaluated(history.points),
            (None, Some(Evaluation { auc, logloss, gauc, .. })) => {
                let gauc = gauc.as_ref().and_then(|gauc| gauc.auc);
                self.write(trained.progress.steps, quality_scalars(*auc, *logloss, gauc));
            }
            (None, None) => {}
        }
        self.sample(Instant::now(), trained.progress.clone(), &trained.report.report);
    }

    fn sample(&self, now: Instant, progress: Snapshot, report: &Report) {
        let mut state = self.state.borrow_mut();
        // A run that rolled back goes on from an earlier step.
        if state.sampled.is_some_and(|step| progress.steps < step) {
            (state.step, state.before) = (None, None);
        }
        state.sampled = Some(progress.steps);
        state.next = now + LEAST_INTERVAL.max(state.began.elapsed() / PART_OF_RUN);
        let sample = Sample::of(now, progress.rows, report);
        let before = state.before.replace(sample);
        let mut scalars = vec![("train/rows".into(), progress.rows as f64)];
        if progress.rows > 0 {
            scalars.push(("train/logloss".into(), progress.logloss));
        }
        scalars.extend(progress.auc.map(|auc| ("train/auc".into(), auc)));
        if let (Some(before), Some(after)) = (&before, &state.before) {
            scalars.extend(after.since(before));
        }
        scalars.extend(report.links.iter().map(|link| (format!("waiting batches/{}", link.to), link.depth as f64)));
        drop(state);
        self.write(progress.steps, scalars);
    }

    fn evaluated(&self, points: Vec<EvaluationPoint>) {
        let known = std::mem::replace(&mut self.state.borrow_mut().evaluations, points.len());
        for point in points.iter().skip(known) {
            self.write(point.steps, quality_scalars(point.auc, point.logloss, point.gauc));
        }
    }

    /// A failure is a warning, once: it must not harm the run.
    fn write(&self, step: u64, scalars: Vec<(String, f64)>) {
        let state = &mut *self.state.borrow_mut();
        let Some(file) = &mut state.file else { return };
        let started = if state.step.is_none() { file.start(step) } else { Ok(()) };
        if let Err(e) = started.and_then(|()| file.scalars(step, scalars)) {
            tracing::warn!("no more event files for TensorBoard: cannot write to {}: {e}", self.folder.display());
            state.file = None;
        }
        state.step = Some(step);
    }
}

/// The quality on `data.eval`.
fn quality_scalars(auc: Option<f64>, logloss: f64, gauc: Option<f64>) -> Vec<(String, f64)> {
    let named = [("auc", auc), ("logloss", Some(logloss)), ("gauc", gauc)];
    named.into_iter().filter_map(|(name, value)| Some((format!("evaluation/{name}"), value?))).collect()
}

impl Sample {
    fn of(at: Instant, rows: u64, report: &Report) -> Sample {
        let stages = report.stages.iter().map(|stage| {
            let seconds = StageSeconds {
                occupied: (stage.busy + stage.waiting).as_secs_f64(),
                starved: stage.starved.as_secs_f64(),
                blocked: stage.blocked.as_secs_f64(),
                wall: stage.wall.as_secs_f64(),
            };
            (stage.name.clone(), seconds)
        });
        let bytes = report.stages.first().map_or(0, |source| source.bytes_out);
        Sample { at, rows, bytes, stages: stages.collect() }
    }

    /// Rates and shares of the time between two samples.
    fn since(&self, before: &Sample) -> Vec<(String, f64)> {
        let seconds = (self.at - before.at).as_secs_f64();
        if seconds <= 0.0 {
            return Vec::new();
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let mut scalars = vec![
            ("speed/rows per second".into(), rate(self.rows, before.rows)),
            ("speed/bytes read per second".into(), rate(self.bytes, before.bytes)),
        ];
        for (name, now) in &self.stages {
            let Some(before) = before.stages.get(name) else { continue };
            let wall = now.wall - before.wall;
            if wall > 0.0 {
                let share = |now: f64, before: f64| ((now - before) / wall).clamp(0.0, 1.0);
                scalars.push((format!("occupied/{name}"), share(now.occupied, before.occupied)));
                scalars.push((format!("starved/{name}"), share(now.starved, before.starved)));
                scalars.push((format!("blocked/{name}"), share(now.blocked, before.blocked)));
            }
        }
        scalars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_ends_the_event_files_and_not_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let board = TensorBoard::start(dir.path()).unwrap();
        board.write(1, vec![("train/rows".into(), 500.0)]);
        assert!(board.state.borrow().file.is_some());
        board.state.borrow_mut().file = EventFile::over(std::path::Path::new("/dev/full")).ok();
        board.write(2, vec![("train/rows".into(), 1000.0)]);
        assert!(board.state.borrow().file.is_none());
        board.write(3, Vec::new());
    }

    #[test]
    fn rates_and_shares_are_those_since_the_sample_before() {
        let at = Instant::now();
        let sample = |seconds: u64, rows, bytes, times: [f64; 4]| {
            let [occupied, starved, blocked, wall] = times;
            let stages = BTreeMap::from([("parse".to_owned(), StageSeconds { occupied, starved, blocked, wall })]);
            Sample { at: at + Duration::from_secs(seconds), rows, bytes, stages }
        };
        let before = sample(0, 100, 0, [1.0, 0.0, 0.0, 1.0]);
        let scalars = sample(2, 400, 50, [2.0, 3.0, 0.0, 5.0]).since(&before);
        let expected = [
            ("speed/rows per second", 150.0),
            ("speed/bytes read per second", 25.0),
            ("occupied/parse", 0.25),
            ("starved/parse", 0.75),
            ("blocked/parse", 0.0),
        ];
        assert_eq!(scalars, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(sample(0, 400, 50, [2.0, 3.0, 0.0, 5.0]).since(&before), [], "no time has passed");
    }
}
