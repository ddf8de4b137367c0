//! What cannot be read now is not damaged: it may be readable later, so no older checkpoint takes its place. What is not there is damaged.

use std::sync::Arc;

use forebay_actors::{Domain, FaultKind};
use forebay_connectors::staged::Folder;
use forebay_connectors::staged::fail_points::{PointFailure, arm};
use object_store::memory::InMemory;

use super::chain::{Chain, fast_folder, load};
use crate::checkpoint::{CheckpointFolder, DamagedCheckpoints};
use crate::model_folder::checked;

/// Makes three checkpoints. The newest two stay.
fn three(chain: &mut Chain) {
    for _ in 0..3 {
        chain.train();
        chain.checkpoint().unwrap();
    }
}

#[test]
fn no_older_checkpoint_takes_the_place_of_one_that_cannot_be_read_now() {
    let dir = fast_folder();
    let mut chain = Chain::new(dir.path(), false);
    three(&mut chain);
    let folder = chain.folder();
    let newest = || folder.newest(&DamagedCheckpoints::default());
    let points = {
        let armed = arm(dir.path(), usize::MAX, PointFailure::Error);
        assert_eq!(newest().unwrap().unwrap().number, 3);
        armed.passed()
    };
    assert!(points.iter().any(|point| point.contains("before read")), "{points:?}");
    for (at, point) in points.iter().enumerate() {
        let armed = arm(dir.path(), at, PointFailure::Error);
        assert_eq!(newest().unwrap().unwrap().number, 3, "{point} fails once");
        drop(armed);
        let _armed = arm(dir.path(), at, PointFailure::Death);
        let fault = newest().unwrap_err();
        assert_eq!(fault.domain, Domain::External, "{point} always fails: {fault}");
    }
    chain.end();
}

/// A bug: a manifest that could not be read was taken for a damaged one, which does not say which run wrote it.
#[test]
fn no_checkpoint_follows_one_that_cannot_be_read_now() {
    let dir = fast_folder();
    let mut chain = Chain::new(dir.path(), false);
    three(&mut chain);
    let points = {
        let armed = arm(dir.path(), usize::MAX, PointFailure::Error);
        chain.plan().unwrap();
        armed.passed()
    };
    for (at, point) in points.iter().enumerate().filter(|(_, point)| point.contains("before read")) {
        let armed = arm(dir.path(), at, PointFailure::Error);
        assert_eq!(chain.plan().unwrap_err().domain, Domain::External, "{point}");
        drop(armed);
    }
    assert_eq!(chain.plan().unwrap().number, 4);
    chain.end();
}

#[test]
fn a_file_that_has_vanished_is_damage_in_every_store() {
    let dir = fast_folder();
    let local = Folder::from(dir.path().join("local"));
    let folders = [local, Folder::in_store(Arc::new(InMemory::new()), "memory".into())];
    for folder in folders.map(|folder| CheckpointFolder { folder: folder.open().unwrap() }) {
        let mut chain = Chain::within(folder, false);
        three(&mut chain);
        let folder = chain.folder();
        let manifest = folder.newest(&DamagedCheckpoints::default()).unwrap().unwrap();
        // After the coordinator has chosen the checkpoint.
        folder.folder.remove(&manifest.dense[0].path).unwrap();
        folder.folder.remove(&manifest.tables[0].layers[2].files[1].path).unwrap();
        let faults = [
            load(folder, &manifest, false).unwrap_err(),
            checked::bytes(&folder.folder, &manifest.dense[0]).unwrap_err(),
            folder.manifest(7).unwrap_err(),
        ];
        for fault in faults {
            assert_eq!((fault.kind, fault.domain), (FaultKind::Damaged, Domain::User), "{fault}");
        }
        assert_eq!(folder.latest().unwrap().unwrap().number, 2);
        chain.end();
    }
}

#[test]
fn a_damaged_manifest_is_found_as_damaged() {
    let dir = fast_folder();
    let mut chain = Chain::new(dir.path(), false);
    three(&mut chain);
    let (folder, at) = (chain.folder(), dir.path().join("checkpoint-000003.json"));
    let whole = std::fs::read_to_string(&at).unwrap();
    let signed = |text: &str| whole.replacen(text, "", 1);
    for wrong in
        ["{".into(), String::new(), signed("forebay checkpoint"), signed("\"number\""), whole.replace(": 3,", ": 4,")]
    {
        std::fs::write(&at, wrong).unwrap();
        let fault = folder.manifest(3).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Damaged, "{fault}");
        assert_eq!(folder.newest(&DamagedCheckpoints::default()).unwrap().unwrap().number, 2);
    }
    chain.end();
}
