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
    let ended = job.start_with(&["--resume"], &[&at(&renamed)]).end().with(2);
    ended.saying(&["the rows are not those of the checkpoint"]);
    let ended = job.start_with(&["--resume"], &[&at(&moved)]).end().with(0);
    assert_eq!(job.model().difference(&undisturbed(&job)), None, "{}", ended.said);
}

/// Earlier programs did not store which text files one process reads, so only the path identifies the rows.
#[test]
fn text_of_an_earlier_program_must_stay_where_it_is() {
    let job = Job::new("criteo", &[]);
    job.kill_after(1, &[]);
    let manifest = job.newest_manifest();
    let text = std::fs::read_to_string(&manifest).unwrap();
    let mut old: serde_json::Value = serde_json::from_str(&text).unwrap();
    old["position"].as_object_mut().unwrap().remove("data").expect("what is read");
    old.as_object_mut().unwrap().remove("checksum");
    std::fs::write(&manifest, serde_json::to_string_pretty(&old).unwrap()).unwrap();
    job.start_with(&["--resume"], &["data.train=/elsewhere"]).end().with(2).saying(&["data.train is "]);
    let ended = job.run(&["--resume"]).with(0);
    assert_eq!(job.model().difference(&undisturbed(&job)), None, "{}", ended.said);
}

/// Files `p0` to `p2` of `rows` lines each.
fn text_files(folder: &std::path::Path, format: &str, rows: u64) {
    std::fs::create_dir_all(folder).unwrap();
    for file in 0..3 {
        let mut text = if format == "csv" { "label,a,b\n".to_owned() } else { String::new() };
        for row in file * rows..(file + 1) * rows {
            let (label, a, b) = (row % 7 % 2, row % 101, row * 31 % 977);
            match format {
                "csv" => text += &format!("{label},{a},{b}\n"),
                _ => text += &format!("{{\"label\":{label},\"a\":{a},\"b\":{b}}}\n"),
            }
        }
        std::fs::write(folder.join(format!("p{file}.{format}")), text).unwrap();
    }
}

/// One process reads text from its start and skips the batches that it has trained on, so other files would be other batches.
#[test]
fn text_of_one_process_must_be_the_same_files() {
    for format in ["csv", "jsonl"] {
        let mut job = Job::without_checkpoints(&[
            "checkpoint.rows=10000",
            "data.epochs=2",
            "columns.dense=['a']",
            "columns.slots=['b']",
        ]);
        let rows = job.folder.path().join("rows");
        text_files(&rows, format, 60_000);
        let (train, to) =
            (format!("data.train={}", rows.display()), format!("checkpoint.to={}", job.checkpoints().display()));
        job.set(&[&train, &to]);
        job.kill_after(1, &[]);
        let path = |name: &str| rows.join(format!("{name}.{format}"));
        let refused = |what: &str| {
            let ended = job.run(&["--resume"]);
            assert_eq!(ended.code, Some(2), "{what}: {}", ended.said);
            let words = "the rows are not those of the checkpoint: other names or sizes of files";
            assert!(ended.said.contains(words), "{what}: {}", ended.said);
        };
        std::fs::copy(path("p0"), path("p3")).unwrap();
        refused("a file more");
        std::fs::remove_file(path("p3")).unwrap();
        std::fs::rename(path("p1"), path("zz")).unwrap();
        refused("another name");
        std::fs::rename(path("zz"), path("p1")).unwrap();
        let whole = std::fs::read(path("p2")).unwrap();
        std::fs::remove_file(path("p2")).unwrap();
        refused("a file less");
        let last = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap();
        std::fs::write(path("p2"), [&whole[..], &whole[last + 1..]].concat()).unwrap();
        refused("a line more");
        std::fs::write(path("p2"), &whole).unwrap();
        let moved = job.folder.path().join("moved");
        std::fs::rename(&rows, &moved).unwrap();
        let ended = job.start_with(&["--resume"], &[&format!("data.train={}", moved.display())]).end().with(0);
        ended.saying(&[&format!("trained on {} rows", forebay::actors::commas(job.epochs() * 180_000))]);
    }
}
