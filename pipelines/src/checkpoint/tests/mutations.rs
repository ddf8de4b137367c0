//! Damaged checkpoints: random changes of real files give a fault or the right contents, and never a panic, a hang or memory that no
//! file has. `PROPTEST_CASES=100000` makes it a fuzzer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

use forebay_actors::{Domain, FaultKind};
use proptest::prelude::*;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_128;

use super::chain::{Chain, Contents, fast_folder, load};
use crate::checkpoint::{CheckpointFolder, CheckpointManifest};
use crate::context::Context;

/// A chain of three layers, with rows that come and go or not, and what it holds.
struct Made {
    folder: TempDir,
    contents: Contents,
}

fn made(with_lifetime: bool) -> &'static Made {
    static MADE: [OnceLock<Made>; 2] = [OnceLock::new(), OnceLock::new()];
    MADE[usize::from(with_lifetime)].get_or_init(|| {
        let folder = fast_folder();
        let mut chain = Chain::new(folder.path(), with_lifetime);
        for _ in 0..3 {
            chain.train();
            chain.checkpoint().unwrap();
        }
        let contents = chain.contents();
        chain.end();
        Made { folder, contents }
    })
}

/// A change of a file.
#[derive(Clone, Debug)]
enum Change {
    Flip(usize, u8),
    Cut(usize),
    Remove(usize, usize),
    /// Little-endian bytes of a number that asks for much.
    Number(usize, u64, usize),
    Repeat(usize, usize),
    /// Text in the place of a number of a manifest.
    Text(usize, &'static str),
}

fn change() -> impl Strategy<Value = Change> {
    let huge = prop_oneof![
        Just(u64::MAX),
        Just(i64::MAX as u64),
        Just(1 << 46),
        Just(1 << 31),
        Just(0x7fff_ffff),
        any::<u64>()
    ];
    let texts =
        ["18446744073709551615", "-1", "1e400", "0", "null", "[]", "\"\"", "{}", "9223372036854775807", "\"../../x\""];
    prop_oneof![
        3 => (any::<usize>(), 1u8..).prop_map(|(at, bits)| Change::Flip(at, bits)),
        1 => any::<usize>().prop_map(Change::Cut),
        1 => (any::<usize>(), 1usize..200).prop_map(|(at, n)| Change::Remove(at, n)),
        3 => (any::<usize>(), huge, prop_oneof![Just(4usize), Just(8)]).prop_map(|(at, n, bytes)| Change::Number(at, n, bytes)),
        1 => (any::<usize>(), 1usize..200).prop_map(|(at, n)| Change::Repeat(at, n)),
        3 => (any::<usize>(), prop::sample::select(texts.to_vec())).prop_map(|(at, text)| Change::Text(at, text)),
    ]
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        if len == 0 {
            return;
        }
        match *self {
            Self::Flip(at, bits) => bytes[at % len] ^= bits,
            Self::Cut(at) => bytes.truncate(at % len),
            Self::Remove(at, n) => drop(bytes.drain(at % len..(at % len + n).min(len))),
            Self::Number(at, number, wide) => {
                let at = (at % len) & !3;
                let n = wide.min(len - at);
                bytes[at..at + n].copy_from_slice(&number.to_le_bytes()[..n]);
            }
            Self::Repeat(at, n) => {
                let piece = bytes[at % len..(at % len + n).min(len)].to_vec();
                bytes.splice(at % len..at % len, piece);
            }
            Self::Text(at, text) => {
                // The next number of the text.
                let Some(begin) = (at % len..len).find(|&i| bytes[i].is_ascii_digit()) else { return };
                let end = (begin..len).find(|&i| !bytes[i].is_ascii_digit()).unwrap_or(len);
                bytes.splice(begin..end, text.bytes());
            }
        }
    }
}

/// Updates the lengths and checksums in the manifest, like someone who damages files on purpose.
fn sign(folder: &Path, manifest: &Path) {
    let Ok(mut json) = serde_json::from_slice::<serde_json::Value>(&std::fs::read(manifest).unwrap()) else { return };
    fn entries<'a>(value: &'a mut serde_json::Value, found: &mut Vec<&'a mut serde_json::Value>) {
        if value.get("xxh3").is_some() {
            return found.push(value);
        }
        match value {
            serde_json::Value::Array(all) => all.iter_mut().for_each(|value| entries(value, found)),
            serde_json::Value::Object(all) => all.values_mut().for_each(|value| entries(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    entries(&mut json, &mut found);
    for entry in found {
        let Some(Ok(bytes)) = entry["path"].as_str().map(|path| std::fs::read(folder.join(path))) else { continue };
        entry["bytes"] = bytes.len().into();
        entry["xxh3"] = format!("{:032x}", xxh3_128(&bytes)).into();
    }
    // The manifest gets no checksum of its own, like manifests of earlier programs.
    json.as_object_mut().map(|fields| fields.remove("checksum"));
    std::fs::write(manifest, serde_json::to_vec(&json).unwrap()).unwrap();
}

fn read(
    folder: &CheckpointFolder,
    with_lifetime: bool,
) -> Result<Option<(CheckpointManifest, Contents)>, forebay_actors::Fault> {
    let Some(newest) = folder.latest()? else { return Ok(None) };
    // A run that goes on uses these numbers of the position.
    let _ = (newest.position.batches.totals(), newest.rows_trained());
    let contents = load(folder, &newest, with_lifetime)?;
    Ok(Some((newest, contents)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_checkpoint_is_a_fault_or_right(
        with_lifetime: bool,
        which: prop::sample::Index,
        changes in prop::collection::vec(change(), 1..4),
        signed: bool,
        manifest_too in prop::option::weighted(0.2, change()),
    ) {
        let made = made(with_lifetime);
        let folder = fast_folder();
        let mut names = Vec::new();
        // Only the newest: an older one would hide the damage.
        for file in std::fs::read_dir(made.folder.path()).unwrap().map(Result::unwrap) {
            let name = file.file_name().into_string().unwrap();
            if !name.starts_with("checkpoint-") || name == "checkpoint-000003.json" {
                std::fs::copy(file.path(), folder.path().join(&name)).unwrap();
                names.push(name);
            }
        }
        names.sort();
        let manifest = folder.path().join("checkpoint-000003.json");
        let victim = folder.path().join(which.get(&names));
        let mut bytes = std::fs::read(&victim).unwrap();
        changes.iter().for_each(|change| change.apply(&mut bytes));
        std::fs::write(&victim, &bytes).unwrap();
        if signed && victim != manifest {
            sign(folder.path(), &manifest);
            if let Some(change) = &manifest_too {
                let mut text = std::fs::read(&manifest).unwrap();
                change.apply(&mut text);
                std::fs::write(&manifest, text).unwrap();
            }
        }
        let opened = CheckpointFolder::open(folder.path().to_str().unwrap(), &Context::default()).unwrap();
        let found = catch_unwind(AssertUnwindSafe(|| read(&opened, with_lifetime)));
        let found = found.map_err(|_| TestCaseError::fail(format!("a panic: {}", victim.display())))?;
        match found {
            Err(fault) => {
                prop_assert!(fault.domain == Domain::User, "{}", fault);
                // The folder finds no whole checkpoint, or the loader finds this one damaged.
                let damaged = fault.kind == FaultKind::Damaged || fault.to_string().contains("is whole: ");
                prop_assert!(signed || victim == manifest || damaged, "{}", fault);
            }
            Ok(None) => prop_assert!(false, "the checkpoint is passed over without a word"),
            // Without `sign`, a checksum finds the damage.
            Ok(Some((_, contents))) if !signed && victim != manifest => prop_assert!(contents == made.contents),
            Ok(_) => {}
        }
    }
}
