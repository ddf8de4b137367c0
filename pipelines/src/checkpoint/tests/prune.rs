//! Which checkpoints stay when old ones are removed.

use std::path::Path;

use forebay_actors::Domain;

use super::super::folder::{CheckpointFolder, file_name};
use super::chain::{Chain, fast_folder};
use super::fail_points::unnamed;
use crate::context::Context;

/// Makes checkpoints. `keep` is 2, and the first, the fourth and the seventh have all rows.
fn make(chain: &mut Chain, checkpoints: usize) {
    for _ in 0..checkpoints {
        chain.train();
        chain.checkpoint().unwrap();
    }
}

fn flip(at: &Path) {
    let mut bytes = std::fs::read(at).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(at, bytes).unwrap();
}

/// A bug: all checkpoints that stayed built on the same full checkpoint.
#[test]
fn a_flipped_bit_never_takes_all_checkpoints() {
    let dir = fast_folder();
    let mut chain = Chain::new(dir.path(), false);
    let mut stay = Vec::new();
    for _ in 0..8 {
        make(&mut chain, 1);
        stay.push(chain.folder().numbers().unwrap());
    }
    let expected: [&[u64]; 8] = [&[1], &[1, 2], &[2, 3], &[3, 4], &[3, 4, 5], &[3, 5, 6], &[6, 7], &[6, 7, 8]];
    assert_eq!(stay, expected);
    let folder = chain.folder();
    assert_eq!(unnamed(folder), [""; 0]);
    let base = &folder.manifest(8).unwrap().tables[0].layers[0];
    assert_eq!(base.checkpoint, 7);
    flip(&dir.path().join(&base.files[0].path));
    assert_eq!(folder.latest().unwrap().unwrap().number, 6);
    // With `keep` of 1 the newest one alone stays.
    folder.prune(1).unwrap();
    assert_eq!(folder.numbers().unwrap(), [8]);
    chain.end();
}

/// A bug: a damaged checkpoint counted among those that stay, and until it was old, nothing was removed.
#[test]
fn damaged_checkpoints_do_not_count_and_do_not_stop_the_removal_of_others() {
    let dir = fast_folder();
    let mut chain = Chain::new(dir.path(), false);
    make(&mut chain, 5);
    flip(&dir.path().join("checkpoint-000005.json"));
    make(&mut chain, 1);
    assert_eq!(chain.folder().numbers().unwrap(), [3, 4, 5, 6], "two are whole, 3 has another base");
    make(&mut chain, 1);
    let folder = chain.folder();
    assert_eq!(folder.numbers().unwrap(), [6, 7]);
    assert_eq!(unnamed(folder), [""; 0]);
    // A file is shorter than its manifest says.
    let file = &folder.manifest(7).unwrap().dense[0].path;
    std::fs::write(dir.path().join(file), "short").unwrap();
    make(&mut chain, 1);
    assert_eq!(chain.folder().numbers().unwrap(), [6, 7, 8], "8 needs nothing of 7 but its rows");
    assert_eq!(chain.folder().latest().unwrap().unwrap().number, 8);
    make(&mut chain, 1);
    assert_eq!(chain.folder().numbers().unwrap(), [6, 8, 9]);
    chain.end();
}

/// A bug: each compaction that was killed left its files.
#[test]
fn a_compaction_removes_what_killed_ones_of_its_number_have_left() {
    let (dir, elsewhere) = (fast_folder(), fast_folder());
    let mut chain = Chain::new(dir.path(), false);
    make(&mut chain, 3);
    let folder = chain.folder();
    let to = CheckpointFolder::open(elsewhere.path().to_str().unwrap(), &Context::default()).unwrap();
    let cut_short = |place: &Path, number| {
        let hidden = format!(".{}.tmp.1", file_name(number, 6, "dense.safetensors"));
        for name in [file_name(number, 5, "embedding-0000.arrow"), hidden] {
            std::fs::write(place.join(name), "cut short").unwrap();
        }
    };
    cut_short(dir.path(), 4);
    cut_short(elsewhere.path(), 3);
    // Perhaps a compaction of another checkpoint, under way.
    let other = file_name(2, 7, "embedding-0000.arrow");
    std::fs::write(elsewhere.path().join(&other), "under way").unwrap();
    assert_eq!(folder.compact(None, Some(&to)).unwrap().unwrap().number, 3);
    assert_eq!(unnamed(&to), [other]);
    assert_eq!(folder.compact(None, None).unwrap().unwrap().number, 4);
    assert_eq!(unnamed(folder), [""; 0]);
    assert_eq!(folder.numbers().unwrap(), [2, 3, 4]);
    chain.end();
}

/// A bug: the fault was that of a missing file, after which no program tries again.
#[test]
fn a_compaction_whose_checkpoint_the_run_removes_is_to_be_tried_again() {
    let (dir, elsewhere) = (fast_folder(), fast_folder());
    let mut chain = Chain::new(dir.path(), false);
    make(&mut chain, 3);
    let folder = chain.folder().clone();
    let to = CheckpointFolder::open(elsewhere.path().to_str().unwrap(), &Context::default()).unwrap();
    let compactions = [None, Some(&to)].map(|to| folder.compaction(None, to).unwrap().unwrap());
    make(&mut chain, 4);
    assert_eq!(folder.numbers().unwrap(), [6, 7]);
    for compaction in compactions {
        let fault = compaction.write().unwrap_err();
        assert!(fault.domain == Domain::External && fault.to_string().contains("try again"), "{fault}");
    }
    chain.end();
}

/// A bug: `compact --keep 1` removed the files of the layers below it.
#[test]
fn a_checkpoint_that_a_run_makes_while_old_ones_are_removed_keeps_its_layers() {
    let dir = fast_folder();
    let mut chain = Chain::new(dir.path(), false);
    make(&mut chain, 2);
    let folder = chain.folder().clone();
    assert_eq!(folder.compact(None, None).unwrap().unwrap().number, 3);
    let pruning = folder.pruning(1).unwrap();
    make(&mut chain, 1);
    assert_eq!(folder.manifest(4).unwrap().tables[0].layers.len(), 3, "it builds on those that are to go");
    folder.remove_old(&pruning).unwrap();
    assert_eq!(folder.latest().unwrap().unwrap().number, 4);
    folder.prune(1).unwrap();
    assert_eq!((folder.numbers().unwrap(), unnamed(&folder)), (vec![4], Vec::new()));
    chain.end();
}
