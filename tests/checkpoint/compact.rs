//! `forebay checkpoint compact`: one layer of many, with the same bits.

use rustix::process::Signal;

use super::common;
use super::jobs::{ENDLESS, Job};
use super::resume::undisturbed;

fn compact(job: &Job, more: &[&str]) -> (Option<i32>, String) {
    job.checkpoint("compact", more)
}

fn manifest(job: &Job, number: u64) -> serde_json::Value {
    common::read_json(job.checkpoints().join(format!("checkpoint-{number:06}.json")))
}

fn layers(job: &Job, number: u64) -> usize {
    manifest(job, number)["tables"][0]["layers"].as_array().unwrap().len()
}

/// Compacts a chain, removes all else, and goes on.
fn compact_and_resume(more: &[&str]) {
    // Only the first one is full.
    let job = Job::new("parquet", &[more, &["checkpoint.full_every=100000"]].concat());
    job.kill_after(5, &[]);
    let newest = job.newest();
    assert!(layers(&job, newest) > 2, "{:?}", job.files());
    let types = manifest(&job, newest)["types"].take();
    assert_eq!(types["C1"], "integer", "{types}");
    common::exits(0, compact(&job, &["--keep", "1"]), &["; all rows of the table, "]);
    assert_eq!(manifest(&job, newest + 1)["types"], types);
    let manifests = |name: &String| name.ends_with(".json");
    assert_eq!(
        job.files().into_iter().filter(manifests).collect::<Vec<_>>(),
        [format!("checkpoint-{:06}.json", newest + 1)]
    );
    assert_eq!(layers(&job, newest + 1), 1);
    common::exits(0, compact(&job, &[]), &["is full already"]);
    let ended = job.run(&["--resume"]).with(0).saying(&[&format!("continues from checkpoint {} in", newest + 1)]);
    assert_eq!(job.model().difference(&undisturbed(&job)), None, "{}", ended.said);
}

#[test]
fn one_layer_has_the_rows_of_all() {
    compact_and_resume(&["table.shards=2"]);
}

/// Keys wait before they get rows, rows are removed, and removed keys come again.
#[test]
fn keys_that_wait_and_rows_that_go() {
    let rules = ["table.admission.count=2", "table.eviction.unseen_rows=20000", "table.eviction.max_rows=65536"];
    compact_and_resume(&[&rules[..], &["table.shards=3"]].concat());
}

#[test]
fn an_older_one_goes_to_another_folder() {
    let job = Job::new("parquet", &[]);
    job.kill_after(4, &[]);
    let older = (job.newest() - 1).to_string();
    common::exits(2, compact(&job, &["--number", &older]), &["is not the newest in", "--to"]);
    common::exits(2, compact(&job, &["--number", "99"]), &["has no checkpoint 99, it has: "]);
    let best = job.folder.path().join("best").display().to_string();
    let before = job.files();
    common::exits(0, compact(&job, &["--number", &older, "--to", &best]), &[]);
    assert_eq!(job.files(), before);
    let to = format!("checkpoint.to={}", job.folder.path().join("again").display());
    let ended = job.start_with(&["--resume-from", &best], &[&to]).end().with(0);
    let ended = ended.saying(&[&format!("continues from checkpoint {older} in {best}")]);
    assert_eq!(job.model().difference(&undisturbed(&job)), None, "{}", ended.said);
    let (code, said) = compact(&job, &["--number", &older, "--to", &best]);
    assert!(code == Some(2) && said.contains(&format!("has a checkpoint {older} already")), "{code:?} {said}");
}

#[test]
fn the_folder_itself_and_a_folder_of_something_else_are_no_places() {
    let job = Job::new("parquet", &[]);
    job.kill_after(2, &[]);
    let before = job.files();
    let link = job.folder.path().join("link");
    std::os::unix::fs::symlink(job.checkpoints(), &link).unwrap();
    for same in [job.checkpoints(), link] {
        let (code, said) = compact(&job, &["--to", &same.display().to_string()]);
        assert!(code == Some(2) && said.contains("the folder of the checkpoint itself"), "{code:?} {said}");
        assert_eq!(job.files(), before);
    }
    let model = job.folder.path().join("a-model");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("manifest.json"), r#"{ "format": "forebay model", "version": 1 }"#).unwrap();
    common::exits(2, compact(&job, &["--to", &model.display().to_string()]), &["a-model has a manifest.json"]);
    // A run refuses the folder for its checkpoints too.
    let to = format!("checkpoint.to={}", model.display());
    job.start_with(&[], &[&to]).end().with(2).saying(&["a-model has a manifest.json"]);
    assert_eq!(std::fs::read_dir(&model).unwrap().count(), 1);
}

/// The files that the run's next checkpoint builds on are removed, so the run writes all rows again.
#[test]
fn it_may_be_done_while_a_run_goes_on() {
    let job = Job::new("parquet", &["checkpoint.rows=100000"]);
    let mut running = job.start_with(&[], &[ENDLESS]);
    job.until_checkpoint(3, &mut running);
    // The run stands still meanwhile, perhaps within a checkpoint.
    running.hold();
    common::exits(0, compact(&job, &["--keep", "1"]), &[]);
    let compacted = job.newest();
    running.signal(Signal::CONT);
    job.until_checkpoint(compacted + 1, &mut running);
    running.signal(Signal::KILL);
    running.end();
    job.go_beyond(&job.checkpoints());
    let ended = job.run(&["--resume"]).with(0);
    assert!(!ended.said.contains("is not used"), "{}", ended.said);
    assert_eq!(job.model().difference(&undisturbed(&job)), None, "{}", ended.said);
}
