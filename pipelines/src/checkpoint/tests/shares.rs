//! Processes that hold some of the shards read the files that have keys of theirs, and no others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_actors::{Fault, FaultKind, Host};
use forebay_ps::{Route, start_shards};
use tempfile::TempDir;

use super::chain::{Chain, Contents, contents, fast_folder};
use crate::checkpoint::{CheckpointFolder, CheckpointManifest, load_rows};
use crate::context::Context;

/// The rows that a process with some of the shards has loaded.
fn share(folder: &CheckpointFolder, manifest: &CheckpointManifest, route: Route) -> Result<Contents, Fault> {
    let host = Host::start("test").unwrap();
    let table = start_shards(&host, manifest.tables[0].config.clone(), route).unwrap();
    let loaded = load_rows(folder, manifest, &table).map(|()| contents(std::slice::from_ref(&table), &[]));
    drop(table);
    host.stop().unwrap();
    loaded
}

/// Two layers of two shards, with keys without a row.
#[test]
fn a_process_reads_the_files_of_its_shards() {
    let dir = fast_folder();
    let mut chain = Chain::new(dir.path(), true);
    for _ in 0..2 {
        (0..3).for_each(|_| chain.train());
        chain.checkpoint().unwrap();
    }
    chain.end();
    let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
    let manifest = folder.latest().unwrap().unwrap();
    let files = || manifest.tables[0].layers.iter().flat_map(|layer| &layer.files);
    assert_eq!(files().count(), 2 * 2 * 2);
    let whole = share(&folder, &manifest, Route::new(1)).unwrap();
    for of in [&[1, 1][..], &[2, 1], &[4, 128], &[1, 2, 1], &[3, 1, 2, 1, 1]] {
        let routes = of.iter().enumerate().map(|(rank, shards)| Route::of_process(rank, of.len(), *shards));
        let parts: Vec<_> = routes.map(|route| share(&folder, &manifest, route).unwrap()).collect();
        assert!(parts.iter().all(|part| part.rows.len() > 3), "{parts:?}");
        let all = parts.into_iter().reduce(Contents::and).unwrap();
        assert_eq!(all, whole, "{of:?} shards");
    }
    // One layer of the same shards says their cells, too.
    let compacted = fast_folder();
    let to = CheckpointFolder::open(compacted.path().to_str().unwrap(), &Context::default()).unwrap();
    let compact = folder.compact(None, Some(&to)).unwrap().unwrap();
    let cells: Vec<_> = compact.tables[0].layers[0].files.iter().map(|file| file.cells).collect();
    assert_eq!(cells, [Some((0, 2048)), Some((2048, 4096)), None]);
    let halves = [0, 1].map(|rank| share(&to, &compact, Route::of_process(rank, 2, 1)).unwrap());
    let [before, after] = halves;
    assert_eq!(before.and(after), whole);
    // The files of the other half are gone.
    let first = share(&folder, &manifest, Route::of_process(0, 2, 1)).unwrap();
    for file in files().filter(|file| file.path.contains("-0001.")) {
        std::fs::remove_file(dir.path().join(&file.path)).unwrap();
    }
    assert_eq!(share(&folder, &manifest, Route::of_process(0, 2, 3)).unwrap(), first);
    let share = |rank| share(&folder, &manifest, Route::of_process(rank, 5, 1));
    assert!(share(1).is_ok() && share(2).is_err());
}

#[test]
fn a_compaction_that_is_stopped_leaves_nothing() {
    let (dir, other, stop) = (fast_folder(), fast_folder(), Arc::new(AtomicBool::new(false)));
    let mut chain = Chain::new(dir.path(), true);
    for _ in 0..3 {
        chain.train();
        chain.checkpoint().unwrap();
    }
    chain.end();
    let open = |dir: &TempDir| CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
    let files = || [&dir, &other].map(|dir| open(dir).folder.files().unwrap());
    let (before, stopped) = (files(), |dir| open(dir).stopped_by(Arc::clone(&stop)));
    let (folder, to) = (stopped(&dir), stopped(&other));
    for to in [None, Some(&to)] {
        let compaction = folder.compaction(None, to).unwrap().unwrap();
        stop.store(true, Ordering::SeqCst);
        assert_eq!(compaction.write().unwrap_err().kind, FaultKind::Drained);
        assert_eq!(files(), before);
        stop.store(false, Ordering::SeqCst);
    }
    assert_eq!(folder.compact(None, None).unwrap().unwrap().number, 4);
}

#[test]
fn files_that_do_not_say_the_right_cells_are_damaged() {
    let dir = fast_folder();
    let mut chain = Chain::new(dir.path(), false);
    chain.train();
    let manifest = chain.checkpoint().unwrap();
    chain.end();
    let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
    let with = |cells: [Option<(u32, u32)>; 2]| {
        let mut manifest = manifest.clone();
        let files = &mut manifest.tables[0].layers[0].files;
        files.iter_mut().zip(cells).for_each(|(file, cells)| file.cells = cells);
        share(&folder, &manifest, Route::new(3))
    };
    assert_eq!(manifest.tables[0].layers[0].files[1].cells, Some((2048, 4096)));
    let right = with([Some((0, 2048)), Some((2048, 4096))]).unwrap();
    assert_eq!(with([None, None]).unwrap(), right, "as an earlier program wrote it");
    for wrong in [
        [Some((0, 2048)), Some((2049, 4096))],
        [Some((0, 2048)), Some((2048, 4095))],
        [Some((0, 2048)), Some((0, 4096))],
        [Some((2048, 4096)), Some((0, 2048))],
        [Some((0, 4096)), None],
        [Some((0, 1000)), Some((1000, 4096))],
        [Some((2048, 0)), Some((0, 4096))],
    ] {
        let fault = with(wrong).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Damaged, "{wrong:?}: {fault}");
        assert!(fault.to_string().contains("cells"), "{fault}");
    }
}

/// The sign of a key, a weight or a state may make a row that a table refuses: the fault still says that the file is damaged, so that a
/// run continues from an older checkpoint.
#[test]
fn a_file_whose_bits_have_flipped_is_damaged_whatever_its_rows_are() {
    let dir = fast_folder();
    let mut chain = Chain::new(dir.path(), true);
    (0..3).for_each(|_| chain.train());
    let manifest = chain.checkpoint().unwrap();
    chain.end();
    let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
    for file in &manifest.tables[0].layers[0].files {
        let path = dir.path().join(&file.path);
        let right = std::fs::read(&path).unwrap();
        for sign in (3..right.len()).step_by(4) {
            let mut bytes = right.clone();
            bytes[sign] ^= 0x80;
            std::fs::write(&path, &bytes).unwrap();
            let fault = share(&folder, &manifest, Route::new(2)).unwrap_err();
            assert_eq!(fault.kind, FaultKind::Damaged, "byte {sign} of {}: {fault}", file.path);
            assert!(fault.to_string().contains("is damaged: its checksum is"), "{fault}");
        }
        std::fs::write(&path, right).unwrap();
    }
}
