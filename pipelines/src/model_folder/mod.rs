//! The model folder: a trained model in any store.
//!
//! ```text
//! model/
//!   manifest.json               format, job, columns, spec, tables, checksums of all below
//!   dense.safetensors           dense parameters, f32
//!   optimizer.safetensors       with `output.state`: the state of the dense optimizer
//!   tables/embedding/shard-0000.parquet
//!                               key: uint64, one column per part of the row (f32, or a fixed-size list of f32); with
//!                               `output.state`, optimizer.state: a fixed-size list of f32; and if rows are removed or
//!                               have to be admitted, lifetime.seen: uint32, lifetime.score: f32
//!   tables/NAME/shard-0000.parquet
//!                               with `[tables]`: the same of the table NAME
//!   tables/embedding/absent-0000.arrow
//!                               with `output.state` and `table.admission.count`: the keys that wait, and their counts
//! ```
//! It is written as a staged folder, so a killed process never leaves half a model. A local disk replaces the old folder in one
//! step, HDFS in two renames. In a store without renames, the manifest is deleted first and written last (see
//! [`forebay_connectors::staged`]). Loading verifies every checksum first.
//!
//! [`Model::save`] and [`Model::load`] block on the store, so a stage must not call them.
//!
//! Read in this order: `manifest.rs`, `checked.rs` (files with checksums), `table_file.rs` with `table_columns.rs` and `part_columns.rs`,
//! `absent_file.rs` with `row_stream.rs` (keys that wait), `dense_file.rs`, `replaced.rs` (a folder that is replaced while it is read),
//! `rest.rs` (what a killed process leaves).

pub(crate) mod absent_file;
pub(crate) mod checked;
pub(crate) mod dense_file;
mod manifest;
mod part_columns;
pub(crate) mod replaced;
mod rest;
pub(crate) mod row_stream;
mod table_columns;
pub(crate) mod table_file;
#[cfg(test)]
mod tests;

use forebay_actors::{Fault, Host};
use forebay_connectors::staged::{Folder, OpenFolder, StagedFolder};
use forebay_models::NamedTensor;
use forebay_ps::{start_read_only, start_table};
use futures::executor::block_on;

pub use self::checked::FileEntry;
pub(crate) use self::manifest::{MANIFEST, may_hold};
pub use self::manifest::{Manifest, TableEntry};
pub(crate) use self::table_columns::TableColumns;
use crate::context::Context;
use crate::dense_model::job_model::JobModel;
use crate::model::Model;

const DENSE: &str = "dense.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";

/// Fails if `to` holds something other than a model, or the rest of one, so that saving replaces only models.
pub fn check_place(to: impl Into<Folder>, context: &Context) -> Result<(), Fault> {
    let folder = to.into().with_stores(&context.stores).open()?;
    let is_other = folder.is_file()?
        || folder.holds_anything()?
            && !Manifest::may_be_in(&folder)?
            && !rest::is_rest(&folder, &[DENSE, OPTIMIZER], context)?;
    if is_other {
        return Err(Fault::user(format!(
            "cannot write a model to {folder}: it holds something that is not a model; name another folder"
        )));
    }
    Ok(())
}

/// Fails if nothing can be written where a model folder is to be: makes the folders above it, writes a small file beside it
/// (in a store without folders: below it) and removes that file. Blocks on the store.
pub(crate) fn probe_place(to: impl Into<Folder>, context: &Context) -> Result<(), Fault> {
    StagedFolder::probe(&to.into().with_stores(&context.stores), true)
}

/// Begins a folder with a manifest of this format. With `replace`, it replaces one of the same format, and nothing else.
pub(crate) fn begin_replacing(to: &Folder, replace: bool, format: &str) -> Result<StagedFolder, Fault> {
    let folder = to.open()?;
    if replace && folder.holds_anything()? && !may_hold(&folder, format)? {
        return Err(Fault::user(format!(
            "`{folder}` is not replaced: it holds something other than a {format} of an earlier command; name another folder"
        )));
    }
    StagedFolder::begin(to, replace)
}

impl Model {
    /// Writes the model to a folder in any store, whole or not at all. Replaces a model that is there. For a custom dense
    /// model the folder has its name and its parameters; [`Model::load_with`] loads it. Blocks until the store has all files.
    ///
    /// After a training use [`Trained::save`](crate::Trained::save), which saves the best model if the job keeps it.
    ///
    /// # Errors
    /// A user fault if the folder holds something that is not a model, or may not be written. An external fault if the disk or the store
    /// fails.
    pub fn save(&self, folder: impl Into<Folder>) -> Result<Manifest, Fault> {
        save(self, folder.into())
    }

    /// Loads a model folder: a path, a URL, or a [`Folder`] in a store that the caller holds. Starts its table with `shards`
    /// shards. Blocks until all rows are in the table.
    ///
    /// The table has the state of optimizers if the folder has it (`output.state`). Otherwise it is
    /// [only read](forebay_ps::start_read_only): it refuses pushes. A training continues from a model folder by `train.from`.
    ///
    /// # Errors
    /// A user fault that names the file if the manifest is missing or of another format, or a file is missing or damaged. A
    /// user fault if the job needs a custom stage, source or model.
    pub fn load(folder: impl Into<Folder>, shards: usize) -> Result<Self, Fault> {
        Self::load_with(folder, shards, &Context::default())
    }

    /// Like [`load`](Self::load), for a job that names custom stages, sources or models. `context` must have them, but for stages that are
    /// for training only.
    ///
    /// # Errors
    /// As [`load`](Self::load). A user fault if the registry of `context` lacks a part that the job names, or its model has other row parts
    /// than the rows of the folder.
    pub fn load_with(folder: impl Into<Folder>, shards: usize, context: &Context) -> Result<Self, Fault> {
        load(folder.into(), shards, Wanted::All, context)
    }

    /// Like [`load_with`](Self::load_with), but without the state of optimizers, even if the folder has it: what scores need, in the least
    /// memory. The table refuses pushes, and [`save`](Self::save) writes a folder without state.
    ///
    /// # Errors
    /// As [`load_with`](Self::load_with).
    pub fn load_weights(folder: impl Into<Folder>, shards: usize, context: &Context) -> Result<Self, Fault> {
        load(folder.into(), shards, Wanted::Weights, context)
    }
}

fn save(model: &Model, to: Folder) -> Result<Manifest, Fault> {
    let to = to.with_stores(&model.context.stores);
    check_place(to.clone(), &model.context)?;
    let staged = StagedFolder::begin(&to, true)?;
    let (config, mut files, mut absent) = (model.table.config(), Vec::new(), Vec::new());
    let mut rows = 0;
    for shard in 0..model.table.shards() {
        for entry in table_file::write(&model.table, shard, model.optimizer.is_some(), &staged)? {
            rows += entry.rows.unwrap_or(0);
            files.push(entry);
        }
        if model.optimizer.is_some() && config.of_groups().iter().any(|group| group.lifetime.admission.is_some()) {
            let name = format!("tables/{}/absent-{shard:04}.arrow", config.name);
            let mut from = 0;
            let next = || {
                let page = block_on(model.table.export_absent(shard, from, absent_file::PAGE))?;
                from += page.len();
                Ok(page)
            };
            absent.push(absent_file::write(checked::CheckedWriter::create(&staged, &name)?, &name, next)?);
        }
    }
    let dense = dense_file::write(&model.dense, checked::CheckedWriter::create(&staged, DENSE)?, DENSE)?;
    let write_state = |state: &Vec<NamedTensor>| {
        dense_file::write(state, checked::CheckedWriter::create(&staged, OPTIMIZER)?, OPTIMIZER)
    };
    let optimizer = model.optimizer.as_ref().map(write_state).transpose()?;
    let manifest = Manifest::new(model, TableEntry { config: config.clone(), rows, files, absent }, dense, optimizer);
    // The manifest comes last: in a store without renames, it makes the folder a model.
    manifest.write(&staged)?;
    staged.publish()?;
    Ok(manifest)
}

/// What is read of a model folder.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    /// All that the folder has.
    All,
    /// The weights without the state of optimizers.
    Weights,
}

fn load(from: Folder, shards: usize, wanted: Wanted, context: &Context) -> Result<Model, Fault> {
    let folder = from.with_stores(&context.stores).open()?;
    replaced::read_one(folder, |folder| load_from(folder, shards, wanted, context))
}

fn load_from(folder: &OpenFolder, shards: usize, wanted: Wanted, context: &Context) -> Result<Model, Fault> {
    let manifest = Manifest::read_in(folder)?;
    manifest.check_job(folder)?;
    let needs = |fault: Fault| fault.context(format!("cannot load {folder}"));
    context.registry.check_to_score(&manifest.job).map_err(needs)?;
    let model = JobModel::of(&manifest.job, &context.registry)?;
    // Verify all checksums before reading rows, so that a damaged folder takes no memory.
    for entry in manifest.files() {
        checked::verify(folder, entry)?;
    }
    let dense = dense_file::read(folder, &manifest.dense)?;
    model.check_parameters(&dense, &folder.name(&manifest.dense.path))?;
    let optimizer = manifest.optimizer.as_ref().filter(|_| wanted == Wanted::All);
    let optimizer = optimizer.map(|entry| dense_file::read(folder, entry)).transpose()?;
    let (entry, state) = (manifest.table(folder)?, optimizer.is_some());
    model.check_parts(&entry.config).map_err(needs)?;
    let host = Host::start("ps")?;
    let start = if state { start_table } else { start_read_only };
    let wrong = |fault: Fault| fault.context(folder.name(MANIFEST));
    let table = start(&host, entry.config.clone(), shards).map_err(wrong)?;
    for file in entry.all_files().filter(|file| state || file.absent.is_none()) {
        table_file::read(folder, file, state, &table)?;
    }
    let Manifest { job, training, approximates, .. } = manifest;
    Ok(Model { job, dense, optimizer, table, training, approximates, model, host, context: context.clone() })
}
