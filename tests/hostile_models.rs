//! Model folders are hostile input: each file is damaged in some hundred ways, by seed. What loads is the model that was saved, or, where
//! the damage was signed with right checksums, some model; all else is a user's fault that names a file. Nothing panics, waits, or asks for
//! memory that no file of its size needs.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

use forebay::actors::Domain;
use forebay::pipelines::{Context, ModelVersion, ServingModel};
use forebay::{Fault, Model};
use forebay_base::SplitMix64;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

/// Notes the largest piece of memory that was asked for.
struct Largest;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counter is an atomic and allocates nothing.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller keeps `alloc`'s promises, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Largest = Largest;

/// The largest piece of memory that a folder of some hundred KiB may ask for: windows and pages of fixed size are smaller.
const MOST_BYTES: usize = 64 << 20;

const CASES: u64 = 400;

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => files.extend(self::files(&entry)),
            false => files.push(entry),
        }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let path = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(file, path).unwrap();
    }
}

/// Damages a file, or takes it away, and says how.
fn damage(folder: &Path, random: &mut SplitMix64) -> (PathBuf, String) {
    let all = files(folder);
    let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
    let path = all[below(all.len())].clone();
    let mut bytes = fs::read(&path).unwrap();
    let len = bytes.len();
    let how = match below(8) {
        0 => {
            let (at, bit) = (below(len), below(8));
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at}")
        }
        1 => {
            bytes.truncate(below(len));
            format!("cut to {} of {len} bytes", bytes.len())
        }
        2 => {
            fs::remove_file(&path).unwrap();
            return (path, "removed".into());
        }
        3 => {
            let other = &all[below(all.len())];
            let others = fs::read(other).unwrap();
            fs::write(other, &bytes).unwrap();
            bytes = others;
            format!("swapped with {}", other.display())
        }
        4 => {
            let number = [u64::MAX, 1 << 46, 1 << 31, 0x7fff_ffff][below(4)].to_le_bytes();
            let (at, n) = (below(len) & !3, [4, 8][below(2)]);
            let end = (at + n).min(len);
            bytes[at..end].copy_from_slice(&number[..end - at]);
            format!("a large number at {at}")
        }
        5 => {
            let at = below(len);
            let end = (at + 1 + below(200)).min(len);
            bytes.drain(at..end);
            format!("bytes {at}..{end} removed")
        }
        6 => {
            let from = below(len);
            // A number of a manifest or of a header in JSON, if there is one behind this place.
            let Some(begin) = (from..len).find(|&at| bytes[at].is_ascii_digit()) else {
                bytes.extend_from_slice(b"more");
                fs::write(&path, &bytes).unwrap();
                return (path, "longer".into());
            };
            let end = (begin..len).find(|&at| !bytes[at].is_ascii_digit()).unwrap_or(len);
            let text =
                ["18446744073709551615", "-1", "1e400", "0", "null", "[]", "4294967295", "99999999999"][below(8)];
            bytes.splice(begin..end, text.bytes());
            format!("{text} in the place of the number at {begin}")
        }
        _ => {
            bytes.clear();
            "emptied".into()
        }
    };
    fs::write(&path, &bytes).unwrap();
    (path, how)
}

/// Updates the lengths and checksums in the manifest, like someone who damages a folder on purpose.
fn sign(folder: &Path) {
    fn entries<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
        if value.get("xxh3").is_some() {
            return found.push(value);
        }
        match value {
            Value::Array(all) => all.iter_mut().for_each(|value| entries(value, found)),
            Value::Object(all) => all.values_mut().for_each(|value| entries(value, found)),
            _ => {}
        }
    }
    let manifest = folder.join("manifest.json");
    let Ok(text) = fs::read(&manifest) else { return };
    let Ok(mut json) = serde_json::from_slice::<Value>(&text) else { return };
    let mut found = Vec::new();
    entries(&mut json, &mut found);
    for entry in found {
        let Some(Ok(bytes)) = entry["path"].as_str().map(|path| fs::read(folder.join(path))) else { continue };
        entry["bytes"] = bytes.len().into();
        entry["xxh3"] = format!("{:032x}", xxh3_128(&bytes)).into();
    }
    // The manifest gets no checksum of its own, like manifests of earlier programs.
    json.as_object_mut().map(|fields| fields.remove("checksum"));
    fs::write(manifest, serde_json::to_vec(&json).unwrap()).unwrap();
}

/// Loads the folder to evaluate with and to serve. Fails the test if that takes too long or panics.
fn load(folder: &Path, what: &str) -> Result<ModelVersion, Fault> {
    let (sender, receiver) = mpsc::channel();
    let path = folder.to_owned();
    std::thread::spawn(move || {
        let loaded = catch_unwind(AssertUnwindSafe(|| {
            let whole = Model::load(&path, 1).map(drop);
            let served = ServingModel::load(&path, &[], &Context::default()).map(|model| model.version());
            whole.and(served)
        }));
        let _ = sender.send(loaded);
    });
    let loaded = receiver.recv_timeout(common::DEADLINE).unwrap_or_else(|_| panic!("{what}: it is still being loaded"));
    loaded.unwrap_or_else(|_| panic!("{what}: a panic"))
}

#[test]
fn a_damaged_folder_is_refused_by_the_name_of_a_file_or_is_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 600);
    let saved = dir.path().join("saved");
    common::train(common::job(&data, &["table.shards=2"])).model.save(&saved).unwrap();
    let version = load(&saved, "as it was saved").unwrap();
    let (mut refused, mut loaded) = ([0, 0], [0, 0]);
    for seed in 0..CASES {
        let mut random = SplitMix64::new(seed);
        let folder = dir.path().join("damaged");
        copy(&saved, &folder);
        let signed = seed % 2 == 1;
        let (victim, how) = damage(&folder, &mut random);
        if signed {
            sign(&folder);
        }
        let name = victim.file_name().unwrap().to_str().unwrap().to_owned();
        let what = format!("seed {seed}, signed {signed}: {name}, {how}");
        LARGEST.store(0, Relaxed);
        let found = load(&folder, &what);
        let largest = LARGEST.load(Relaxed);
        assert!(largest <= MOST_BYTES, "{what}: {largest} bytes were asked for");
        match found {
            Ok(found) => {
                loaded[usize::from(signed)] += 1;
                assert!(signed || found == version, "{what}: another model");
            }
            Err(fault) => {
                refused[usize::from(signed)] += 1;
                let said = fault.to_string();
                assert!(fault.domain == Domain::User, "{what}: {said}");
                let names = files(&saved).iter().any(|file| said.contains(file.file_name().unwrap().to_str().unwrap()));
                assert!(names || said.contains("damaged"), "{what} names no file: {said}");
            }
        }
        fs::remove_dir_all(&folder).unwrap();
    }
    // Damage that is signed goes deeper than the checksums.
    assert!(refused[0] > 150 && refused[1] > 50 && loaded[1] > 10, "refused {refused:?}, loaded {loaded:?}");
}
