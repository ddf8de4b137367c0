//! `manifest.json`: what the folder holds, what made it, and the checksum of every file.
//!
//! Blocks on the store.

use std::io::Write;

use forebay_actors::{Domain, Fault};
use forebay_connectors::staged::{Folder, OpenFolder, StagedFolder};
use forebay_models::ModelSpec;
use forebay_ps::TableConfig;
use serde::{Deserialize, Serialize};

use super::checked::{CheckedWriter, FileEntry, cannot_write};
use crate::job::Job;
use crate::model::Model;

/// Rises when an older program could not read the folder.
const VERSION: u32 = 1;
const FORMAT: &str = "forebay model";
/// Name of the manifest.
pub(super) const MANIFEST: &str = "manifest.json";
/// Bytes that a manifest may have.
const MOST_BYTES: u64 = 64 << 20;

/// All that is known of a model folder without reading its rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Always "forebay model".
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Version of the program that wrote it.
    pub forebay: String,
    /// The structure of a built-in model. An own model has none: `job.model.name` says which it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<ModelSpec>,
    /// The job that trained it: its columns say how rows are read, its seed how keys are hashed.
    pub job: Job,
    /// Its tables.
    pub tables: Vec<TableEntry>,
    /// Its dense parameters.
    pub dense: FileEntry,
}

/// A table of the folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableEntry {
    /// Name, parts, optimizers, seed.
    pub config: TableConfig,
    /// Rows in all files.
    pub rows: u64,
    /// One for each shard that wrote them; the reader may have another number of shards.
    pub files: Vec<FileEntry>,
}

impl Manifest {
    pub(super) fn new(model: &Model, table: TableEntry, dense: FileEntry) -> Self {
        Self {
            format: FORMAT.into(),
            version: VERSION,
            forebay: env!("CARGO_PKG_VERSION").into(),
            spec: model.model.spec.clone(),
            job: model.job.clone(),
            tables: vec![table],
            dense,
        }
    }

    /// Every file but the manifest itself.
    pub fn files(&self) -> impl Iterator<Item = &FileEntry> {
        self.tables.iter().flat_map(|t| &t.files).chain(std::iter::once(&self.dense))
    }

    pub(super) fn write(&self, staged: &StagedFolder) -> Result<(), Fault> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Fault::internal("the manifest cannot be written as JSON").because(e))?;
        let mut file = CheckedWriter::create(staged, MANIFEST)?;
        file.write_all(text.as_bytes()).map_err(|e| cannot_write(file.name(), e))?;
        file.finish(MANIFEST, None).map(drop)
    }

    /// Reads the manifest of a model folder.
    pub fn read(folder: impl Into<Folder>) -> Result<Self, Fault> {
        Self::read_in(&folder.into().open()?)
    }

    pub(super) fn read_in(folder: &OpenFolder) -> Result<Self, Fault> {
        let name = folder.name(MANIFEST);
        let text = folder.bytes(MANIFEST, MOST_BYTES).map_err(|fault| match fault.domain {
            Domain::User => {
                Fault::user(format!("{folder} is not a model folder: cannot read {MANIFEST}")).because(fault)
            }
            _ => fault,
        })?;
        let what: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|e| Fault::user(format!("{name} is damaged: not JSON")).because(e))?;
        if what["format"] != FORMAT {
            return Err(Fault::user(format!("{name}: format is {}, expected {FORMAT:?}", what["format"])));
        }
        if what["version"] != VERSION {
            return Err(Fault::user(format!(
                "{name}: version {} of the format, this program reads version {VERSION}",
                what["version"]
            )));
        }
        serde_json::from_value(what).map_err(|e| Fault::user(format!("{name} is damaged")).because(e))
    }
}
