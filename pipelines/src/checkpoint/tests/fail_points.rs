//! At every point of the writing of checkpoints, and of a compaction, something fails or the process dies: what is in the folder
//! afterwards gives the bits of a checkpoint that was made, and at least of the last one that was acknowledged.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_connectors::staged::fail_points::{PointFailure, arm};

use super::chain::{Chain, Contents, fast_folder, load};
use crate::checkpoint::{CheckpointFolder, CheckpointManifest};
use crate::context::Context;

const FAILURES: [PointFailure; 4] =
    [PointFailure::Error, PointFailure::Short, PointFailure::Death, PointFailure::DeathInWrite];

/// Checkpoints of a run. Full ones are the first and the fourth, and two stay.
pub(super) const CHECKPOINTS: u64 = 5;

/// A number of a point that no run reaches.
const NONE: usize = usize::MAX;

/// Trains and makes checkpoints. Returns the steps of those that were acknowledged.
pub(super) fn run(chain: &mut Chain, expected: &mut BTreeMap<u64, Contents>) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    for step in 1..=CHECKPOINTS {
        chain.train();
        expected.entry(step).or_insert_with(|| chain.contents());
        if chain.checkpoint().is_ok() {
            acknowledged.push(step);
        }
    }
    acknowledged
}

fn open(folder: &Path) -> CheckpointFolder {
    CheckpointFolder::open(folder.to_str().unwrap(), &Context::default()).unwrap()
}

/// Checks that all checkpoints in the folder are whole, and that the newest gives the bits of its step. Returns this step.
pub(super) fn check(
    folder: &CheckpointFolder,
    expected: &BTreeMap<u64, Contents>,
    with_lifetime: bool,
    what: &str,
) -> u64 {
    for number in folder.numbers().unwrap() {
        folder.verify(number).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    let Some(newest) = folder.latest().unwrap() else { return 0 };
    let step = newest.position.steps;
    let found = load(folder, &newest, with_lifetime).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(found == expected[&step], "{what}: the bits of step {step} are others");
    step
}

/// Files in the folder that no manifest names.
pub(super) fn unnamed(folder: &CheckpointFolder) -> Vec<String> {
    let manifests: Vec<CheckpointManifest> =
        folder.numbers().unwrap().into_iter().map(|number| folder.manifest(number).unwrap()).collect();
    let named = |name: &String| manifests.iter().flat_map(CheckpointManifest::files).any(|entry| entry.path == *name);
    let files = folder.folder.files().unwrap().into_iter().map(|(name, _)| name);
    files.filter(|name| !name.starts_with("checkpoint-") && !named(name)).collect()
}

#[test]
fn at_every_point_of_a_checkpoint() {
    fail_at_every_point(false);
}

#[test]
fn at_every_point_of_a_checkpoint_with_lifetimes() {
    fail_at_every_point(true);
}

fn fail_at_every_point(with_lifetime: bool) {
    let (dir, mut expected) = (fast_folder(), BTreeMap::new());
    let counted = {
        let at = dir.path().join("counted");
        let armed = arm(&at, NONE, PointFailure::Error);
        let mut chain = Chain::new(&at, with_lifetime);
        assert_eq!(run(&mut chain, &mut expected), (1..=CHECKPOINTS).collect::<Vec<_>>());
        chain.end();
        armed.passed()
    };
    assert!(counted.len() > 150, "{counted:#?}");
    for failure in FAILURES {
        for (at, point) in counted.iter().enumerate() {
            if matches!(failure, PointFailure::Short | PointFailure::DeathInWrite) && !point.starts_with("before write")
            {
                continue;
            }
            let what = format!("{failure:?} at point {at}, {point}");
            let place = dir.path().join(format!("{failure:?}-{at}"));
            let mut chain = Chain::new(&place, with_lifetime);
            let armed = arm(&place, at, failure);
            let acknowledged = run(&mut chain, &mut expected).pop().unwrap_or(0);
            drop(armed);
            let folder = open(&place);
            let newest = check(&folder, &expected, with_lifetime, &what);
            assert!(newest >= acknowledged, "{what}: {acknowledged} was acknowledged, {newest} is the newest");
            if matches!(failure, PointFailure::Error | PointFailure::Short) {
                assert!(acknowledged + 1 >= CHECKPOINTS, "{what}: later checkpoints fail, too");
                chain.checkpoint().unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(check(&folder, &expected, with_lifetime, &what), CHECKPOINTS);
                assert_eq!(unnamed(chain.folder()), [""; 0], "{what}");
            }
            chain.end();
            std::fs::remove_dir_all(&place).ok();
        }
    }
}

#[test]
fn at_every_point_of_a_compaction() {
    for with_lifetime in [false, true] {
        let (dir, mut expected) = (fast_folder(), BTreeMap::new());
        let made = dir.path().join("made");
        let mut chain = Chain::new(&made, with_lifetime);
        for step in 1..=3 {
            chain.train();
            expected.insert(step, chain.contents());
            chain.checkpoint().unwrap();
        }
        chain.end();
        let compact = |name: &str, at, failure| {
            let place = dir.path().join(name);
            std::fs::create_dir(&place).unwrap();
            for file in std::fs::read_dir(&made).unwrap().map(Result::unwrap) {
                std::fs::copy(file.path(), place.join(file.file_name())).unwrap();
            }
            let (folder, armed) = (open(&place), arm(&place, at, failure));
            let done = folder.compact(None, None).and_then(|made| folder.prune(1).map(|()| made));
            (folder, done, armed.passed())
        };
        let (folder, done, counted) = compact("counted", NONE, PointFailure::Error);
        let done = done.unwrap().unwrap();
        assert_eq!(
            (done.number, done.tables[0].layers.len(), check(&folder, &expected, with_lifetime, "compacted")),
            (4, 1, 3)
        );
        assert_eq!((folder.numbers().unwrap(), unnamed(&folder)), (vec![4], Vec::new()));
        assert!(counted.len() > 30, "{counted:#?}");
        for failure in FAILURES {
            for (at, point) in counted.iter().enumerate() {
                let what = format!("{failure:?} at point {at}, {point}");
                let (folder, done, _) = compact(&format!("{failure:?}-{at}"), at, failure);
                assert_eq!(check(&folder, &expected, with_lifetime, &what), 3, "{what}: {done:?}");
                // A second time, with what the first has left.
                folder.compact(None, None).unwrap_or_else(|e| panic!("{what}: {e}"));
                folder.prune(1).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(check(&folder, &expected, with_lifetime, &what), 3, "{what}");
                assert_eq!((folder.numbers().unwrap().len(), unnamed(&folder)), (1, Vec::new()), "{what}");
            }
        }
    }
}
