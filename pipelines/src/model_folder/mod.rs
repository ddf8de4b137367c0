//! The model folder: what training leaves behind and evaluation reads back.
//!
//! ```text
//! model/
//!   manifest.json               format, job, columns, spec, tables, checksums of all below
//!   dense.safetensors           dense parameters, f32
//!   tables/embedding/shard-0000.parquet
//!                               key: uint64, one column per part of the row (f32, or a fixed-size list of f32)
//! ```
//! Written aside and renamed, so that a killed process never leaves half a model; what was there before is exchanged in
//! one step. Read back only if every checksum holds.
//!
//! Comes in: a [`Model`], or a path. Goes out: files, or a [`Model`]. Blocks on the disk: not for an arbiter.

mod checked;
mod dense_file;
mod manifest;
mod table_file;

use std::path::Path;

use forebay_actors::{Fault, Host};
use forebay_connectors::aside::Aside;
use forebay_ps::start_table;

use crate::model::Model;
pub use manifest::{FileEntry, Manifest, TableEntry};

const MANIFEST: &str = "manifest.json";
const DENSE: &str = "dense.safetensors";

/// Refuses a place that holds something that is not a model, so that nothing else is ever replaced.
pub fn check_place(to: &Path) -> Result<(), Fault> {
    let holds = std::fs::read_dir(to).is_ok_and(|mut dir| dir.next().is_some());
    if to.is_file() || holds && !to.join(MANIFEST).is_file() {
        return Err(Fault::user(format!(
            "cannot write a model to {}: something is there that is not a model; name a folder of its own",
            to.display()
        )));
    }
    Ok(())
}

/// Writes `model` to the folder `to`, replacing a model that is there. Returns the manifest.
pub fn save(model: &Model, to: &Path) -> Result<Manifest, Fault> {
    check_place(to)?;
    let aside = Aside::begin(to, true)?;
    let mut files = Vec::new();
    let mut rows = 0;
    for shard in 0..model.table.shards() {
        let name = format!("tables/{}/shard-{shard:04}.parquet", model.config.name);
        let entry = table_file::write(&model.table, shard, &model.config, &aside.file(&name))?.named(name);
        rows += entry.rows.unwrap_or(0);
        files.push(entry);
    }
    let dense = dense_file::write(&model.dense, &aside.file(DENSE))?.named(DENSE);
    let manifest = Manifest::new(model, TableEntry { config: model.config.clone(), rows, files }, dense);
    manifest.write(&aside.file(MANIFEST))?;
    aside.publish()?;
    Ok(manifest)
}

/// Reads a model folder: starts its table, as many shards as `shards` says, and fills it.
///
/// # Errors
/// A user fault that names the file: no manifest, another format, a missing or damaged file.
pub fn load(from: &Path, shards: usize) -> Result<Model, Fault> {
    let manifest = Manifest::read(&from.join(MANIFEST))?;
    // All checksums before any row, so that a damaged folder costs no memory.
    for entry in manifest.files() {
        checked::verify(from, entry)?;
    }
    let dense = dense_file::read(&from.join(&manifest.dense.path))?;
    let [table_entry] = manifest.tables.as_slice() else {
        return Err(Fault::user(format!(
            "{}: {} tables, expected one",
            from.join(MANIFEST).display(),
            manifest.tables.len()
        )));
    };
    let host = Host::start("ps")?;
    let config = table_entry.config.clone();
    let table = start_table(&host, config.clone(), shards)
        .map_err(|e| Fault::user(format!("{}: {e}", from.join(MANIFEST).display())))?;
    for file in &table_entry.files {
        table_file::read(&from.join(&file.path), &config, &table)?;
    }
    Ok(Model { job: manifest.job, spec: manifest.spec, config, host, table, dense, factory: None })
}
