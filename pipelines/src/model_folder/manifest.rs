//! `manifest.json`: the job, the files of the folder and their checksums. Reading and writing block on the store.

use std::io::Write;

use forebay_actors::{Domain, Fault, FaultKind};
use forebay_batches::ColumnType;
use forebay_connectors::staged::{Folder, OpenFolder, StagedFolder};
use forebay_job::Job;
use forebay_models::ModelSpec;
use forebay_ps::TableConfig;
use serde::{Deserialize, Serialize};

use super::checked::{CheckedWriter, FileEntry, cannot_write};
use crate::metrics::training_summary::TrainingSummary;
use crate::model::Model;
use crate::model::model_version::ModelVersion;
use crate::{checkpoint_name, signed_json, versioned_json};

/// Version of the format. It grows with every change that older programs cannot read. Version 2: tables with groups. Version 3: slots whose
/// values have weights. Version 4: columns of the type [`ColumnType::TextInteger`]. Version 5: times of integers, and offsets from UTC.
const VERSION: u32 = 5;
const FORMAT: &str = "forebay model";
pub(crate) const MANIFEST: &str = "manifest.json";
/// The longest manifest that is read, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// The manifest of a model folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Always "forebay model".
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Version of the program that wrote it.
    pub forebay: String,
    /// The structure of a built-in model. `None` for a custom model, whose name is `job.model.name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<ModelSpec>,
    /// The job that trained the model. Evaluation reads its columns and hashes keys with its seed.
    pub job: Job,
    /// The summary of the training. `None` in a manifest of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingSummary>,
    /// The version of the exact model, if rounded deltas were applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approximates: Option<ModelVersion>,
    /// The sparse tables.
    pub tables: Vec<TableEntry>,
    /// The file of the dense parameters.
    pub dense: FileEntry,
    /// The file of the dense optimizer's state. `None`: neither this file nor the tables have the state of optimizers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<FileEntry>,
}

/// The manifest's entry of a table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableEntry {
    /// Name, parts, optimizers, seed.
    pub config: TableConfig,
    /// Rows in all files.
    pub rows: u64,
    /// One file per shard at the time of writing. The number of shards may differ when the table is read.
    pub files: Vec<FileEntry>,
    /// The keys that wait for their admission; only in a folder with the state of optimizers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<FileEntry>,
}

/// Whether a column of the training was of a type that older programs do not know.
fn has_text_integers(model: &Model) -> bool {
    let training = model.training.as_ref();
    training.is_some_and(|training| training.types.values().any(|kind| *kind == ColumnType::TextInteger))
}

/// A folder without a manifest.
fn not_a_model(folder: &OpenFolder) -> Fault {
    if let Some((old, command)) = folder.replaced() {
        return Fault::user(format!(
            "{folder} is not there, because a process was killed while it replaced it, or replaces it at this moment; the old model is at \
             {old}: try again; the next training puts it back, or do so with `{command}`"
        ));
    }
    let files = folder.files().unwrap_or_default();
    let has_checkpoints = files.iter().any(|(name, _)| checkpoint_name::number_of(name).is_some());
    let instead = if has_checkpoints {
        "it has checkpoints: `forebay eval --follow` evaluates them, and `forebay train --resume` goes on to a model"
    } else {
        "such a folder has manifest.json, dense.safetensors and tables/, and `forebay train` writes it to output.model"
    };
    Fault::user(format!("{folder} is not a model folder: {instead}")).kind(FaultKind::NotFound)
}

/// Whether the folder has a manifest, unless the manifest names another format. A damaged one names none.
pub(crate) fn may_hold(folder: &OpenFolder, format: &str) -> Result<bool, Fault> {
    if !folder.has(MANIFEST)? {
        return Ok(false);
    }
    let json = serde_json::from_slice::<serde_json::Value>(&folder.bytes(MANIFEST, MOST_BYTES)?);
    Ok(json.map_or(true, |json| json["format"] == format))
}

impl TableEntry {
    /// The files of rows, then the files of the keys that wait.
    pub(crate) fn all_files(&self) -> impl Iterator<Item = &FileEntry> {
        self.files.iter().chain(&self.absent)
    }
}

impl Manifest {
    pub(super) fn new(model: &Model, table: TableEntry, dense: FileEntry, optimizer: Option<FileEntry>) -> Self {
        Self {
            format: FORMAT.into(),
            // A manifest that older programs can read gets the older version.
            version: match table.config.groups.is_empty() {
                _ if model.job.columns.has_times_of_integers_or_offsets() => VERSION,
                _ if has_text_integers(model) => 4,
                _ if model.job.columns.has_value_weights() => 3,
                false => 2,
                true => 1,
            },
            forebay: env!("CARGO_PKG_VERSION").into(),
            spec: model.model.spec.clone(),
            job: model.job.clone(),
            training: model.training.clone(),
            approximates: model.approximates,
            tables: vec![table],
            dense,
            optimizer,
        }
    }

    /// All files except the manifest.
    pub fn files(&self) -> impl Iterator<Item = &FileEntry> {
        self.tables.iter().flat_map(TableEntry::all_files).chain(std::iter::once(&self.dense)).chain(&self.optimizer)
    }

    /// The only table.
    ///
    /// # Errors
    /// A user fault if the manifest has none or several.
    pub(crate) fn table(&self, folder: &OpenFolder) -> Result<&TableEntry, Fault> {
        match self.tables.as_slice() {
            [table] => Ok(table),
            tables => Err(Fault::user(format!("{}: {} tables, expected one", folder.name(MANIFEST), tables.len()))),
        }
    }

    pub(crate) fn write(&self, staged: &StagedFolder) -> Result<(), Fault> {
        let text = signed_json::to_json(self)?;
        let mut file = CheckedWriter::create(staged, MANIFEST)?;
        file.write_all(&text).map_err(|e| cannot_write(file.name(), e))?;
        file.finish(MANIFEST, None).map(drop)
    }

    /// Reads the manifest of a model folder.
    pub fn read(folder: impl Into<Folder>) -> Result<Self, Fault> {
        Self::read_in(&folder.into().open()?)
    }

    pub(crate) fn read_in(folder: &OpenFolder) -> Result<Self, Fault> {
        let (text, name) = (Self::bytes(folder)?, folder.name(MANIFEST));
        signed_json::has_checksum(&text, &name)?;
        versioned_json::parse(&text, &name, FORMAT, VERSION)
    }

    /// Fails if the job could not have been trained, or its model is of another shape than `spec` says.
    ///
    /// # Errors
    /// A user fault that names the manifest.
    pub(crate) fn check_job(&self, folder: &OpenFolder) -> Result<(), Fault> {
        let name = folder.name(MANIFEST);
        self.job.check_trained().map_err(|fault| fault.context(format!("{name}: its job is wrong")))?;
        let Some(spec) = &self.spec else { return Ok(()) };
        let of_job = self.job.model_spec()?;
        match (spec.slots, spec.dense) == (of_job.slots, of_job.dense) {
            true => Ok(()),
            false => Err(Fault::user(format!(
                "{name}: its model has {} slots and {} dense features, and its job {} and {}",
                spec.slots, spec.dense, of_job.slots, of_job.dense
            ))),
        }
    }

    /// Whether the folder has a manifest, unless the manifest says that it is something else, such as an export. A damaged one says
    /// nothing.
    pub(super) fn may_be_in(folder: &OpenFolder) -> Result<bool, Fault> {
        may_hold(folder, FORMAT)
    }

    /// The manifest as it lies in the folder.
    ///
    /// # Errors
    /// A user fault that says what a model folder has, if there is no manifest; the fault of the disk or the store, if it cannot be read.
    pub(crate) fn bytes(folder: &OpenFolder) -> Result<Vec<u8>, Fault> {
        folder.bytes(MANIFEST, MOST_BYTES).map_err(|fault| {
            // If `folder` is a file, the manifest cannot be in it; stores report that in several ways.
            let in_file = || fault.domain == Domain::User && matches!(folder.is_file(), Ok(true));
            match fault.kind == FaultKind::NotFound || in_file() {
                true => not_a_model(folder).because(fault),
                false => fault,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_is_no_model_if_it_has_no_manifest_and_not_if_the_manifest_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let said = |name: &str| Manifest::read(dir.path().join(name)).unwrap_err().to_string();
        fs::write(dir.path().join("file"), "x").unwrap();
        fs::create_dir(dir.path().join("empty")).unwrap();
        for name in ["nowhere", "file", "empty"] {
            assert!(said(name).contains(&format!("{name} is not a model folder")), "{}", said(name));
        }
        fs::create_dir_all(dir.path().join("odd").join(MANIFEST)).unwrap();
        let closed = dir.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::write(closed.join(MANIFEST), "{}").unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o000)).unwrap();
        let mut unreadable = vec!["odd"];
        // `root` may read all.
        if fs::read_dir(&closed).is_err() {
            unreadable.push("closed");
        }
        for name in unreadable {
            let said = said(name);
            assert!(said.starts_with("cannot read") && !said.contains("not a model folder"), "{said}");
        }
        fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    }
}
