//! A model from what a run left: a model folder, or the newest checkpoint.

use forebay_actors::{Fault, FaultKind, Host};
use forebay_connectors::staged::Folder;
use forebay_ps::start_table;

use crate::checkpoint::{self, CheckpointFolder, CheckpointManifest, DamagedCheckpoints, OriginCheckpoint};
use crate::context::Context;
use crate::job_model::JobModel;
use crate::model::Model;

impl Model {
    /// Loads a model folder, or, if the folder has checkpoints, the newest one that is whole. Starts the table with `shards` shards.
    /// Blocks until all rows are in it.
    ///
    /// # Errors
    /// As [`Model::load`]. A user fault if the dense parameters of the checkpoint lie in blocks of several ps.
    pub fn load_saved(from: &str, shards: usize, context: &Context) -> Result<Self, Fault> {
        let model = Folder::from(from).with_stores(&context.stores).open()?;
        let checkpoints = CheckpointFolder::open(from, context)?;
        if model.has("manifest.json")? || checkpoints.numbers()?.is_empty() {
            return Self::load_with(from, shards, context);
        }
        let mut damaged = DamagedCheckpoints::default();
        loop {
            let newest = checkpoints.newest(&damaged)?;
            let manifest = newest.ok_or_else(|| Fault::user(format!("{from} has no checkpoint any more")))?;
            let at = OriginCheckpoint::own(manifest.number);
            match Self::of_checkpoint(&checkpoints, manifest, shards, context) {
                Err(fault) if fault.kind == FaultKind::Damaged => damaged.add(at, fault),
                loaded => return loaded,
            }
        }
    }

    fn of_checkpoint(
        checkpoints: &CheckpointFolder,
        manifest: CheckpointManifest,
        shards: usize,
        context: &Context,
    ) -> Result<Self, Fault> {
        let from = &checkpoints.folder;
        let needs =
            |fault: Fault| Fault::user(format!("cannot load checkpoint {} of {from}: {fault}", manifest.number));
        context.registry.check(&manifest.job).map_err(needs)?;
        let model = JobModel::of(&manifest.job, &context.registry)?;
        let [tables] = manifest.tables.as_slice() else {
            return Err(needs(Fault::user(format!("{} tables, expected one", manifest.tables.len()))));
        };
        let [_] = manifest.dense.as_slice() else {
            return Err(needs(Fault::user(
                "its dense parameters lie in blocks of the ps (placement.dense), which only the run itself puts together: take \
                 the model folder of the run",
            )));
        };
        let dense = checkpoint::dense_parameters(checkpoints, &manifest)?;
        model.check_parameters(&dense, &format!("checkpoint {} of {from}", manifest.number))?;
        let host = Host::start("ps")?;
        let table = start_table(&host, tables.config.clone(), shards)?;
        checkpoint::load_rows(checkpoints, &manifest, &table)?;
        let (job, context) = (manifest.job, context.clone());
        Ok(Self { job, dense, optimizer: None, table, training: None, model, host, context })
    }
}
