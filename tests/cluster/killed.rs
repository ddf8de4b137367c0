//! Processes that are killed when it hurts most: all of a launch at once, and the trainer or a ps while the model is saved.

use std::path::Path;
use std::time::Instant;

use rustix::process::{Signal, kill_process};

use super::drained_launch::settings;
use super::jobs::{job, one_process};
use super::launch::start;
use super::processes::{LONG, Ledger, Run, in_time, over_too_soon};
use super::supervise::{Child, child, until_children};

#[test]
fn all_processes_of_a_launch_are_killed_at_once_and_the_next_launch_goes_on() {
    in_time(|_| {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), &["placement.readers=2", "placement.ps=2"]);
        let mut run = start(&settings, &[]);
        run.until_said("launch", "INFO checkpoint ");
        let all = until_children(&mut run, 5);
        // It starts none again meanwhile.
        run.hold("launch");
        all.iter().for_each(Child::kill);
        run.kill("launch");
        let mut run = start(&settings, &["--resume"]);
        let log = run.end_well(&["launch"]).remove(0);
        assert!(log.contains("continues from checkpoint"), "{log}");
        assert_eq!(Ledger::of(&log).rows, 400_000, "{log}");
        let calm: Vec<String> =
            settings.iter().filter(|setting| !setting.starts_with("checkpoint.")).cloned().collect();
        assert_eq!(run.model().difference(&one_process(&calm).0), None, "{log}");
    });
}

/// Whether a model is being written beside the run's: a hidden folder has a file of it.
fn saves(folder: &Path) -> bool {
    let inside = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let hidden = |path: &std::path::PathBuf| name(path).starts_with(".model");
    inside(folder).filter(hidden).any(|hidden| inside(&hidden).any(|file| !name(&file).contains("probe")))
}

/// Kills `victim` while the trainer saves. Returns false if the model was there before the signal.
fn is_killed_while_saving(run: &mut Run, victim: &str) -> bool {
    run.until_said("launch", "all members joined");
    let victim = child(run, victim);
    let (begun, model) = (Instant::now(), run.folder().join("model"));
    while !saves(run.folder()) {
        if model.exists() {
            return false;
        }
        assert!(begun.elapsed() < LONG, "it saves no model");
    }
    kill_process(victim.id, Signal::KILL).is_ok() && !model.exists()
}

/// A setting of runs with checkpoints.
const OFTEN: &str = "checkpoint.rows=4000";

/// A bug: the trainer saved freshly initialised parameters over the model.
#[test]
fn a_trainer_that_is_killed_while_it_saves_leaves_the_model_of_an_undisturbed_run() {
    for more in ["placement.dense=trainer", "placement.dense=ps", OFTEN] {
        killed_while_the_model_is_saved("trainer 0", more);
    }
}

/// The trainer reads the rows of the tables from the ps meanwhile.
#[test]
fn a_ps_that_is_killed_while_the_model_is_saved_leaves_the_model_of_an_undisturbed_run() {
    for (victim, more) in
        [("ps 0", "placement.dense=trainer"), ("ps 1", "placement.dense=ps"), ("ps 0", OFTEN), ("ps 1", OFTEN)]
    {
        killed_while_the_model_is_saved(victim, more);
    }
}

/// Kills `victim` while the trainer saves the model of a job with the setting `more`.
fn killed_while_the_model_is_saved(victim: &str, more: &str) {
    in_time(|_| {
        // So many weights that it takes a while to write them.
        let small = ["placement.readers=1", "placement.ps=2", "model.embedding_dim=64", "model.hidden=[512, 512]"];
        let folder = tempfile::tempdir().unwrap();
        let settings = job(12_000, &[&small[..], &[more]].concat());
        let mut runs = (0..20).map(|number| {
            let to = format!("checkpoint.to={}", folder.path().join(format!("checkpoints-{number}")).display());
            let to = (more == OFTEN).then_some(to);
            start(&settings.iter().cloned().chain(to).collect::<Vec<_>>(), &[])
        });
        let mut run = runs.find_map(|mut run| is_killed_while_saving(&mut run, victim).then_some(run));
        let run = run.as_mut().expect("one of 20 runs is killed while it saves");
        let log = run.end_well(&["launch"]).remove(0);
        if !log.contains(&format!("{victim} was killed by signal 9 (SIGKILL): starts it again")) {
            over_too_soon(&log);
        }
        let calm: Vec<String> = settings.iter().filter(|s| !s.starts_with("checkpoint.")).cloned().collect();
        assert_eq!(run.model().difference(&one_process(&calm).0), None, "{victim}, {more:?}: {log}");
    });
}
