//! Two processes continue from one checkpoint, in one folder.

use forebay::pipelines::RunEnd;
use forebay::pipelines::model_folder::Manifest;
use rustix::process::Signal;

use super::jobs::{ENDLESS, Job, Running};

/// The starts of the run that wrote the checkpoints in its folder, by number.
fn starts(job: &Job) -> Vec<u64> {
    let read = |name: &String| {
        let text = std::fs::read(job.checkpoints().join(name)).ok()?;
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["start"].as_u64()
    };
    job.files().iter().filter(|name| name.ends_with(".json")).filter_map(read).collect()
}

/// What the run says whose checkpoint is not the newest.
const REFUSED: &str = "was written by another process that goes on with the same run";

/// The index of the run that says first that it makes no more checkpoints.
fn loser(runs: &[Running; 2]) -> usize {
    let begun = std::time::Instant::now();
    loop {
        if let Some(loser) = runs.iter().position(|run| run.said().contains(REFUSED)) {
            return loser;
        }
        assert!(begun.elapsed().as_secs() < 120, "{}{}", runs[0].said(), runs[1].said());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A bug: both runs made checkpoints until they ended, each removed the checkpoints of the other, and neither reported it.
#[test]
fn one_of_two_runs_in_a_folder_makes_no_more_checkpoints_and_says_so() {
    let job = Job::new("parquet", &[ENDLESS, "checkpoint.rows=4000"]);
    job.kill_after(2, &[]);
    let mut runs = [job.start(&["--resume"]), job.start(&["--resume"])];
    let loser = loser(&runs);
    // From here on all checkpoints are of one start. Four more push out the earlier ones, except one that builds on another full
    // checkpoint.
    let next = job.newest() + 4;
    job.until_checkpoint(next, &mut runs[1 - loser]);
    // A bug: it tried and failed again at the time of each checkpoint.
    let said = runs[loser].said();
    assert_eq!(said.matches(REFUSED).count(), 1, "{said}");
    assert!(said.contains("a checkpoint failed, and the run goes on and makes no more"), "{said}");
    for run in runs {
        run.signal(Signal::KILL);
        assert_eq!(run.end().code, None, "both go on");
    }
    // No run removes any of them meanwhile.
    let starts = starts(&job);
    let newest = &starts[starts.len() - 3..];
    assert!(newest.iter().all(|start| *start == newest[0] && *start != 0), "{starts:?}");
}

/// A bug: it ended at once, and all that it had trained was lost.
#[test]
fn the_one_that_makes_no_more_checkpoints_saves_its_model_when_it_is_asked_to_shut_down() {
    let job = Job::new("parquet", &[ENDLESS, "checkpoint.rows=4000"]);
    job.kill_after(2, &[]);
    let before = job.rows_of_newest();
    let runs = [job.start(&["--resume"]), job.start(&["--resume"])];
    let loser = loser(&runs);
    let [first, second] = runs;
    let (told, other) = if loser == 0 { (first, second) } else { (second, first) };
    told.signal(Signal::TERM);
    let partial = job.folder.path().join("model.partial");
    let saved = format!("their model is saved at {}", partial.display());
    told.end().with(2).saying(&["the last checkpoint is not written", &saved, REFUSED]);
    let training = Manifest::read(partial).unwrap().training.unwrap();
    assert_eq!(training.ended, RunEnd::Drained);
    assert!(training.rows > before, "{} rows, and the checkpoint had {before}", training.rows);
    other.signal(Signal::KILL);
    assert_eq!(other.end().code, None, "it goes on");
}
