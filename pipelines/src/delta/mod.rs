//! A delta is the difference of two versions of a model: the rows that changed or are new, the removed keys, and all dense parameters.
//!
//! ```text
//! delta/
//!   manifest.json         format, the versions that it leads from and to, the parts of a row, checksums of all below
//!   changed.parquet       rows of the new version: key, one column a part, by ascending key
//!   removed.parquet       key
//!   dense.safetensors     the dense parameters of the new version
//! ```
//! It appears whole or not at all, and applies to one version alone. If the model with the delta applied does not have the version that the
//! delta names, the delta is refused: the version is a hash of all rows.
//!
//! A rounded delta has the parts of several values, such as embeddings, in f16 or int8. It gives a model that approximates the new version
//! ([`ModelVersions`]), from which the next delta leads on. A rounded row is always the exact row, rounded once, so errors do not add up.
//!
//! Read in this order: `make.rs`, `merge.rs` (applies deltas), `model_versions.rs` (before and after).

mod make;
mod merge;
mod model_versions;
#[cfg(test)]
mod tests;

use forebay_actors::Fault;
use forebay_connectors::staged::Folder;
use forebay_job::FeatureScales;
use forebay_models::NamedTensor;
use forebay_ps::{Storage, TableConfig};
use serde::{Deserialize, Serialize};

pub use self::model_versions::ModelVersions;
use crate::context::Context;
use crate::model::model_version::ModelVersion;
use crate::model_folder::{FileEntry, MANIFEST, TableColumns, checked, dense_file, table_file};
use crate::{signed_json, versioned_json};

const FORMAT: &str = "forebay delta";
/// Version of the format. It grows with every change that older programs cannot read. Version 2: rounded values. Version 3: scales of dense
/// features.
const VERSION: u32 = 3;
/// The longest manifest that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// The manifest of a delta.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeltaManifest {
    /// Always "forebay delta".
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Version of the program that wrote it.
    pub forebay: String,
    /// The version of the model that it applies to.
    pub from: ModelVersion,
    /// The version of the model that it gives; if it is rounded, of the model that the result approximates.
    pub to: ModelVersion,
    /// How the parts of several values are stored in `changed`; f32 is exact.
    #[serde(default, skip_serializing_if = "is_f32")]
    pub values: Storage,
    /// For a rounded delta: the version that it makes of the model `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives: Option<ModelVersion>,
    /// The transforms and scales of dense features of the new version, if the old version has others.
    #[serde(default, skip_serializing_if = "FeatureScales::is_empty")]
    pub scales: FeatureScales,
    /// Rows of the new version.
    pub rows: u64,
    /// The table: name and parts.
    pub table: TableConfig,
    /// The rows that changed or are new.
    pub changed: FileEntry,
    /// The keys of rows that the new version does not have.
    pub removed: FileEntry,
    /// The dense parameters.
    pub dense: FileEntry,
}

/// A delta in memory.
#[derive(Debug)]
pub struct Delta {
    /// Its manifest.
    pub manifest: DeltaManifest,
    pub(crate) keys: Vec<u64>,
    /// `[keys × row_dim]`.
    pub(crate) weights: Vec<f32>,
    pub(crate) removed: Vec<u64>,
    pub(crate) dense: Vec<NamedTensor>,
}

fn is_f32(values: &Storage) -> bool {
    *values == Storage::F32
}

/// A table of keys alone, as `removed.parquet` has it.
fn keys_only(config: &TableConfig) -> TableConfig {
    TableConfig { parts: Vec::new(), groups: Vec::new(), ..config.clone() }
}

impl DeltaManifest {
    /// Reads the manifest of a delta.
    ///
    /// # Errors
    /// A user fault that names the file if it is missing or no manifest of a delta.
    pub fn read(from: impl Into<Folder>, context: &Context) -> Result<Self, Fault> {
        let folder = from.into().with_stores(&context.stores).open()?;
        let (text, name) = (folder.bytes(MANIFEST, MOST_BYTES)?, folder.name(MANIFEST));
        signed_json::has_checksum(&text, &name)?;
        let manifest: Self = versioned_json::parse(&text, &name, FORMAT, VERSION)?;
        if manifest.gives.is_some() == is_f32(&manifest.values) {
            let field = if manifest.gives.is_some() { "a field" } else { "no field" };
            return Err(Fault::user(format!(
                "{name} is damaged: its values are {}, and it has {field} `gives`",
                manifest.values
            )));
        }
        Ok(manifest)
    }
}

impl Delta {
    /// Reads a delta: a folder at a path or URL. Verifies every checksum first. Blocks on the store.
    ///
    /// # Errors
    /// A user fault that names the file if something is missing or damaged.
    pub fn read(from: impl Into<Folder>, context: &Context) -> Result<Self, Fault> {
        let from = from.into();
        let manifest = DeltaManifest::read(from.clone(), context)?;
        let folder = from.with_stores(&context.stores).open()?;
        for entry in [&manifest.changed, &manifest.removed, &manifest.dense] {
            checked::verify(&folder, entry)?;
        }
        manifest.table.check()?;
        let (mut keys, mut weights, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        table_file::read_pages(
            &folder,
            &manifest.changed,
            TableColumns::of_values(&manifest.table.widest(), manifest.values),
            async |page, rows, _, _| {
                keys.extend_from_slice(page);
                weights.extend_from_slice(rows);
                Ok(())
            },
        )?;
        table_file::read_pages(
            &folder,
            &manifest.removed,
            TableColumns::of(&keys_only(&manifest.table), false),
            async |page, _, _, _| {
                removed.extend_from_slice(page);
                Ok(())
            },
        )?;
        for (file, keys) in [(&manifest.changed, &keys), (&manifest.removed, &removed)] {
            if keys.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(Fault::user(format!("{}: keys are not in ascending order", folder.name(&file.path))));
            }
        }
        if let Some(key) = removed.iter().find(|key| keys.binary_search(key).is_ok()) {
            return Err(Fault::user(format!("{folder}: key {key} is both changed and removed")));
        }
        let dense = dense_file::read(&folder, &manifest.dense)?;
        Ok(Self { keys, weights, removed, dense, manifest })
    }

    /// # Errors
    /// A user fault if it does not apply to a model of these versions.
    pub(crate) fn check_from(&self, versions: ModelVersions) -> Result<(), Fault> {
        let DeltaManifest { from, to, .. } = &self.manifest;
        if versions.has(*from) {
            return Ok(());
        }
        Err(Fault::user(format!("the delta leads from version {from} to {to}, and the model has {versions}")))
    }

    /// The versions of a model of the versions `before` with this delta, which has `rows` rows and is of this `version`.
    ///
    /// # Errors
    /// A user fault if the content is not the one that the delta names. If the model only approximates `from`, the content is not known,
    /// and only the number of rows is compared.
    pub(crate) fn check_result(
        &self,
        before: ModelVersions,
        version: ModelVersion,
        rows: u64,
    ) -> Result<ModelVersions, Fault> {
        let DeltaManifest { from, to, gives, rows: expected_rows, .. } = &self.manifest;
        let wrong = |found: String, expected: String| {
            Err(Fault::user(format!("the delta gives {found}, but its manifest says {expected}: write it again")))
        };
        let expected = gives.unwrap_or(*to);
        if before.version == *from && version != expected {
            return wrong(format!("version {version}"), expected.to_string());
        }
        if rows != *expected_rows {
            return wrong(format!("{rows} rows"), expected_rows.to_string());
        }
        Ok(ModelVersions { version, approximates: (version != *to).then_some(*to) })
    }

    /// # Errors
    /// A user fault if its rows have other parts than `table`, or would be rounded again there.
    pub(crate) fn check_table(&self, table: &TableConfig) -> Result<(), Fault> {
        let widths = |table: &TableConfig| -> Vec<String> {
            table.part_widths().into_iter().map(|(name, dim)| format!("{name} {dim}")).collect()
        };
        let (found, expected) = (widths(&self.manifest.table), widths(table));
        if found == expected {
            return check_values(table, self.manifest.values);
        }
        Err(Fault::user(format!("the rows of the delta have the parts {found:?}, those of the model {expected:?}")))
    }
}

/// # Errors
/// A user fault if a group of the table keeps rows in another rounded format than `values`.
fn check_values(table: &TableConfig, values: Storage) -> Result<(), Fault> {
    let groups = table.of_groups();
    let rounded_twice = |values: Storage| {
        let twice = |storage: Storage| ![storage, values].contains(&Storage::F32) && storage != values;
        groups.iter().find(|group| twice(group.storage))
    };
    let Some(TableConfig { name, storage, .. }) = rounded_twice(values) else { return Ok(()) };
    let own = if rounded_twice(*storage).is_none() { format!("{storage} or ") } else { String::new() };
    Err(Fault::user(format!(
        "the table `{name}` keeps rows in {storage}, and a delta in {values} would round them again: write it in {own}f32"
    )))
}
