//! A model for other runtimes: the dense part as ONNX, the rows of the table as Parquet and as numpy arrays.
//!
//! ```text
//! export/
//!   manifest.json                  what the files are: the model's version, columns, seed, inputs; checksums of all below
//!   dense.onnx                     pooled rows and dense features in, logit and probability out
//!   user.onnx, item.onnx           of two towers: pooled rows and dense features of one of them in, its vector out
//!   tables/embedding/keys.npy      uint64 [rows], ascending
//!   tables/embedding/linear.npy    float32 [rows, width of the part], one file a part
//!   tables/embedding/rows.parquet  the same rows, with the columns of a model folder
//!   tables/NAME/...                with `[tables]`: the same of the table NAME
//! ```
//! It appears whole or not at all. [`Model::export`] blocks on the store.
//!
//! `npy.rs` writes numpy arrays.

mod npy;

use std::collections::BTreeMap;
use std::io::Write as _;

use forebay_actors::Fault;
use forebay_connectors::staged::{Folder, StagedFolder};
use forebay_job::{DenseColumn, DenseStatistics, Slot, SlotCross};
use forebay_models::{ModelSpec, TowerSide, to_onnx, tower_to_onnx};
use forebay_ps::TableConfig;
use serde::{Deserialize, Serialize};

use crate::fault::model_fault;
use crate::model::Model;
use crate::model::model_version::ModelVersion;
use crate::model::sorted_rows::{self, PAGE, SortedRows};
use crate::model_folder::checked::{CheckedWriter, cannot_write};
use crate::model_folder::table_file::TableWriter;
use crate::model_folder::{FileEntry, MANIFEST, TableColumns, begin_replacing};
use crate::signed_json;

const FORMAT: &str = "forebay export";
/// Version of the format. It grows with every change that readers would not expect. Version 2: slots whose values have weights. Version 3:
/// times of integers, and offsets from UTC.
const VERSION: u32 = 3;
const ONNX: &str = "dense.onnx";

/// Which parts of a model are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportParts {
    /// The dense part and the table.
    All,
    /// Only the table.
    Tables,
}

/// The manifest of an export.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportManifest {
    /// Always "forebay export".
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Version of the program that wrote it.
    pub forebay: String,
    /// The version of the model.
    pub model: ModelVersion,
    /// The kind of the model: `job.model.kind`.
    pub kind: String,
    /// The structure of a built-in model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<ModelSpec>,
    /// The seed of the keys.
    pub seed: u64,
    /// The slots, in the order of the inputs of the dense part.
    pub slots: Vec<Slot>,
    /// The crosses, which are the slots after these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crosses: Vec<SlotCross>,
    /// The dense features, in the order of the input; after each one its indicator, if it has one.
    pub dense_features: Vec<DenseColumn>,
    /// The statistics that scale dense features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<BTreeMap<String, DenseStatistics>>,
    /// Rows of the table; with groups, rows of the first group.
    pub rows: u64,
    /// The dense part, if it was exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onnx: Option<FileEntry>,
    /// For two towers: the user tower and the item tower, if the dense part was exported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub towers: Vec<FileEntry>,
    /// The keys as a numpy array.
    pub keys: FileEntry,
    /// The parts of the rows as numpy arrays, in the order of a row.
    pub parts: Vec<ExportedPart>,
    /// The rows as Parquet.
    pub parquet: FileEntry,
    /// The other groups of the table, whose keys have their number (from 1) as highest byte.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ExportedGroup>,
}

/// The rows of a group: of a table of `[tables]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportedGroup {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: u64,
    /// Their keys as a numpy array.
    pub keys: FileEntry,
    /// The parts of the rows as numpy arrays, in the order of a row.
    pub parts: Vec<ExportedPart>,
    /// The rows as Parquet.
    pub parquet: FileEntry,
}

/// One part of all rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportedPart {
    /// Its name: `linear` or `embedding` for built-in models.
    pub name: String,
    /// Its width.
    pub dim: usize,
    /// The array, `[rows, dim]`.
    pub file: FileEntry,
}

impl Model {
    /// Writes the model for other runtimes to a folder in any store, whole or not at all. A folder that holds files is refused
    /// unless `replace` is set and it is an earlier export. Takes 8 bytes of memory for each row.
    /// Blocks on the store.
    ///
    /// # Errors
    /// A user fault if the dense part of an own model was asked for: its code is not in the model.
    pub fn export(&self, to: impl Into<Folder>, parts: ExportParts, replace: bool) -> Result<ExportManifest, Fault> {
        let onnx = match parts {
            ExportParts::All => Some(self.to_onnx()?),
            ExportParts::Tables => None,
        };
        let towers = match &self.model.spec {
            Some(spec) if spec.two_towers.is_some() && parts == ExportParts::All => {
                let tower = |side| Ok((side, tower_to_onnx(spec, &self.dense, side).map_err(model_fault)?));
                TowerSide::BOTH.into_iter().map(tower).collect::<Result<Vec<_>, Fault>>()?
            }
            _ => Vec::new(),
        };
        let staged = begin_replacing(&to.into().with_stores(&self.context.stores), replace, FORMAT)?;
        let rows = SortedRows::of(&self.table)?;
        let config = self.table.config();
        let mut groups = Vec::new();
        for (number, group) in config.of_groups().iter().enumerate() {
            let own = if config.groups.is_empty() { 0..rows.keys.len() } else { rows.of_group(number) };
            groups.push(export_group(&staged, group, &rows, &rows.keys[own])?);
        }
        let ExportedGroup { rows: first_rows, keys, parts, parquet, .. } = groups.remove(0);
        // The columns as in training, with boundaries instead of quantiles.
        let columns = self.job_as_trained().columns;
        let resolved = |slot: &Slot| {
            let boundaries = slot.quantiles.map(|_| columns.boundaries_of(slot).to_vec());
            Slot { quantiles: None, boundaries: boundaries.or_else(|| slot.boundaries.clone()), ..slot.clone() }
        };
        let slots = columns.slots.iter().map(resolved).collect();
        let manifest = ExportManifest {
            format: FORMAT.into(),
            version: match columns.has_value_weights() {
                _ if columns.has_times_of_integers_or_offsets() => VERSION,
                true => 2,
                false => 1,
            },
            forebay: env!("CARGO_PKG_VERSION").into(),
            model: ModelVersion::of(&self.job, &self.dense, rows.hash),
            kind: self.job.model.kind.to_string(),
            spec: self.model.spec.clone(),
            seed: self.job.seed,
            slots,
            crosses: columns.crosses,
            dense_features: columns.dense,
            statistics: columns.statistics,
            rows: first_rows,
            keys,
            parts,
            parquet,
            groups,
            onnx: onnx.map(|onnx| file(&staged, ONNX, &onnx)).transpose()?,
            towers: towers
                .into_iter()
                .map(|(side, onnx)| file(&staged, &format!("{}.onnx", side.name()), &onnx))
                .collect::<Result<_, _>>()?,
        };
        file(&staged, MANIFEST, &signed_json::to_json(&manifest)?)?;
        staged.publish()?;
        Ok(manifest)
    }

    /// The dense part as the bytes of an ONNX file: see [`to_onnx`](forebay_models::to_onnx) for its inputs and outputs.
    ///
    /// # Errors
    /// A user fault for an own model, whose code is not in the model.
    pub fn to_onnx(&self) -> Result<Vec<u8>, Fault> {
        let Some(spec) = &self.model.spec else {
            let name = self.job.model.name.as_deref().unwrap_or_default();
            return Err(Fault::user(format!(
                "the own model `{name}` cannot be written as ONNX: what it computes is in the code of the program. Export its \
                 tables alone (--tables-only), and write its dense part with the framework that it is made with"
            )));
        };
        to_onnx(spec, &self.dense, self.job.data.logit_correction()).map_err(model_fault)
    }

    /// The version of the model: the same for models that give the same scores. Takes as long as reading all rows, and blocks on
    /// the shards.
    pub fn version(&self) -> Result<ModelVersion, Fault> {
        Ok(ModelVersion::of(&self.job, &self.dense, sorted_rows::hash_of(&self.table)?))
    }
}

/// Writes the rows of `keys`, which are all keys of a group, into all files of the group at once.
fn export_group(
    staged: &StagedFolder,
    config: &TableConfig,
    rows: &SortedRows<'_>,
    keys: &[u64],
) -> Result<ExportedGroup, Fault> {
    let (folder, row_dim, count) = (format!("tables/{}", config.name), config.row_dim(), keys.len());
    let mut key_array = ArrayFile::begin(staged, format!("{folder}/keys.npy"), "<u8", &[count])?;
    let mut arrays = Vec::new();
    for part in &config.parts {
        arrays.push(ArrayFile::begin(staged, format!("{folder}/{}.npy", part.name), "<f4", &[count, part.dim])?);
    }
    let parquet = format!("{folder}/rows.parquet");
    let mut parquet = TableWriter::begin(TableColumns::of(config, false), staged, &parquet)?;
    for from in (0..count).step_by(PAGE) {
        let page = rows.page(keys, from, row_dim)?;
        key_array.write(page.keys.iter().map(|key| key.to_le_bytes()))?;
        let mut at = 0;
        for (part, array) in config.parts.iter().zip(&mut arrays) {
            let columns = at..at + part.dim;
            at = columns.end;
            let values = page.weights.chunks_exact(row_dim).flat_map(|row| &row[columns.clone()]);
            array.write(values.map(|value| value.to_le_bytes()))?;
        }
        parquet.write(page)?;
    }
    let parts = config
        .parts
        .iter()
        .zip(arrays)
        .map(|(part, array)| Ok(ExportedPart { name: part.name.clone(), dim: part.dim, file: array.finish()? }));
    Ok(ExportedGroup {
        name: config.name.clone(),
        rows: count as u64,
        parts: parts.collect::<Result<_, Fault>>()?,
        keys: key_array.finish()?,
        parquet: parquet.finish()?,
    })
}

fn file(staged: &StagedFolder, path: &str, bytes: &[u8]) -> Result<FileEntry, Fault> {
    let mut file = CheckedWriter::create(staged, path)?;
    file.write_all(bytes).map_err(|e| cannot_write(file.name(), e))?;
    file.finish(path, None)
}

/// A numpy array that is written page by page.
struct ArrayFile {
    file: CheckedWriter,
    path: String,
    rows: usize,
    /// The bytes of a page.
    buffer: Vec<u8>,
}

impl ArrayFile {
    /// Begins an array of type `kind` (`<f4`, for instance) and this shape.
    fn begin(staged: &StagedFolder, path: String, kind: &str, shape: &[usize]) -> Result<Self, Fault> {
        let mut file = CheckedWriter::create(staged, &path)?;
        npy::write_header(&mut file, kind, shape).map_err(|e| cannot_write(file.name(), e))?;
        Ok(Self { file, path, rows: shape[0], buffer: Vec::new() })
    }

    /// Adds values.
    fn write<const N: usize>(&mut self, values: impl Iterator<Item = [u8; N]>) -> Result<(), Fault> {
        self.buffer.clear();
        values.for_each(|value| self.buffer.extend_from_slice(&value));
        self.file.write_all(&self.buffer).map_err(|e| cannot_write(self.file.name(), e))
    }

    /// Waits until the store has the file.
    fn finish(self) -> Result<FileEntry, Fault> {
        self.file.finish(&self.path, Some(self.rows as u64))
    }
}

/// The header of a numpy array of type `kind` (`<f4`, for instance) and this shape, in C order; the values follow it.
///
/// # Errors
/// None: memory is written to.
pub fn npy_header(kind: &str, shape: &[usize]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    npy::write_header(&mut bytes, kind, shape)?;
    Ok(bytes)
}
