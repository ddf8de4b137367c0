//! Bytes of a checkpoint, read as `forebay checkpoint compact` and a trainer that continues from it do: manifest, rows, keys without a row,
//! dense parameters, kept gradients, running metrics. A test makes the corpus; `pack` adds checkpoints of your own. In
//! `pipelines`:
//!
//! ```sh
//! cargo test --lib write_the_corpus -- --ignored
//! cargo run --manifest-path fuzz/Cargo.toml --bin pack fuzz/corpus/checkpoint checkpoints/checkpoint-*.json
//! RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none checkpoint -- -max_total_time=600 -max_len=1048576 -rss_limit_mb=2048
//! ```
//!
//! (or with a nightly toolchain, and its sanitizer). What is read must be right or refused as the user's file; any panic is a finding.

#![no_main]

use forebay_actors::Domain;
use forebay_pipelines::{CheckpointFolder, Context, fuzzing};
use forebay_pipelines_fuzz::{NUMBER, unpack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let folder = folder.expect("a folder can be made");
    unpack(bytes, folder.path()).expect("the folder can be written");
    let context = Context::default();
    let open = |path: &std::path::Path| CheckpointFolder::open(path.to_str().expect("UTF-8"), &context).expect("a folder");
    let (from, to) = (open(folder.path()), open(&folder.path().join("to")));
    if let Err(fault) = fuzzing::read_checkpoint(&from, NUMBER, &to) {
        assert!(fault.domain == Domain::User, "{fault}");
    }
});
