//! At every call to an object store while checkpoints are made, and at a compaction, the call fails, its answer is lost, its effect comes
//! late, or the process dies: the promises are those of `fail_points.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_actors::{Domain, FaultKind};
use forebay_connectors::staged::Folder;

use super::chain::{Chain, load};
use super::fail_points::{CHECKPOINTS, check, run, unnamed};
use super::faulty_store::{FaultyStore, StoreFailure};
use crate::checkpoint::CheckpointFolder;
use crate::context::Context;

fn failures(at: usize) -> [StoreFailure; 5] {
    let late = StoreFailure::Late(1 + at * 7 % 40);
    [StoreFailure::Error, StoreFailure::Unheard, late, StoreFailure::Death, StoreFailure::DeathAfter]
}

fn open(store: &FaultyStore, context: &Context) -> CheckpointFolder {
    let folder = Folder::in_store(Arc::new(store.clone()), "run/checkpoints".into());
    CheckpointFolder { folder: folder.with_stores(&context.stores).open().unwrap() }
}

/// For a call without an effect, all kinds of failure are the same.
fn has_effect(call: &str) -> bool {
    !call.starts_with("get") && !call.starts_with("list")
}

#[test]
fn at_every_call_of_a_checkpoint_to_a_store() {
    let context = Context::default();
    for with_lifetime in [false, true] {
        let mut expected = BTreeMap::new();
        let counted = {
            let store = FaultyStore::new(usize::MAX, StoreFailure::Error);
            let mut chain = Chain::within(open(&store, &context), with_lifetime);
            assert_eq!(run(&mut chain, &mut expected), (1..=CHECKPOINTS).collect::<Vec<_>>());
            chain.end();
            store.passed()
        };
        assert!(counted.len() > 80, "{counted:#?}");
        for (at, call) in counted.iter().enumerate() {
            for failure in failures(at) {
                if !has_effect(call) && !matches!(failure, StoreFailure::Error | StoreFailure::Death) {
                    continue;
                }
                let what = format!("{failure:?} at call {at}, {call}");
                let store = FaultyStore::new(at, failure);
                let folder = open(&store, &context);
                let mut chain = Chain::within(folder.clone(), with_lifetime);
                let acknowledged = run(&mut chain, &mut expected).pop().unwrap_or(0);
                store.heals();
                let newest = check(&folder, &expected, with_lifetime, &what);
                assert!(newest >= acknowledged, "{what}: {acknowledged} was acknowledged, {newest} is the newest");
                if !matches!(failure, StoreFailure::Death | StoreFailure::DeathAfter) {
                    assert!(acknowledged + 1 >= CHECKPOINTS, "{what}: later checkpoints fail, too");
                    chain.checkpoint().unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(check(&folder, &expected, with_lifetime, &what), CHECKPOINTS);
                    assert_eq!(unnamed(&folder), [""; 0], "{what}");
                }
                chain.end();
            }
        }
    }
}

#[test]
fn at_every_call_of_a_compaction_to_a_store() {
    let (context, with_lifetime) = (Context::default(), true);
    let mut expected = BTreeMap::new();
    let mut compact = |at, failure| {
        let store = FaultyStore::new(usize::MAX, failure);
        let folder = open(&store, &context);
        let mut chain = Chain::within(folder.clone(), with_lifetime);
        for step in 1..=3 {
            chain.train();
            expected.entry(step).or_insert_with(|| chain.contents());
            chain.checkpoint().unwrap();
        }
        chain.end();
        let made = store.passed().len();
        store.fails_at(made + at);
        let done = folder.compact(None, None).and_then(|made| folder.prune(1).map(|()| made));
        let calls = store.passed().split_off(made);
        store.heals();
        let what = format!("{failure:?} at call {at}: {done:?}");
        assert_eq!(check(&folder, &expected, with_lifetime, &what), 3, "{what}");
        // A second time, with what the first has left.
        folder.compact(None, None).unwrap_or_else(|e| panic!("{what}: {e}"));
        folder.prune(1).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(check(&folder, &expected, with_lifetime, &what), 3, "{what}");
        assert_eq!((folder.numbers().unwrap().len(), unnamed(&folder)), (1, Vec::new()), "{what}");
        calls
    };
    let counted = compact(1 << 20, StoreFailure::Error);
    assert!(counted.len() > 20, "{counted:#?}");
    for at in 0..counted.len() {
        for failure in failures(at) {
            compact(at, failure);
        }
    }
}

/// A bug: a run on HDFS that was drained beside a compaction took the fault of a file that the compaction had removed for one that does not
/// pass, and saved a partial model in place of a checkpoint.
#[test]
fn a_checkpoint_whose_files_a_compaction_has_removed_may_be_tried_again() {
    let context = Context::default();
    // Writes checkpoint 3 while the file of the call `at` is gone. Returns the calls.
    let write = |at, compacts: bool| {
        let store = FaultyStore::new(usize::MAX, StoreFailure::Gone);
        let folder = open(&store, &context);
        let mut chain = Chain::within(folder.clone(), false);
        for _ in 0..2 {
            chain.train();
            chain.checkpoint().unwrap();
        }
        chain.train();
        let plan = chain.plan().unwrap();
        if compacts {
            assert_eq!(folder.compact(None, None).unwrap().unwrap().number, plan.number);
        }
        let before = store.passed().len();
        store.fails_at(before + at);
        let fault = chain.write(plan).unwrap_err();
        let calls = store.passed().split_off(before);
        match compacts {
            true => assert!(
                fault.domain == Domain::External && fault.to_string().contains("a compaction made it meanwhile"),
                "call {at}: {fault}"
            ),
            false => assert_eq!((fault.domain, fault.kind), (Domain::User, FaultKind::NotFound), "call {at}: {fault}"),
        }
        let next = chain.checkpoint().unwrap();
        assert_eq!(next.number, plan.number + u64::from(compacts), "call {at}");
        assert_eq!(load(&folder, &next, false).unwrap(), chain.contents(), "call {at}");
        chain.end();
        calls
    };
    let calls = write(1 << 20, true);
    let writes = |call: &str| ["begin", "part", "complete", "put"].iter().any(|kind| call.starts_with(kind));
    let writing: Vec<usize> = (0..calls.len()).filter(|at| writes(&calls[*at])).collect();
    assert!(writing.len() > 9 && calls.iter().any(|call| call.starts_with("put")), "{calls:#?}");
    for at in writing {
        write(at, true);
        write(at, false);
    }
}
