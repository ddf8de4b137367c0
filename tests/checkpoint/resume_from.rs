//! A run continues from a checkpoint of another folder, and writes its own.

use rustix::process::Signal;

use super::jobs::{ENDLESS, Job};
use super::resume::undisturbed;

/// A run that was killed after its third checkpoint.
fn killed() -> Job {
    let job = Job::new("parquet", &[]);
    job.kill_after(3, &[]);
    job
}

/// The settings of a run that goes on elsewhere, and its folder of checkpoints.
fn elsewhere(job: &Job) -> (std::path::PathBuf, String) {
    let folder = job.folder.path().join("again");
    let setting = format!("checkpoint.to={}", folder.display());
    (folder, setting)
}

#[test]
fn an_older_checkpoint_goes_on_to_the_same_bits_and_the_folder_stays_as_it_was() {
    let job = killed();
    let before = (job.files(), job.newest());
    let ((folder, to), older) = (elsewhere(&job), job.newest() - 1);
    let at = format!("{}#{older}", job.checkpoints().display());
    // It is killed, too, and continues from its own.
    let running = job.start_with(&["--resume-from", &at], &[&to, ENDLESS]);
    running.until_said("INFO checkpoint ");
    running.signal(Signal::KILL);
    let said = running.end().said;
    assert!(said.contains(&format!("continues from checkpoint {older} in ")), "{said}");
    assert!(said.contains("INFO checkpoint 1 after "), "{said}");
    job.go_beyond(&folder);
    let ended = job.start_with(&["--resume-from", &at, "--resume"], &[&to]).end().with(0);
    let ended = ended.saying(&[&format!("in {}: ", folder.display())]);
    assert_eq!(job.model().difference(&undisturbed(&job)), None, "{}", ended.said);
    assert_eq!((job.files(), job.newest()), before);
}

#[test]
fn launch_continues_from_a_manifest() {
    let job = killed();
    let (_, to) = elsewhere(&job);
    let manifest = job.newest_manifest();
    let settings = [&to, "placement.readers=1", "placement.ps=1"];
    let mut flags = vec!["--resume-from", manifest.to_str().unwrap()];
    settings.iter().for_each(|setting| flags.extend(["--set", setting]));
    let words = format!("continues from checkpoint {} in ", job.newest());
    let ended = job.run_command("launch", &flags).with(0).saying(&[&words]);
    assert_eq!(job.model().difference(&undisturbed(&job)), None, "{}", ended.said);
}

#[test]
fn what_cannot_be_gone_on_from_is_refused_by_name() {
    let job = killed();
    let ((folder, to), own) = (elsewhere(&job), job.checkpoints().display().to_string());
    let newest = job.newest();
    let refused = |at: &str, settings: &[&str], words: &str| {
        for program in ["train", "launch"] {
            let mut flags = vec!["--resume-from", at];
            let placement = if program == "launch" { "placement.ps=1" } else { "seed=9" };
            settings.iter().chain([&placement]).for_each(|setting| flags.extend(["--set", setting]));
            let ended = job.run_command(program, &flags).with(2);
            assert!(ended.said.contains(words) && !ended.said.contains("listens"), "no `{words}` in {}", ended.said);
        }
    };
    refused(&own, &[], &format!("checkpoint.from and checkpoint.to are both {own}"));
    refused(&format!("{own}#{}", newest + 7), &[&to], &format!("has no checkpoint {}, it has: ", newest + 7));
    let nothing = format!("checkpoint.to={}", job.folder.path().join("nothing-is-here").display());
    refused(folder.to_str().unwrap(), &[&nothing], "has no checkpoints");
    refused(&own, &["checkpoint.to="], "");
    refused(&own, &[&to, "train.batch_rows=512"], "train.batch_rows is 256 there and 512 here");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("checkpoint-000004.json"), "{}").unwrap();
    refused(
        &format!("{own}#{newest}"),
        &[&to],
        &format!(
            "the newest is number 4: name another folder (checkpoint.to) for the run that continues from checkpoint {newest} in"
        ),
    );
}
