//! Two processes that write into one folder: attempts of one run, and two starts of it.

use super::chain::{Chain, fast_folder};
use crate::checkpoint::CheckpointFolder;
use crate::context::Context;

fn open(folder: &tempfile::TempDir) -> CheckpointFolder {
    CheckpointFolder::open(folder.path().to_str().unwrap(), &Context::default()).unwrap()
}

/// A bug: the leader of an attempt hung while it published the first checkpoint. The next attempt had another number of the run, and none
/// of its checkpoints succeeded.
#[test]
fn a_late_checkpoint_of_an_earlier_attempt_does_not_stop_those_of_the_next() {
    let dir = fast_folder();
    let (mut earlier, mut next) = (Chain::started(open(&dir), false, 8), Chain::started(open(&dir), false, 8));
    let late = earlier.plan().unwrap();
    next.train();
    earlier.write(late).unwrap();
    assert_eq!(next.checkpoint().unwrap().number, 2);
    // The same after a restart of the coordinator, if the run has a checkpoint.
    let late = next.plan().unwrap();
    let mut restarted = Chain::started(open(&dir), false, 9);
    next.write(late).unwrap();
    assert_eq!(restarted.checkpoint().unwrap().number, 4);
    [earlier, next, restarted].into_iter().for_each(Chain::end);
}

/// A bug: both starts made checkpoints without end, with alternating numbers, and removed each other's.
#[test]
fn of_two_starts_that_continue_from_one_checkpoint_only_one_makes_more() {
    let dir = fast_folder();
    let mut first = Chain::started(open(&dir), false, 8);
    first.checkpoint().unwrap();
    let (mut one, mut other) = (Chain::started(open(&dir), false, 9), Chain::started(open(&dir), false, 10));
    assert_eq!(one.checkpoint().unwrap().number, 2);
    for chain in [&mut other, &mut first] {
        let said = chain.checkpoint().unwrap_err().to_string();
        assert!(
            said.contains("checkpoint-000002.json was written by another process that goes on with the same run"),
            "{said}"
        );
    }
    assert_eq!(one.checkpoint().unwrap().number, 3);
    [first, one, other].into_iter().for_each(Chain::end);
}
