//! The corpus of the fuzzer (`pipelines/fuzz`): whole checkpoints as runs of bytes, which are made here, and what the reader makes of
//! them and of their damaged copies.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use forebay_actors::{Domain, Fault, Lineage};
use forebay_batches::{BatchId, GradBatch, Ticket};
use forebay_job::StalenessRule;

use super::chain::{Chain, fast_folder, load};
use super::pack::{NUMBER, pack, unpack};
use crate::checkpoint::{CheckpointFolder, CheckpointManifest};
use crate::context::Context;
use crate::fuzzing::read_checkpoint;
use crate::metrics::running_metrics::RunningMetrics;

/// What the corpus begins with.
struct Seed {
    name: &'static str,
    /// Rows are admitted and removed, so there are files of keys without a row.
    with_lifetime: bool,
    /// The run has an exact order, so there are kept gradients.
    exact: bool,
}

const SEEDS: [Seed; 3] = [
    Seed { name: "rows", with_lifetime: false, exact: false },
    Seed { name: "lives", with_lifetime: true, exact: false },
    Seed { name: "kept", with_lifetime: false, exact: true },
];

fn open(folder: &Path) -> CheckpointFolder {
    CheckpointFolder::open(folder.to_str().unwrap(), &Context::default()).unwrap()
}

fn grads(index: u32) -> Arc<GradBatch> {
    Arc::new(GradBatch {
        lineage: Lineage::default(),
        id: BatchId { epoch: 0, window: 2, index },
        step: u64::from(index),
        samples: 7,
        unique: (0..5).collect(),
        row_grads: (0..20).map(|i| i as f32 - 9.5).collect(),
        dense_grads: (index == 1).then(|| vec![0.5, -0.0]),
        ticket: Ticket::free(),
    })
}

/// Calls `made` with a folder whose checkpoint 3 has three layers, and all kinds of files that it may have.
fn make(seed: &Seed, made: impl FnOnce(&Path, &CheckpointManifest)) {
    let folder = fast_folder();
    let mut chain = Chain::new(folder.path(), seed.with_lifetime);
    if seed.exact {
        chain.exact(StalenessRule { batches: 2, exactly: true }, (0..3).map(grads).collect());
    }
    let mut metrics = RunningMetrics::default();
    metrics.step(4, 0.7, &[0.3, -1.0, 2.0, 0.1], &[1.0, 0.0, 1.0, 0.0], None);
    chain.metrics(metrics);
    let mut manifest = None;
    for _ in 0..NUMBER {
        chain.train();
        manifest = Some(chain.checkpoint().unwrap());
    }
    let manifest = manifest.unwrap();
    assert_eq!((manifest.tables[0].layers.len(), manifest.kept.len()), (3, usize::from(seed.exact)));
    assert!(manifest.metrics.is_some() && manifest.dense.len() == 1);
    made(folder.path(), &manifest);
    chain.end();
}

fn packed(folder: &Path) -> Vec<u8> {
    pack(&folder.join(CheckpointManifest::name(NUMBER))).unwrap()
}

/// Reads bytes as the fuzzer does.
fn read(bytes: &[u8]) -> Result<(), Fault> {
    let folder = fast_folder();
    unpack(bytes, folder.path()).unwrap();
    let (from, to) = (open(folder.path()), open(&folder.path().join("to")));
    read_checkpoint(&from, NUMBER, &to)
}

/// Reads damaged bytes: they are a user's fault, or nothing is wrong with what they say.
fn refused_or_read(bytes: &[u8], what: &str) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(|| read(bytes)));
    let outcome = outcome.unwrap_or_else(|_| panic!("{what}: the reader panicked"));
    match outcome {
        Ok(()) => true,
        Err(fault) => {
            assert!(fault.domain == Domain::User, "{what}: {fault}");
            false
        }
    }
}

/// Every so many bytes, so that a debug build takes seconds.
const STEP: usize = 401;

#[test]
fn what_is_packed_is_the_checkpoint() {
    for seed in &SEEDS {
        make(seed, |folder, manifest| {
            let bytes = packed(folder);
            read(&bytes).unwrap_or_else(|fault| panic!("{}: {fault}", seed.name));
            let again = fast_folder();
            unpack(&bytes, again.path()).unwrap();
            let unpacked = open(again.path());
            let (before, after) = (load(&open(folder), manifest, seed.with_lifetime), unpacked.manifest(NUMBER));
            assert!(before.unwrap() == load(&unpacked, &after.unwrap(), seed.with_lifetime).unwrap(), "{}", seed.name);
        });
    }
}

#[test]
fn damaged_copies_are_read_or_refused() {
    for seed in &SEEDS {
        make(seed, |folder, _| {
            let (bytes, mut read) = (packed(folder), 0);
            let (mut copies, name) = (0, seed.name);
            for at in (0..bytes.len()).step_by(STEP) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                read += usize::from(refused_or_read(&flipped, &format!("{name}: a bit of byte {at}")));
                let mut huge = bytes.clone();
                let end = (at + 4).min(huge.len());
                huge[at..end].fill(0x7f);
                read += usize::from(refused_or_read(&huge, &format!("{name}: a number at {at}")));
                copies += 2;
            }
            for part in 1..16 {
                let cut = bytes.len() * part / 16;
                assert!(!refused_or_read(&bytes[..cut], &format!("{name}: cut after {cut} bytes")));
            }
            // Most bytes are numbers of rows, which may be any.
            assert!(0 < read && read < copies, "{name}: {read} of {copies} copies were read");
        });
    }
}

/// Writes the corpus: `cargo test -p forebay-pipelines --lib write_the_corpus -- --ignored`.
#[test]
#[ignore = "writes files"]
fn write_the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/checkpoint");
    std::fs::create_dir_all(&corpus).unwrap();
    for seed in &SEEDS {
        make(seed, |folder, _| std::fs::write(corpus.join(seed.name), packed(folder)).unwrap());
    }
}
