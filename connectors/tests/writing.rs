//! Folders written to stores: rows come back, a fault leaves nothing, nothing is replaced silently.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime};

use forebay_connectors::convert::{ParquetOptions, TextOptions, to_criteo_text, to_parquet};
use forebay_connectors::inspect::{InspectOptions, inspect};
use forebay_connectors::staged::{Folder, StagedFolder};
use forebay_connectors::{Categories, CriteoSource, Input, ParquetSource, ReadOptions, Synthetic, SyntheticSource};
use object_store::{ObjectStore, ObjectStoreExt};

use super::stores::TestStore;
use super::{all, bytes_of, cx};

const ROWS: u64 = 5_000;

fn synthetic() -> SyntheticSource {
    SyntheticSource::new(Synthetic { rows: ROWS, seed: 3, ..Synthetic::default() }, ReadOptions::default())
}

/// A store of each kind, and the folder that the files of two of them lie in.
fn stores() -> (tempfile::TempDir, Vec<Arc<TestStore>>) {
    let dir = tempfile::tempdir().unwrap();
    let below = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let stores = vec![TestStore::memory(), TestStore::files(&below("files")), TestStore::folders(&below("folders"))];
    (dir, stores)
}

fn input(store: &Arc<TestStore>, path: &str) -> Input {
    Input::in_store(Arc::clone(store) as Arc<dyn ObjectStore>, path.into())
}

/// Small files and small row groups.
fn small() -> ParquetOptions {
    ParquetOptions { group_rows: 1024, file_groups: 2, ..ParquetOptions::default() }
}

#[tokio::test]
async fn rows_survive_the_way_through_every_store() {
    let expected = all(synthetic()).await;
    let (_dir, stores) = stores();
    for store in stores {
        let written = to_parquet(&mut synthetic(), &cx(), store.folder("a/rows"), &small(), |_| ()).await.unwrap();
        assert_eq!((written.files, written.rows), (3, ROWS));
        let names = store.all().await;
        let files: Vec<_> = names.iter().filter(|name| name.contains("part-")).collect();
        assert_eq!(files, ["a/rows/part-00000.parquet", "a/rows/part-00001.parquet", "a/rows/part-00002.parquet"]);
        assert!(names.contains(&"a/rows/_SUCCESS".to_owned()), "{names:?}");
        assert!(!names.iter().any(|name| name.contains("/.")), "{names:?}");
        let source = ParquetSource::new(input(&store, "a/rows"), ReadOptions::default());
        assert_eq!(all(source).await, expected);

        let options = TextOptions { file_rows: 2000, replace: false };
        let written = to_criteo_text(&mut synthetic(), &cx(), store.folder("text"), &options, |_| ()).await.unwrap();
        assert_eq!((written.files, written.rows), (3, ROWS));
        let source = CriteoSource::new(input(&store, "text"), ReadOptions::default());
        assert_eq!(all(source).await, expected);
        let of = async |path| inspect(input(&store, path), InspectOptions::default()).await.unwrap();
        let (text, parquet) = (of("text").await, of("a/rows").await);
        assert_eq!(text.columns, parquet.columns);
    }
}

/// A bug: they were columns of Parquet and Arrow alone.
#[tokio::test]
async fn inspecting_tells_of_folders_of_text_that_are_columns() {
    for (ending, rows) in
        [("csv", "id,hour\nu1,5\nu2,7\n"), ("jsonl", "{\"id\":\"u1\",\"hour\":5}\n{\"id\":\"u2\",\"hour\":7}\n")]
    {
        let dir = tempfile::tempdir().unwrap();
        let write = |folder: &str| {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
            std::fs::write(dir.path().join(folder).join(format!("part.{ending}")), rows).unwrap();
        };
        for folder in ["day=2026-01-01/shard=1", "day=2026-01-02/shard=20", "day=__HIVE_DEFAULT_PARTITION__/shard=3"] {
            write(folder);
        }
        let inspected = async || inspect(dir.path(), InspectOptions::default()).await.unwrap();
        let found = inspected().await;
        let names: Vec<&str> = found.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names[2..], ["day", "shard"], "{names:?}");
        let column = |name: &str| found.columns.iter().find(|column| column.name == name).unwrap();
        let [day, shard] = ["day", "shard"].map(column);
        assert_eq!((day.kind.as_str(), day.distinct, found.rows), ("text", Some(2), 6));
        assert!((day.missing - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((shard.kind.as_str(), shard.min, shard.max), ("number", Some(1.0), Some(20.0)));
        assert_eq!((column("hour").min, column("hour").max), (Some(5.0), Some(7.0)), "those of the files");
        // A file that lies in no such folder has none of its values.
        write("other");
        let found = inspected().await;
        let day = found.columns.iter().find(|column| column.name == "day").unwrap();
        assert_eq!((found.rows, day.distinct, day.missing), (8, Some(2), 0.5));
    }
}

#[tokio::test]
async fn inspecting_tells_of_folders_that_are_columns_and_how_values_are_spread() {
    let dir = tempfile::tempdir().unwrap();
    for day in ["2026-11-20", "2026-11-21"] {
        let folder = dir.path().join(format!("day={day}/hour=3"));
        to_parquet(&mut synthetic(), &cx(), &folder, &small(), |_| ()).await.unwrap();
    }
    let found = inspect(dir.path(), InspectOptions::default()).await.unwrap();
    let column = |name: &str| found.columns.iter().find(|column| column.name == name).unwrap();
    assert_eq!((column("day").distinct, column("day").missing), (Some(2), 0.0));
    assert_eq!((column("hour").distinct, column("hour").min), (Some(1), Some(3.0)));
    let label = column("label").histogram.as_ref().unwrap();
    assert_eq!((label.counts.iter().sum::<u64>(), label.from), (2 * ROWS, 0.0));
    let ones = label.counts[label.counts.len() - 1] as f64 / (2 * ROWS) as f64;
    assert!((ones - found.positive_rate.unwrap()).abs() < 1e-9, "{label:?}");
    let text = found.to_string();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains('%')).collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("I1 ") && line.contains('█')), "{text}");
}

#[tokio::test]
async fn the_bytes_depend_on_the_rows_and_not_on_threads_batches_or_stores() {
    let dir = tempfile::tempdir().unwrap();
    for base in [
        small(),
        ParquetOptions { categories: Categories::Hex, fill_nulls: true, ..small() },
        ParquetOptions { encoding: forebay_connectors::convert::Encoding::Plain, file_groups: 9, ..small() },
    ] {
        let mut folders = Vec::new();
        for (threads, batch_rows) in [(1, 8192), (2, 8192), (7, 8192), (3, 100), (0, 1025)] {
            let folder = dir.path().join(format!("{}-{threads}-{batch_rows}", folders.len()));
            let options = ReadOptions { batch_rows, ..ReadOptions::default() };
            let mut source = SyntheticSource::new(Synthetic { rows: ROWS, seed: 3, ..Synthetic::default() }, options);
            let options = ParquetOptions { threads, replace: true, ..base.clone() };
            to_parquet(&mut source, &cx(), &folder, &options, |_| ()).await.unwrap();
            folders.push(bytes_of(&folder));
        }
        for other in &folders[1..] {
            assert!(*other == folders[0], "{base:?}");
        }
        let store = TestStore::memory();
        to_parquet(&mut synthetic(), &cx(), store.folder("rows"), &base, |_| ()).await.unwrap();
        for (name, bytes) in &folders[0] {
            let stored = store.get(&format!("rows/{name}").into()).await.unwrap().bytes().await.unwrap();
            assert!(stored == bytes, "{name}");
        }
    }
}

#[tokio::test]
async fn what_is_there_is_replaced_only_on_request_and_then_wholly() {
    let (_dir, stores) = stores();
    for store in stores {
        to_parquet(&mut synthetic(), &cx(), store.folder("rows"), &small(), |_| ()).await.unwrap();
        let before = store.all().await;
        let said = to_parquet(&mut synthetic(), &cx(), store.folder("rows"), &small(), |_| ()).await.unwrap_err();
        assert!(said.to_string().contains("holds files already"), "{said}");
        let said = to_parquet(&mut synthetic(), &cx(), store.folder("rows/part-00000.parquet"), &small(), |_| ()).await;
        assert!(said.unwrap_err().to_string().contains("is a file"));
        assert_eq!(store.all().await, before);
        let fewer = Synthetic { rows: 100, seed: 4, ..Synthetic::default() };
        let mut source = SyntheticSource::new(fewer, ReadOptions::default());
        let options = ParquetOptions { replace: true, ..small() };
        to_parquet(&mut source, &cx(), store.folder("rows"), &options, |_| ()).await.unwrap();
        let after: Vec<_> = store.all().await.into_iter().filter(|name| name != "rows").collect();
        assert_eq!(after, ["rows/_SUCCESS", "rows/part-00000.parquet"]);
        let source = ParquetSource::new(input(&store, "rows"), ReadOptions::default());
        assert_eq!(all(source).await.num_rows(), 100);
    }
}

#[tokio::test]
async fn a_fault_in_the_middle_of_a_write_leaves_nothing_and_says_what_happened() {
    let (_dir, stores) = stores();
    for store in stores {
        for (part, name) in [(0, "part-00000.parquet"), (2, "part-00002.parquet")] {
            store.parts.store(part, SeqCst);
            let said = to_parquet(&mut synthetic(), &cx(), store.folder("a/rows"), &small(), |_| ()).await.unwrap_err();
            let said = said.to_string();
            assert!(said.contains("the line was cut") && said.contains(&format!("a/rows/{name}")), "{said}");
            let left: Vec<_> = store.all().await.into_iter().filter(|name| name != "a").collect();
            assert!(left.is_empty(), "{left:?}");
        }
        store.parts.store(-1, SeqCst);
        // Of text, too; and of completing an upload, or of the rename.
        store.parts.store(1, SeqCst);
        let options = TextOptions { file_rows: 2000, replace: false };
        let said = to_criteo_text(&mut synthetic(), &cx(), store.folder("a/rows"), &options, |_| ()).await.unwrap_err();
        assert!(said.to_string().contains("the line was cut") && said.to_string().contains("part-00001.txt"), "{said}");
        store.completes.store(1, SeqCst);
        store.renames.store(0, SeqCst);
        for _ in 0..2 {
            let said = to_parquet(&mut synthetic(), &cx(), store.folder("a/rows"), &small(), |_| ()).await;
            let Err(said) = said else { continue };
            assert!(said.to_string().contains("the line was cut"), "{said}");
            let left: Vec<_> = store.all().await.into_iter().filter(|name| name != "a").collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

#[tokio::test]
async fn a_fault_of_the_rows_leaves_nothing_either() {
    let (dir, stores) = stores();
    let text = dir.path().join("bad.txt");
    std::fs::write(&text, "nonsense\n").unwrap();
    for store in stores {
        let mut source = CriteoSource::new(&text, ReadOptions::default());
        let said = to_parquet(&mut source, &cx(), store.folder("rows"), &small(), |_| ()).await.unwrap_err();
        assert!(said.to_string().contains("line 1"), "{said}");
        assert!(store.all().await.is_empty());
        // The uploads of a folder that is given up are given up, too.
        let staged = StagedFolder::begin(&store.folder("rows"), false).unwrap();
        let mut file = staged.create("below/a").unwrap();
        file.write_all(b"1").unwrap();
        file.finish().unwrap();
        let mut file = staged.create("b").unwrap();
        file.write_all(b"2").unwrap();
        drop((file, staged));
        assert!(store.all().await.is_empty(), "{:?}", store.all().await);
    }
}

/// With renames the old folder comes back if the new one cannot take its place.
#[tokio::test]
async fn a_replacement_that_fails_keeps_the_old_folder_where_folders_are_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::folders(dir.path());
    to_parquet(&mut synthetic(), &cx(), store.folder("rows"), &small(), |_| ()).await.unwrap();
    let before = store.all().await;
    let options = ParquetOptions { replace: true, ..small() };
    for renames in [0, 1] {
        store.renames.store(renames, SeqCst);
        let said = to_parquet(&mut synthetic(), &cx(), store.folder("rows"), &options, |_| ()).await.unwrap_err();
        assert!(said.to_string().contains("the line was cut"), "{said}");
        assert_eq!(store.all().await, before);
    }
}

/// A rename whose answer is lost is done.
#[tokio::test]
async fn a_folder_whose_rename_was_not_answered_is_in_its_place_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::folders(dir.path());
    let options = ParquetOptions { replace: true, ..small() };
    // The one rename of a new folder, then each of the two that replace it.
    for unheard in [0, 0, 1] {
        store.heard_renames.store(unheard, SeqCst);
        to_parquet(&mut synthetic(), &cx(), store.folder("rows"), &options, |_| ()).await.unwrap();
        assert!(store.heard_renames.load(SeqCst) < 0, "an answer was lost");
        let all = store.all().await;
        assert!(
            all.contains(&"rows/_SUCCESS".to_owned()) && all.iter().all(|name| name.starts_with("rows")),
            "{all:?}"
        );
    }
}

/// A process is killed between the two renames of a replacement.
#[tokio::test]
async fn a_folder_that_was_being_replaced_is_put_back_and_removed_when_there_is_another() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::folders(dir.path());
    let old = |number: u32| dir.path().join(format!("a/.rows.replaced-{number}-18ebb46b072e7df2"));
    let begin = |replace| StagedFolder::begin(&store.folder("a/rows"), replace);
    to_parquet(&mut synthetic(), &cx(), store.folder("a/rows"), &small(), |_| ()).await.unwrap();
    let (place, whole) = (dir.path().join("a/rows"), store.all().await);
    std::fs::rename(&place, old(1)).unwrap();
    let open = store.folder("a/rows").open().unwrap();
    assert!(open.replaced().unwrap().0.ends_with("a/.rows.replaced-1-18ebb46b072e7df2"));
    // It is back before it is asked whether it may be replaced.
    assert!(begin(false).err().unwrap().to_string().contains("holds files already"));
    assert_eq!(store.all().await, whole);
    assert_eq!(open.replaced(), None);
    // Beside a folder that stands there, it goes; what has another name stays.
    std::fs::create_dir(old(1)).unwrap();
    std::fs::write(old(1).join("a"), "1").unwrap();
    let mine = dir.path().join("a/.rows.replaced-by-me");
    std::fs::create_dir(&mine).unwrap();
    drop(begin(true).unwrap());
    assert!(!old(1).exists() && mine.exists() && place.exists());
    // Which of two is the newer one, nothing says.
    std::fs::remove_dir_all(&place).unwrap();
    for number in [1, 2] {
        std::fs::create_dir(old(number)).unwrap();
        std::fs::write(old(number).join("a"), "1").unwrap();
    }
    drop(begin(true).unwrap());
    assert!(old(1).exists() && old(2).exists() && !place.exists() && open.replaced().is_none());
}

/// A bug: what a killed process had written of a folder stayed forever.
#[tokio::test]
async fn staged_folders_in_which_no_file_has_changed_for_a_day_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::folders(dir.path());
    let staged = |name: &str, hours: u64| {
        let folder = dir.path().join("a").join(name);
        std::fs::create_dir_all(folder.join("tables")).unwrap();
        for (file, hours) in [("dense", 100), ("tables/0", hours)] {
            let file = std::fs::File::create(folder.join(file)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
        }
        folder
    };
    let gone = staged(".rows.partial-1-18ebb46b072e7df2", 25);
    let stay = [
        staged(".rows.partial-2-18ebb46b072e7df2", 23),
        staged(".other.partial-1-18ebb46b072e7df2", 25),
        staged(".rows.partial-mine", 25),
        dir.path().join("a/.rows.partial-3-18ebb46b072e7df2"),
    ];
    std::fs::create_dir(&stay[3]).unwrap();
    to_parquet(&mut synthetic(), &cx(), store.folder("a/rows"), &small(), |_| ()).await.unwrap();
    assert!(!gone.exists() && stay.iter().all(|folder| folder.exists()), "{:?}", store.all().await);
}

/// Without renames the old folder cannot come back: what is left has no mark, and the fault says that the old folder is gone.
#[tokio::test]
async fn a_replacement_that_fails_leaves_no_mark_where_there_are_no_folders() {
    let store = TestStore::memory();
    to_parquet(&mut synthetic(), &cx(), store.folder("rows"), &small(), |_| ()).await.unwrap();
    let options = ParquetOptions { replace: true, ..small() };
    store.completes.store(1, SeqCst);
    let said = to_parquet(&mut synthetic(), &cx(), store.folder("rows"), &options, |_| ()).await.unwrap_err();
    assert!(said.to_string().contains("the line was cut") && said.to_string().contains("is lost"), "{said}");
    assert!(!store.all().await.contains(&"rows/_SUCCESS".to_owned()));
}

#[tokio::test]
async fn a_place_that_is_taken_under_way_is_left_alone() {
    let (_dir, stores) = stores();
    for store in stores {
        let staged = StagedFolder::begin(&store.folder("rows"), false).unwrap();
        staged.create("a").unwrap().finish().unwrap();
        store.put(&"rows/theirs".into(), "1".into()).await.unwrap();
        let said = staged.publish().unwrap_err().to_string();
        assert!(said.contains("another program has made"), "{said}");
        let left: Vec<_> = store.all().await.into_iter().filter(|name| name != "rows").collect();
        assert_eq!(left, ["rows/theirs"]);
    }
}

#[tokio::test]
async fn large_files_go_in_parts_and_come_back_as_they_were() {
    let (_dir, stores) = stores();
    let bytes: Vec<u8> = (0..21_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for store in stores {
        let staged = StagedFolder::begin(&store.folder("large"), false).unwrap();
        let mut file = staged.create("a").unwrap();
        for piece in bytes.chunks(1_234_567) {
            file.write_all(piece).unwrap();
        }
        assert_eq!(file.finish().unwrap(), bytes.len() as u64);
        staged.publish().unwrap();
        let folder = store.folder("large").open().unwrap();
        assert!(folder.bytes("a", bytes.len() as u64).unwrap() == bytes);
        assert!(folder.bytes("a", 100).unwrap_err().to_string().contains("longer than 100 bytes"));
        assert!(folder.bytes("b", 100).unwrap_err().to_string().contains("large/b"));
        assert_eq!(folder.fold("a", 0, |n, piece| *n += piece.len()).unwrap(), bytes.len());
        assert!(folder.has("a").unwrap() && !folder.has("b").unwrap());
    }
}

#[tokio::test]
async fn a_file_url_is_a_local_path() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("rows");
    let url = format!("file://{}", place.display());
    to_parquet(&mut synthetic(), &cx(), &url, &small(), |_| ()).await.unwrap();
    assert_eq!(bytes_of(&place).len(), 3);
    assert!(Folder::from(&url).open().unwrap().has("part-00000.parquet").unwrap());
    let said = to_parquet(&mut synthetic(), &cx(), "gopher://a/b", &small(), |_| ()).await.unwrap_err().to_string();
    assert!(said.contains("gopher://"), "{said}");
}
