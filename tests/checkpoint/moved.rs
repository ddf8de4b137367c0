//! The rows of a run lie elsewhere when it goes on.

use super::jobs::{Job, rows};
use super::resume::undisturbed;

/// Copies the rows to a folder of the job.
fn copied(job: &Job, name: &str) -> std::path::PathBuf {
    let to = job.folder.path().join("deep/down").join(name);
    std::fs::create_dir_all(&to).unwrap();
    for file in std::fs::read_dir(rows("parquet")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    to
}

#[test]
fn rows_that_were_moved_are_the_same_and_others_are_not() {
    let job = Job::new("parquet", &[]);
    job.kill_after(2, &[]);
    let moved = copied(&job, "moved");
    let at = |folder: &std::path::Path| format!("data.train={}", folder.display());
    // One file has another name.
    let renamed = copied(&job, "renamed");
    let first = std::fs::read_dir(&renamed).unwrap().map(|file| file.unwrap().path()).min().unwrap();
    std::fs::rename(&first, renamed.join("part-99999.parquet")).unwrap();
    let ended = job.start_with(&["--resume"], &[&at(&renamed)]).end();
    assert_eq!(ended.code, Some(2), "{}", ended.said);
    assert!(ended.said.contains("the rows are not those of the checkpoint"), "{}", ended.said);
    let ended = job.start_with(&["--resume"], &[&at(&moved)]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.said);
    assert_eq!(job.model().difference(&undisturbed("parquet", &[])), None, "{}", ended.said);
}

/// One process reads text from its start and skips what it has trained on: nothing tells the rows but their path.
#[test]
fn text_must_stay_where_it_is() {
    let job = Job::new("criteo", &[]);
    job.kill_after(1, &[]);
    let ended = job.start_with(&["--resume"], &["data.train=/elsewhere"]).end();
    assert_eq!(ended.code, Some(2), "{}", ended.said);
    assert!(ended.said.contains("data.train is "), "{}", ended.said);
}
