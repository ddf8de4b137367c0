//! The model folder: what training leaves behind and evaluation reads back.
//!
//! ```text
//! model/
//!   manifest.json               format, job, columns, spec, tables, checksums of all below
//!   dense.safetensors           dense parameters, f32
//!   tables/embedding/shard-0000.parquet
//!                               key: uint64, one column per part of the row (f32, or a fixed-size list of f32)
//! ```
//! In any store. Written aside, so that a killed process never leaves half a model: on a local disk what was there before
//! is exchanged in one step, on HDFS in two renames, and in a store without renames the manifest goes first and comes last
//! (see [`forebay_connectors::aside`]). Read back only if every checksum holds.
//!
//! Comes in: a [`Model`], or a folder. Goes out: files, or a [`Model`]. Blocks on the store: not for an arbiter.

mod checked;
mod dense_file;
mod manifest;
mod table_file;

use forebay_actors::{Fault, Host};
use forebay_connectors::staged::{Folder, StagedFolder};
use forebay_ps::start_table;

use self::manifest::MANIFEST;
pub use self::manifest::{FileEntry, Manifest, TableEntry};
use crate::model::Model;

const DENSE: &str = "dense.safetensors";

/// Refuses a place that holds something that is not a model, so that nothing else is ever replaced.
pub fn check_place(to: impl Into<Folder>) -> Result<(), Fault> {
    let folder = to.into().open()?;
    if folder.is_file()? || folder.holds_anything()? && !folder.has(MANIFEST)? {
        return Err(Fault::user(format!(
            "cannot write a model to {folder}: something is there that is not a model; name a folder of its own"
        )));
    }
    Ok(())
}

/// Writes `model` to the folder `to`, replacing a model that is there. Returns the manifest.
pub fn save(model: &Model, to: impl Into<Folder>) -> Result<Manifest, Fault> {
    let to = to.into();
    check_place(to.clone())?;
    let aside = StagedFolder::begin(&to, true)?;
    let mut files = Vec::new();
    let mut rows = 0;
    for shard in 0..model.table.shards() {
        let name = format!("tables/{}/shard-{shard:04}.parquet", model.config.name);
        let entry = table_file::write(&model.table, shard, &model.config, &aside, &name)?;
        rows += entry.rows.unwrap_or(0);
        files.push(entry);
    }
    let dense = dense_file::write(&model.dense, &aside, DENSE)?;
    let manifest = Manifest::new(model, TableEntry { config: model.config.clone(), rows, files }, dense);
    // The last file: where there are no renames, it is what makes the folder a model.
    manifest.write(&aside)?;
    aside.publish()?;
    Ok(manifest)
}

/// Reads a model folder: starts its table, as many shards as `shards` says, and fills it.
///
/// # Errors
/// A user fault that names the file: no manifest, another format, a missing or damaged file.
pub fn load(from: impl Into<Folder>, shards: usize) -> Result<Model, Fault> {
    let folder = from.into().open()?;
    let manifest = Manifest::read_in(&folder)?;
    // All checksums before any row, so that a damaged folder costs no memory.
    for entry in manifest.files() {
        checked::verify(&folder, entry)?;
    }
    let dense = dense_file::read(&folder, &manifest.dense)?;
    let wrong = |what: String| Fault::user(format!("{}: {what}", folder.name(MANIFEST)));
    let [table_entry] = manifest.tables.as_slice() else {
        return Err(wrong(format!("{} tables, expected one", manifest.tables.len())));
    };
    let host = Host::start("ps")?;
    let config = table_entry.config.clone();
    let table = start_table(&host, config.clone(), shards).map_err(|e| wrong(e.to_string()))?;
    for file in &table_entry.files {
        table_file::read(&folder, file, &config, &table)?;
    }
    Ok(Model { job: manifest.job, spec: manifest.spec, config, host, table, dense, factory: None })
}
