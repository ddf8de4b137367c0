//! Two processes go on from one checkpoint, in one folder.

use rustix::process::Signal;

use super::jobs::{ENDLESS, Job};

/// The starts of the run that wrote the checkpoints in its folder, by number.
fn starts(job: &Job) -> Vec<u64> {
    let read = |name: &String| {
        let text = std::fs::read(job.checkpoints().join(name)).ok()?;
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["start"].as_u64()
    };
    job.files().iter().filter(|name| name.ends_with(".json")).filter_map(read).collect()
}

/// A bug: both runs made checkpoints until they ended, each removed those of the other, and neither reported it.
#[test]
fn one_of_two_runs_in_a_folder_makes_no_more_checkpoints_and_says_so() {
    let job = Job::new("parquet", &[ENDLESS, "checkpoint.rows=4000"]);
    job.kill_after(2, &[]);
    let mut runs = [job.start(&["--resume"]), job.start(&["--resume"])];
    let refused = "was written by another process that goes on with the same run";
    let begun = std::time::Instant::now();
    let loser = loop {
        if let Some(loser) = runs.iter().position(|run| run.said().contains(refused)) {
            break loser;
        }
        assert!(begun.elapsed().as_secs() < 120, "{}{}", runs[0].said(), runs[1].said());
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    // From here on all checkpoints are of one start. Four more push out the earlier ones, except one that builds on another full
    // checkpoint.
    let next = job.newest() + 4;
    job.until_checkpoint(next, &mut runs[1 - loser]);
    assert!(runs.iter().any(|run| run.said().contains("a checkpoint failed, and the run goes on")));
    for run in runs {
        run.signal(Signal::KILL);
        assert_eq!(run.end().code, None, "both go on");
    }
    // No run removes any of them meanwhile.
    let starts = starts(&job);
    let newest = &starts[starts.len() - 3..];
    assert!(newest.iter().all(|start| *start == newest[0] && *start != 0), "{starts:?}");
}
