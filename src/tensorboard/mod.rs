//! A run as event files of TensorBoard, for `--tensorboard FOLDER`: quality, speed and the times of the stages while it goes on,
//! and its evaluations. Read on: `event_file.rs` (the format), `messages.rs` (its messages).

mod event_file;
mod messages;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Fault;
use crate::connectors::staged;
use crate::pipelines::{
    Evaluation, EvaluationPoint, RunReport, RunningTraining, Snapshot, Trained, warn_if_it_may_pass,
};
use crate::report::{Sample, check_local, probe_room};

use event_file::EventFile;

/// The least time between two samples.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);

/// The time between two samples is at least this part of the run so far: a run of a day has some 5,000 samples.
const PART_OF_RUN: u32 = 1000;

/// Writes event files.
pub(crate) struct TensorBoard {
    folder: PathBuf,
    state: RefCell<State>,
}

/// The event file of a run.
enum Events {
    /// The first sample makes the file: a job that is refused leaves no file.
    NotBegun,
    File(EventFile),
    /// The file could not be written: the run goes on without it.
    Failed,
}

struct State {
    file: Events,
    /// Whether the file says from which step training begins or goes on.
    started: bool,
    began: Instant,
    next: Instant,
    /// The newest sample and its step.
    before: Option<(u64, Sample)>,
    /// Evaluations that are written.
    evaluations: usize,
}

impl TensorBoard {
    /// Makes the folder and a file in it, and removes both, so that a fault comes before the training. `goes_on`: the run may have trained
    /// before, so a full disk is only a warning.
    ///
    /// # Errors
    /// The folder or a file in it cannot be written. The disk is full, unless `goes_on`.
    pub(crate) fn start(folder: &Path, goes_on: bool) -> Result<TensorBoard, Fault> {
        Self::probe(folder, goes_on)?;
        let (began, next) = (Instant::now(), Instant::now());
        let state = State { file: Events::NotBegun, started: false, began, next, before: None, evaluations: 0 };
        Ok(TensorBoard { folder: folder.into(), state: RefCell::new(state) })
    }

    /// Fails if [`start`](Self::start) in another process would fail. Leaves neither a file nor a folder that was not there.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn probe(folder: &Path, goes_on: bool) -> Result<(), Fault> {
        check_local(folder, "--tensorboard")?;
        if fs::metadata(folder).is_ok_and(|there| !there.is_dir()) {
            let folder = folder.display();
            return Err(Fault::user(format!(
                "--tensorboard is {folder}, which is not a folder: name a folder for event files"
            )));
        }
        let cannot = |e| cannot_write(folder, e);
        let probed = staged::probe_folder(folder, cannot, || probe_room(folder).map_err(cannot));
        warn_if_it_may_pass(probed, goes_on, "event files could not be written")
    }

    /// Writes a sample if it is time for one, and evaluations that are new.
    pub(crate) fn follow(&self, running: &RunningTraining) {
        let now = Instant::now();
        let points = running.evaluations().map(|history| history.points).unwrap_or_default();
        if !self.state.borrow().started {
            // Evaluations before the run was resumed are in the files of the earlier session.
            let steps = running.progress().steps;
            self.state.borrow_mut().evaluations = points.iter().filter(|point| point.steps < steps).count();
        }
        self.evaluated(points);
        let is_due = now >= self.state.borrow().next;
        if is_due {
            self.sample(now, &running.progress(), &running.run_report());
        }
    }

    /// Writes the last sample of a training and the quality of its model, if they are known.
    pub(crate) fn end(&self, trained: &Trained, evaluation: Option<&Evaluation>) {
        match (trained.evaluations(), evaluation) {
            // The points include the evaluation of the last model, unless another model was the best.
            (Some(history), _) => self.evaluated(history.points),
            (None, Some(evaluation)) => self.write(trained.progress.steps, quality_scalars(evaluation)),
            (None, None) => {}
        }
        let of_labels = evaluation.map_or(&[][..], |evaluation| &evaluation.labels);
        let of_labels = of_labels.iter().filter(|of_label| of_label.is_measured());
        let scalars: Vec<(String, f64)> = of_labels.flat_map(label_scalars).collect();
        if !scalars.is_empty() {
            self.write(steps_of_saved(trained), scalars);
        }
        self.sample(Instant::now(), &trained.progress, &trained.report);
    }

    fn sample(&self, now: Instant, progress: &Snapshot, report: &RunReport) {
        let sample = Sample::of(progress, report);
        let mut state = self.state.borrow_mut();
        // After a rollback the run continues from an earlier step.
        if state.before.as_ref().is_some_and(|(step, _)| progress.steps < *step) {
            (state.started, state.before) = (false, None);
        }
        state.next = now + LEAST_INTERVAL.max(state.began.elapsed() / PART_OF_RUN);
        let mut scalars = vec![("train/rows".into(), sample.all_rows as f64)];
        if sample.rows > 0 {
            scalars.push(("train/logloss".into(), sample.logloss));
        }
        scalars.extend(sample.auc.map(|auc| ("train/auc".into(), auc)));
        scalars.extend(state.before.iter().flat_map(|(_, before)| since(before, &sample)));
        scalars.extend(sample.links.iter().map(|(to, depth)| (format!("waiting batches/{to}"), *depth as f64)));
        state.before = Some((progress.steps, sample));
        drop(state);
        self.write(progress.steps, scalars);
    }

    fn evaluated(&self, points: Vec<EvaluationPoint>) {
        let known = std::mem::replace(&mut self.state.borrow_mut().evaluations, points.len());
        for point in points.iter().skip(known) {
            self.write(point.steps, point_scalars(point));
        }
    }

    /// A failure is only a warning, which is logged once: it must not harm the run.
    fn write(&self, step: u64, scalars: Vec<(String, f64)>) {
        let state = &mut *self.state.borrow_mut();
        let try_write = || {
            if let Events::NotBegun = state.file {
                state.file = Events::File(EventFile::new(&self.folder)?);
            }
            let Events::File(file) = &mut state.file else { return Ok(()) };
            if !state.started {
                file.start(step)?;
            }
            file.scalars(step, scalars)
        };
        let written: std::io::Result<()> = try_write();
        if let Err(e) = written {
            tracing::warn!("no more event files for TensorBoard: cannot write to {}: {e}", self.folder.display());
            state.file = Events::Failed;
        }
        state.started = true;
    }
}

/// Steps of the model that is saved: the best one, or the last.
fn steps_of_saved(trained: &Trained) -> u64 {
    let kept = trained.evaluations().and_then(|history| history.points.into_iter().nth(history.kept?));
    kept.map_or(trained.progress.steps, |point| point.steps)
}

/// The quality on `data.eval` at a point.
fn point_scalars(point: &EvaluationPoint) -> Vec<(String, f64)> {
    let recall = point.recall.map(|at| (format!("evaluation/recall@{}", at.k), at.recall));
    let named = [("auc", point.auc), ("logloss", point.logloss), ("gauc", point.gauc), ("mrr", point.mrr)];
    named_scalars(named).chain(recall).collect()
}

/// The quality on `data.eval`.
fn quality_scalars(evaluation: &Evaluation) -> Vec<(String, f64)> {
    let gauc = evaluation.gauc.as_ref().and_then(|gauc| gauc.auc);
    let mrr = evaluation.retrieval.as_ref().map(|retrieval| retrieval.mrr);
    let recall = evaluation.retrieval.iter().flat_map(|retrieval| &retrieval.recall);
    let recall = recall.map(|at| (format!("evaluation/recall@{}", at.k), at.recall));
    let named = [("auc", evaluation.auc), ("logloss", evaluation.logloss()), ("gauc", gauc), ("mrr", mrr)];
    named_scalars(named).chain(recall).collect()
}

fn named_scalars(named: [(&'static str, Option<f64>); 4]) -> impl Iterator<Item = (String, f64)> {
    named.into_iter().filter_map(|(name, value)| Some((format!("evaluation/{name}"), value?)))
}

/// The same for one of several labels.
fn label_scalars(evaluation: &Evaluation) -> Vec<(String, f64)> {
    let label = evaluation.label.as_deref().unwrap_or_default();
    let named = quality_scalars(evaluation);
    named.into_iter().map(|(name, value)| (format!("{name}/{label}"), value)).collect()
}

/// Rates and shares of the time between two samples.
fn since(before: &Sample, now: &Sample) -> Vec<(String, f64)> {
    let seconds = now.seconds - before.seconds;
    if seconds <= 0.0 {
        return Vec::new();
    }
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let mut scalars = vec![
        ("speed/rows per second".into(), rate(now.all_rows, before.all_rows)),
        ("speed/bytes read per second".into(), rate(now.bytes, before.bytes)),
        ("speed/store bytes per second".into(), rate(now.store_bytes, before.store_bytes)),
    ];
    for now in &now.stages {
        let Some(before) = before.stages.iter().find(|stage| stage.name == now.name) else { continue };
        let wall = now.wall - before.wall;
        if wall > 0.0 {
            let share = |now: f64, before: f64| ((now - before) / wall).clamp(0.0, 1.0);
            let occupied = share(now.busy + now.waiting, before.busy + before.waiting);
            scalars.push((format!("occupied/{}", now.name), occupied));
            scalars.push((format!("starved/{}", now.name), share(now.starved, before.starved)));
            scalars.push((format!("blocked/{}", now.name), share(now.blocked, before.blocked)));
        }
    }
    scalars
}

fn cannot_write(folder: &Path, e: std::io::Error) -> Fault {
    staged::fault(folder.display(), "cannot write event files to", e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::StageTimes;

    #[test]
    fn a_full_disk_ends_the_event_files_and_not_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let board = TensorBoard::start(dir.path(), false).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "it begins with the first sample");
        board.write(1, vec![("train/rows".into(), 500.0)]);
        assert!(matches!(board.state.borrow().file, Events::File(_)));
        board.state.borrow_mut().file = Events::File(EventFile::over(std::path::Path::new("/dev/full")).unwrap());
        board.write(2, vec![("train/rows".into(), 1000.0)]);
        assert!(matches!(board.state.borrow().file, Events::Failed));
        board.write(3, Vec::new());
    }

    #[test]
    fn a_folder_that_is_removed_ends_the_event_files_and_not_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("events");
        let board = TensorBoard::start(&folder, false).unwrap();
        board.write(1, Vec::new());
        fs::remove_dir_all(&folder).unwrap();
        board.write(2, Vec::new());
        assert!(matches!(board.state.borrow().file, Events::Failed));
    }

    #[test]
    fn rates_and_shares_are_those_since_the_sample_before() {
        let sample = |seconds, all_rows, bytes, times: [f64; 4]| {
            let [busy, starved, blocked, wall] = times;
            let name = "parse".to_owned();
            let stages = vec![StageTimes { name, replicas: 1, busy, waiting: 0.0, starved, blocked, wall }];
            let links = Vec::new();
            Sample {
                seconds,
                rows: 0,
                all_rows,
                bytes,
                store_bytes: 2 * bytes,
                table_rows: 0,
                logloss: 0.0,
                auc: None,
                stages,
                links,
            }
        };
        let before = sample(0.0, 100, 0, [1.0, 0.0, 0.0, 1.0]);
        let scalars = since(&before, &sample(2.0, 400, 50, [2.0, 3.0, 0.0, 5.0]));
        let expected = [
            ("speed/rows per second", 150.0),
            ("speed/bytes read per second", 25.0),
            ("speed/store bytes per second", 50.0),
            ("occupied/parse", 0.25),
            ("starved/parse", 0.75),
            ("blocked/parse", 0.0),
        ];
        assert_eq!(scalars, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(since(&before, &sample(0.0, 400, 50, [2.0, 3.0, 0.0, 5.0])), [], "no time has passed");
    }
}
