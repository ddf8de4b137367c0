//! The folder of a run's checkpoints, in any store. Everything here blocks on the store.
//!
//! ```text
//! checkpoints/
//!   checkpoint-000012.json                  the manifest: written last, it makes the checkpoint
//!   000012-9f3a51c2-embedding-0000.arrow    rows of one shard
//!   000012-9f3a51c2-dense.safetensors       dense parameters and the state of their optimizer
//! ```
//! Files of a checkpoint are never written again: their names carry the number of the checkpoint and a random number of the try. A try that
//! fails removes its files. A file that no manifest names comes from a process that died. The next checkpoint of the run removes it, or the
//! next compaction to a checkpoint of its number.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use forebay_actors::{Domain, Fault, FaultKind};
use forebay_base::Backoff;
use forebay_connectors::staged::{Folder, OpenFolder};

use super::author::Author;
use super::manifest::{CheckpointManifest, TableLayer};
use super::origin::{DamagedCheckpoints, OriginCheckpoint, not_used};
use crate::checkpoint_name;
use crate::context::Context;
use crate::model_folder::{MANIFEST, checked};

/// How often a read is repeated if the disk or the store fails.
const TRIES: usize = 4;

/// The wait before the second try. Unit tests have stores that fail a thousand times.
const FIRST_WAIT: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 200 });

/// A folder of checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    pub(crate) folder: OpenFolder,
}

impl CheckpointFolder {
    /// Opens the folder at a path or URL. It need not be there yet.
    pub fn open(at: &str, context: &Context) -> Result<Self, Fault> {
        let folder = Folder::from(at).with_stores(&context.stores).open()?;
        if folder.is_file()? {
            return Err(
                Fault::user(format!("`{folder}` is a file: name a folder for checkpoints")).kind(FaultKind::InvalidJob)
            );
        }
        Ok(Self { folder })
    }

    /// After `stop` is set, writing a file of rows fails with a fault of the kind [`FaultKind::Drained`].
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        Self { folder: self.folder.stopped_by(stop) }
    }

    /// Fails if the folder holds a model, an export or a delta, which are replaced as a whole.
    pub(crate) fn check_place(&self) -> Result<(), Fault> {
        match self.folder.has(MANIFEST)? {
            false => Ok(()),
            true => Err(Fault::user(format!(
                "{} has a {MANIFEST}, as models, exports and deltas have: name a folder of its own for checkpoints",
                self.folder
            ))
            .kind(FaultKind::InvalidJob)),
        }
    }

    /// Writes and removes a small file, as checkpoints will be written; leaves no local folder that was not there. If the disk of a local
    /// folder is unmounted later, no checkpoint is written to the disk beneath.
    ///
    /// # Errors
    /// A user fault if the folder holds something else, or cannot be written; an external fault of a disk or a store.
    pub(crate) fn probe(&self) -> Result<(), Fault> {
        self.check_place()?;
        self.folder.probe(&file_name(0, forebay_base::random_seed(), "probe"))
    }

    /// The numbers of the checkpoints, lowest first.
    pub fn numbers(&self) -> Result<Vec<u64>, Fault> {
        let mut numbers: Vec<u64> =
            self.folder.files()?.iter().filter_map(|(name, _)| checkpoint_name::number_of(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// As [`numbers`](Self::numbers), for a folder that must have checkpoints, and `number` among them.
    ///
    /// # Errors
    /// A user fault of the kind [`FaultKind::NotFound`] if it has none, or others; then the fault lists these. An external fault if the
    /// store fails.
    pub fn numbers_with(&self, number: Option<u64>) -> Result<Vec<u64>, Fault> {
        let numbers = self.numbers()?;
        if numbers.is_empty() {
            return Err(self.has_none());
        }
        if let Some(number) = number.filter(|number| !numbers.contains(number)) {
            let there: Vec<String> = numbers.iter().map(u64::to_string).collect();
            let message = format!("{} has no checkpoint {number}, it has: {}", self.folder, there.join(", "));
            return Err(Fault::user(message).kind(FaultKind::NotFound));
        }
        Ok(numbers)
    }

    pub(super) fn has_none(&self) -> Fault {
        Fault::user(format!("{} has no checkpoints", self.folder)).kind(FaultKind::NotFound)
    }

    /// The manifest of a checkpoint.
    ///
    /// # Errors
    /// A user fault that names the file if it is missing or damaged.
    pub fn manifest(&self, number: u64) -> Result<CheckpointManifest, Fault> {
        CheckpointManifest::read(&self.folder, number)
    }

    /// Reads all files of a checkpoint and compares their lengths and checksums.
    ///
    /// # Errors
    /// A user fault that names the damaged file.
    pub fn verify(&self, number: u64) -> Result<CheckpointManifest, Fault> {
        let manifest = self.manifest(number)?;
        self.verify_files(&manifest)?;
        Ok(manifest)
    }

    fn verify_files(&self, manifest: &CheckpointManifest) -> Result<(), Fault> {
        manifest.files().try_for_each(|entry| checked::verify(&self.folder, entry))
    }

    /// The newest checkpoint that is whole: reads all its files. Logs damaged checkpoints and passes over them.
    ///
    /// # Errors
    /// An external fault if the store fails; a user fault if a file may not be read, if there are checkpoints and none is whole
    /// ([`FaultKind::Damaged`]), or if another version of the program wrote the newest. A run that continued from an older one would repeat
    /// the work of the newest checkpoint and replace it.
    pub fn latest(&self) -> Result<Option<CheckpointManifest>, Fault> {
        let mut damaged = DamagedCheckpoints::default();
        loop {
            let Some(manifest) = self.newest(&damaged)? else { return Ok(None) };
            match self.verify_files(&manifest) {
                Ok(()) => return Ok(Some(manifest)),
                Err(fault) if fault.kind == FaultKind::Damaged => {
                    damaged.add(OriginCheckpoint::own(manifest.number), fault);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The newest checkpoint whose manifest is whole, whose files are all there with their lengths, and which is not among `damaged`. The
    /// files are not read: checksums are compared when they are loaded.
    ///
    /// # Errors
    /// As [`latest`](Self::latest).
    pub(crate) fn newest(&self, damaged: &DamagedCheckpoints) -> Result<Option<CheckpointManifest>, Fault> {
        let files: HashMap<String, u64> = retry_read(|| self.folder.files())?.into_iter().collect();
        let mut because = damaged.fault();
        let mut numbers: Vec<u64> = files.keys().filter_map(|name| checkpoint_name::number_of(name)).collect();
        numbers.sort_unstable();
        let found = numbers.len();
        numbers.retain(|number| !damaged.has(OriginCheckpoint::own(*number)));
        for number in numbers.into_iter().rev() {
            let manifest = retry_read(|| self.manifest(number));
            match manifest.and_then(|manifest| self.check_lengths(&files, &manifest).map(|()| manifest)) {
                Ok(manifest) => return Ok(Some(manifest)),
                Err(fault) if fault.kind == FaultKind::Damaged => {
                    not_used(number, &fault);
                    because.get_or_insert(fault);
                }
                // This checkpoint may be whole. A run from an older one would replace it, and later checkpoints would remove it.
                Err(fault) => return Err(fault),
            }
        }
        match because {
            Some(fault) if found > 0 => Err(Fault::user(format!("no checkpoint in {} is whole", self.folder))
                .kind(FaultKind::Damaged)
                .because(fault)),
            _ => Ok(None),
        }
    }

    pub(super) fn check_lengths(
        &self,
        files: &HashMap<String, u64>,
        manifest: &CheckpointManifest,
    ) -> Result<(), Fault> {
        for entry in manifest.files() {
            let found = files.get(&entry.path);
            if found != Some(&entry.bytes) {
                let name = self.folder.name(&entry.path);
                let found = found.map_or_else(|| "is not there".to_owned(), |bytes| format!("has {bytes} bytes"));
                let message = format!("{name} {found}, expected {} bytes", entry.bytes);
                return Err(Fault::user(message).kind(FaultKind::Damaged));
            }
        }
        Ok(())
    }

    /// The author of the checkpoints that a start of a run will write here.
    ///
    /// # Errors
    /// The store fails, or another version of the program wrote the newest checkpoint.
    pub(crate) fn author(&self, run: u64, start: u64) -> Result<Author, Fault> {
        let Some(newest) = retry_read(|| self.numbers())?.pop() else {
            return Ok(Author { run, start, before: (0, 0) });
        };
        let before = match retry_read(|| self.manifest(newest)) {
            Ok(manifest) => manifest.start,
            // A damaged manifest does not say which start wrote it.
            Err(fault) if fault.kind == FaultKind::Damaged => 0,
            Err(fault) => return Err(fault),
        };
        Ok(Author { run, start, before: (newest, before) })
    }

    /// The number of the next checkpoint of `author`.
    ///
    /// # Errors
    /// A user fault if the newest checkpoint is of another run or of another process that goes on with it, or of another version of the
    /// program. The store fails.
    pub(crate) fn next_number(&self, author: &Author) -> Result<u64, Fault> {
        let Some(&newest) = self.numbers()?.last() else { return Ok(1) };
        // A damaged manifest does not say which run wrote it.
        match self.manifest(newest) {
            Ok(manifest) if manifest.position.run != author.run => Err(self.another_run(newest)),
            Ok(manifest) if !author.may_follow(&manifest) => {
                let other = format!(
                    "{} was written by another process that goes on with the same run: only one may, stop the other",
                    self.folder.name(&CheckpointManifest::name(newest))
                );
                Err(Fault::user(other).kind(FaultKind::Overtaken))
            }
            Err(fault) if fault.kind != FaultKind::Damaged => Err(fault),
            _ => Ok(newest + 1),
        }
    }

    fn another_run(&self, number: u64) -> Fault {
        Fault::user(format!(
            "{} was written by another run: give each run a folder of its own (checkpoint.to)",
            self.folder.name(&CheckpointManifest::name(number))
        ))
        .kind(FaultKind::Overtaken)
    }

    /// Whether all files of these layers are there, with their lengths.
    pub(crate) fn has_layers(&self, layers: &[TableLayer]) -> Result<bool, Fault> {
        let files: HashSet<(String, u64)> = self.folder.files()?.into_iter().collect();
        let mut named = layers.iter().flat_map(|layer| &layer.files);
        Ok(named.all(|entry| files.contains(&(entry.path.clone(), entry.bytes))))
    }

    /// Makes `manifest` a checkpoint.
    ///
    /// # Errors
    /// A user fault if another run wrote one of its number; else as [`overtaken`](Self::overtaken).
    pub(crate) fn publish(&self, manifest: &CheckpointManifest) -> Result<(), Fault> {
        let (number, run) = (manifest.number, manifest.position.run);
        let fault = match self.folder.put_new(&CheckpointManifest::name(number), manifest.to_json()?) {
            Ok(true) => return Ok(()),
            Ok(false) => self.another_run(number),
            Err(fault) => fault,
        };
        Err(self.overtaken(number, run, fault))
    }

    /// The fault of a try to write checkpoint `number` of `run`. A compaction to a checkpoint of this number removes the files of all other
    /// tries, also those that HDFS has under their hidden names: then the fault is external, because the next try succeeds. The fault is
    /// also external if another process of this run made the checkpoint: [`next_number`](Self::next_number) tells the two cases apart. It
    /// has no kind: after one of the kind [`FaultKind::Overtaken`] a run makes no more checkpoints.
    pub(crate) fn overtaken(&self, number: u64, run: u64, fault: Fault) -> Fault {
        // External faults are tried again as they are.
        if fault.domain != Domain::User {
            return fault;
        }
        match self.manifest(number) {
            Ok(there) if there.position.run == run => Fault::external(format!(
                "{} is there already: a compaction made it meanwhile, or another process of this run",
                self.folder.name(&CheckpointManifest::name(number))
            )),
            _ => fault,
        }
    }

    /// Removes the files of tries to write checkpoint `number` that no manifest names. There is a checkpoint of this number, so a process
    /// that still writes one cannot make it.
    pub(super) fn discard_others(&self, number: u64) -> Result<(), Fault> {
        let mut named = HashSet::new();
        for other in self.numbers()? {
            named.extend(self.manifest(other)?.files().map(|entry| entry.path.clone()));
        }
        for (name, _) in self.folder.files()? {
            if file_number(&name) == Some(number) && !named.contains(&name) {
                self.folder.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes the files of a try that has written no manifest.
    pub(crate) fn discard(&self, number: u64, try_id: u64) -> Result<(), Fault> {
        let of_it = file_name(number, try_id, "");
        for (name, _) in self.folder.files()? {
            if unfinished(&name).unwrap_or(&name).starts_with(&of_it) {
                self.folder.remove(&name)?;
            }
        }
        Ok(())
    }
}

/// Calls `read`, and again a few times after a fault of the disk or the store, which may pass.
#[allow(clippy::disallowed_methods, reason = "everything here blocks its thread")]
fn retry_read<T>(mut read: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
    let mut waits = Backoff::equal_jitter(FIRST_WAIT, FIRST_WAIT * 8);
    for _ in 0..TRIES {
        match read() {
            Err(fault) if fault.domain == Domain::External => {
                tracing::warn!("{fault}; trying again");
                std::thread::sleep(waits.next_wait());
            }
            done => return done,
        }
    }
    read()
}

/// The name of a file of a checkpoint. `try_id` differs from try to try.
pub(crate) fn file_name(number: u64, try_id: u64, what: &str) -> String {
    format!("{number:06}-{:08x}-{what}", try_id as u32)
}

/// The name that a file gets when it is complete: until then it is `.NAME.tmp.N` on HDFS, and a manifest on a local disk `.NAME.partial-N`.
fn unfinished(name: &str) -> Option<&str> {
    let hidden = name.strip_prefix('.')?;
    let (name, number) = hidden.rsplit_once(".tmp.").or_else(|| hidden.rsplit_once(".partial-"))?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(name)
}

/// The number of the checkpoint that a file was written for. Of manifests, it takes only those that were not finished.
pub(super) fn file_number(name: &str) -> Option<u64> {
    let hidden = unfinished(name);
    if let Some(number) = hidden.and_then(checkpoint_name::number_of) {
        return Some(number);
    }
    let name = hidden.unwrap_or(name);
    let (number, rest) = name.split_once('-')?;
    let (try_id, _) = rest.split_once('-')?;
    u32::from_str_radix(try_id, 16).ok()?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use forebay_job::Job;

    use super::super::manifest::{TableLayers, TrainPosition};
    use super::*;
    use crate::model_folder::FileEntry;
    use crate::model_folder::checked::CheckedWriter;

    fn write(folder: &CheckpointFolder, name: &str, bytes: &[u8]) -> FileEntry {
        let mut file = CheckedWriter::new(folder.folder.create(name).unwrap());
        file.write_all(bytes).unwrap();
        file.finish(name, None).unwrap()
    }

    /// A checkpoint whose table has its own file and the files of `below`.
    fn checkpoint(folder: &CheckpointFolder, number: u64, below: &[TableLayer]) -> CheckpointManifest {
        let file = write(folder, &file_name(number, number * 7, "t-0000.arrow"), &[number as u8; 100]);
        let mut layers = below.to_vec();
        layers.push(TableLayer { checkpoint: number, files: vec![file] });
        let config = Job::default().table_config(&[]);
        let tables = vec![TableLayers { config, layers }];
        let manifest = CheckpointManifest::new(number, Job::default(), TrainPosition::default(), tables, Vec::new());
        folder.publish(&manifest).unwrap();
        manifest
    }

    fn names(folder: &CheckpointFolder) -> Vec<String> {
        folder.folder.files().unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn the_newest_whole_checkpoint_is_found_and_old_files_go_when_nothing_names_them() {
        let dir = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(dir.path().join("c").to_str().unwrap(), &Context::default()).unwrap();
        assert!(folder.latest().unwrap().is_none());
        let base = checkpoint(&folder, 1, &[]);
        let second = checkpoint(&folder, 2, &base.tables[0].layers);
        write(&folder, &file_name(3, 5, "t-0000.arrow"), b"a try that failed");
        checkpoint(&folder, 3, &second.tables[0].layers);
        write(&folder, &file_name(4, 5, "t-0000.arrow"), b"under way");
        std::fs::write(dir.path().join("c/notes.txt"), "mine").unwrap();
        folder.prune(2).unwrap();
        assert_eq!(folder.numbers().unwrap(), [2, 3]);
        let left = names(&folder);
        assert!(left.iter().any(|name| name.starts_with("000001-")), "checkpoint 2 and 3 name it: {left:?}");
        assert!(!left.iter().any(|name| name.starts_with("000003-00000005")), "{left:?}");
        assert!(left.iter().any(|name| name.starts_with("000004-")) && left.contains(&"notes.txt".to_owned()));
        assert_eq!(folder.latest().unwrap().unwrap().number, 3);
        // A flipped byte in the newest one.
        let third = left.iter().find(|name| name.starts_with("000003-")).unwrap();
        let at = dir.path().join("c").join(third);
        let mut bytes = std::fs::read(&at).unwrap();
        bytes[50] ^= 1;
        std::fs::write(&at, bytes).unwrap();
        assert_eq!(folder.latest().unwrap().unwrap().number, 2);
        let said = folder.verify(3).unwrap_err().to_string();
        assert!(said.contains(third.as_str()) && said.contains("is damaged"), "{said}");
        // A flipped digit in the newest manifest, which is still valid JSON; a manifest of an earlier program has no checksum.
        let manifest = dir.path().join("c").join(CheckpointManifest::name(3));
        let text = std::fs::read_to_string(&manifest).unwrap();
        let flipped = text.replacen("\"steps\": 0", "\"steps\": 1", 1);
        assert_ne!(text, flipped);
        std::fs::write(&manifest, &flipped).unwrap();
        let said = folder.manifest(3).unwrap_err().to_string();
        assert!(said.contains("is damaged: its checksum is"), "{said}");
        let (unsigned, _) = flipped.split_once(",\n  \"checksum\"").unwrap();
        std::fs::write(&manifest, format!("{unsigned}\n}}")).unwrap();
        assert_eq!(folder.manifest(3).unwrap().position.steps, 1);
        // A torn manifest.
        std::fs::write(dir.path().join("c/checkpoint-000009.json"), "{\"format\": \"forebay ch").unwrap();
        assert_eq!(folder.latest().unwrap().unwrap().number, 2);
        std::fs::remove_file(dir.path().join("c").join(CheckpointManifest::name(2))).unwrap();
        let said = folder.latest().unwrap_err().to_string();
        assert!(said.contains("no checkpoint in") && said.contains("is whole"), "{said}");
    }

    #[test]
    fn files_that_killed_writers_did_not_finish_go_with_the_next_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
        let hidden = |name: String| format!(".{name}.tmp.1");
        let local = format!(".{}.partial-77", CheckpointManifest::name(1));
        let old = [hidden(file_name(1, 5, "t-0000.arrow")), hidden(CheckpointManifest::name(1)), local];
        let stays = [hidden(file_name(2, 5, "t-0000.arrow")), hidden("notes".into()), ".000001-tmp".to_owned()];
        old.iter().chain(&stays).for_each(|name| std::fs::write(dir.path().join(name), "cut short").unwrap());
        checkpoint(&folder, 1, &[]);
        folder.prune(1).unwrap();
        let left = names(&folder);
        assert!(old.iter().all(|name| !left.contains(name)), "{left:?}");
        assert!(stays.iter().all(|name| left.contains(name)), "{left:?}");
        folder.discard(2, 5).unwrap();
        assert!(!names(&folder).contains(&stays[0]), "a try that failed");
        assert_eq!(folder.numbers().unwrap(), [1]);
    }

    #[test]
    fn a_second_run_in_the_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
        let mut manifest = checkpoint(&folder, 1, &[]);
        folder.publish(&manifest).unwrap();
        manifest.written += 1;
        let fault = folder.publish(&manifest).unwrap_err();
        assert!(fault.domain == Domain::External && fault.to_string().contains("a compaction made it"), "{fault}");
        manifest.position.run += 1;
        let fault = folder.publish(&manifest).unwrap_err();
        assert!(fault.domain == Domain::User && fault.to_string().contains("was written by another run"), "{fault}");
        manifest.position.run -= 1;
        let next = |run| folder.author(run, 1).and_then(|author| folder.next_number(&author));
        assert_eq!(next(manifest.position.run).unwrap(), 2);
        assert!(next(77).unwrap_err().to_string().contains("was written by another run"));
    }

    /// As a later program would write it: `change` is done to the JSON, and the checksum is right.
    fn rewritten(folder: &CheckpointFolder, number: u64, change: impl Fn(String) -> String) {
        let manifest = folder.manifest(number).unwrap();
        let json = change(String::from_utf8(manifest.to_json().unwrap()).unwrap());
        let (signed, _) = json.rsplit_once(",\n  \"checksum\"").unwrap();
        let checksum = xxhash_rust::xxh3::xxh3_128(signed.as_bytes());
        let name = CheckpointManifest::name(number);
        folder.folder.remove(&name).unwrap();
        let json = format!("{signed},\n  \"checksum\": \"{checksum:032x}\"\n}}");
        assert!(folder.folder.put_new(&name, json.into_bytes()).unwrap());
    }

    #[test]
    fn a_checkpoint_of_a_later_program_is_refused_by_its_version_and_none_takes_its_place() {
        let newer = |json: String| json.replacen("\"forebay\": \"", "\"forebay\": \"9.", 1);
        let cases: [(&str, &dyn Fn(String) -> String); 3] = [
            ("unknown field", &|json| newer(json).replacen("\"batch_rows\"", "\"foresight\": 3,\n \"batch_rows\"", 1)),
            ("version 77 of the format", &|json| newer(json).replacen("\"version\": 1", "\"version\": 77", 1)),
            ("unknown variant", &|json| newer(json).replacen("\"kind\": \"", "\"kind\": \"quantum_", 1)),
        ];
        for (what, change) in cases {
            let dir = tempfile::tempdir().unwrap();
            let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
            checkpoint(&folder, 1, &[]);
            checkpoint(&folder, 2, &[]);
            rewritten(&folder, 2, change);
            let mut said = Vec::new();
            for fault in [
                folder.manifest(2).unwrap_err(),
                folder.latest().unwrap_err(),
                folder.newest(&DamagedCheckpoints::default()).unwrap_err(),
                folder.next_number(&Author::default()).unwrap_err(),
                folder.prune(1).unwrap_err(),
            ] {
                assert_eq!(fault.kind, FaultKind::OtherVersion, "{fault}");
                said.push(format!("{fault}"));
            }
            for words in [what, "Forebay 9.0.", "is not damaged", "checkpoint-000002.json"] {
                assert!(said.iter().all(|said| said.contains(words)), "no `{words}` in {said:?}");
            }
            assert_eq!(folder.numbers().unwrap(), [1, 2], "nothing was removed");
            // The same with a flipped bit is damaged, and the one before it is used.
            let at = dir.path().join(CheckpointManifest::name(2));
            let text = std::fs::read_to_string(&at).unwrap();
            std::fs::write(&at, text.replacen("\"steps\": 0", "\"steps\": 1", 1)).unwrap();
            assert_eq!(folder.latest().unwrap().unwrap().number, 1);
        }
    }
}
