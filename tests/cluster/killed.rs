//! Processes that are killed when it hurts most: all of a launch at once, and the trainer while it saves the model.

use std::path::Path;
use std::time::Instant;

use rustix::process::{Signal, kill_process};

use super::drained_launch::settings;
use super::jobs::{job, one_process};
use super::launch::start;
use super::processes::{LONG, Ledger, Run};
use super::supervise::children;

#[test]
fn all_processes_of_a_launch_are_killed_at_once_and_the_next_launch_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), &["placement.readers=2", "placement.ps=2"]);
    let mut run = start(&settings, &[]);
    run.until_said("launch", "INFO checkpoint ");
    let all = run.until("five processes run", |run| Some(children(run)).filter(|all| all.len() == 5));
    // It starts none again meanwhile.
    run.hold("launch");
    all.iter().for_each(|child| kill_process(child.id, Signal::KILL).unwrap());
    run.kill("launch");
    let mut run = start(&settings, &["--resume"]);
    let log = run.end_well(&["launch"]).remove(0);
    assert!(log.contains("goes on from checkpoint"), "{log}");
    assert_eq!(Ledger::of(&log).rows, 400_000, "{log}");
    let calm: Vec<String> = settings.iter().filter(|setting| !setting.starts_with("checkpoint.")).cloned().collect();
    assert_eq!(run.model().difference(&one_process(&calm).0), None, "{log}");
}

/// Whether a model is being written beside the run's: a hidden folder has a file of it.
fn saves(folder: &Path) -> bool {
    let inside = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let hidden = |path: &std::path::PathBuf| name(path).starts_with(".model");
    inside(folder).filter(hidden).any(|hidden| inside(&hidden).any(|file| !name(&file).contains("probe")))
}

/// Kills the trainer while it saves. Returns false if the model was there before the signal.
fn is_killed_while_saving(run: &mut Run) -> bool {
    run.until_said("launch", "all members joined");
    let trainer = |run: &mut Run| children(run).into_iter().find(|child| child.name == "trainer 0");
    let trainer = run.until("the trainer runs", trainer);
    let begun = Instant::now();
    while !saves(run.folder()) {
        assert!(begun.elapsed() < LONG, "it saves no model");
    }
    kill_process(trainer.id, Signal::KILL).unwrap();
    !run.folder().join("model").exists()
}

/// A bug: the trainer saved freshly initialised parameters over the model.
#[test]
fn a_trainer_that_is_killed_while_it_saves_leaves_the_model_of_an_undisturbed_run() {
    // So many weights that it takes a while to write them.
    let small = ["placement.readers=1", "placement.ps=2", "model.embedding_dim=64", "model.hidden=[512, 512]"];
    let folder = tempfile::tempdir().unwrap();
    let to = format!("checkpoint.to={}", folder.path().join("checkpoints").display());
    for more in [&["placement.dense=trainer"][..], &["placement.dense=ps"], &["checkpoint.rows=4000", to.as_str()]] {
        let settings = job(12_000, &[&small[..], more].concat());
        let mut runs = std::iter::repeat_with(|| start(&settings, &[])).take(5);
        let mut run = runs.find_map(|mut run| is_killed_while_saving(&mut run).then_some(run));
        let run = run.as_mut().expect("one of five runs is killed while it saves");
        let log = run.end_well(&["launch"]).remove(0);
        assert!(log.contains("trainer 0 was killed by signal 9 (SIGKILL): starts it again"), "{log}");
        let calm: Vec<String> = settings.iter().filter(|s| !s.starts_with("checkpoint.")).cloned().collect();
        assert_eq!(run.model().difference(&one_process(&calm).0), None, "{more:?}: {log}");
    }
}
