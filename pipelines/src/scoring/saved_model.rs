//! Loads a model from a model folder, or from the newest checkpoint of a run.

use forebay_actors::{Domain, Fault, FaultKind, Host};
use forebay_connectors::staged::Folder;
use forebay_job::DenseAt;
use forebay_models::NamedTensor;
use forebay_ps::start_read_only;

use crate::checkpoint::{self, CheckpointFolder, CheckpointManifest, DamagedCheckpoints, OriginCheckpoint};
use crate::context::Context;
use crate::dense_model::job_model::JobModel;
use crate::fault::model_fault;
use crate::model::Model;

/// A checkpoint that was loaded.
#[derive(Clone, Copy)]
pub(crate) struct LoadedCheckpoint {
    /// The random number of its run.
    pub(crate) run: u64,
    pub(crate) number: u64,
}

impl LoadedCheckpoint {
    fn is_before(&self, other: &CheckpointManifest) -> bool {
        other.position.run != self.run || other.number > self.number
    }
}

impl Model {
    /// Loads a model folder, or, if the folder has checkpoints, the newest one that is whole: in both cases the weights alone, as
    /// [`Model::load_weights`]. Starts the table with `shards` shards. Blocks until all rows are in it.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_saved(from: &str, shards: usize, context: &Context) -> Result<Self, Fault> {
        let model = Folder::from(from).with_stores(&context.stores).open()?;
        let checkpoints = CheckpointFolder::open(from, context)?;
        if model.has("manifest.json")? || checkpoints.numbers()?.is_empty() {
            return Self::load_weights(from, shards, context);
        }
        let newest = Self::of_newest(&checkpoints, &mut None, &mut DamagedCheckpoints::default(), shards, context)?;
        newest.ok_or_else(|| Fault::user(format!("{from} has no checkpoint any more")).kind(FaultKind::NotFound))
    }

    /// Loads the newest checkpoint that is whole and newer than `last`, or of another run, and puts it into `last`. `None` if there is
    /// none. Adds damaged checkpoints to `damaged`, and passes over checkpoints that the run removes meanwhile.
    ///
    /// # Errors
    /// As [`Model::load`]. The fault has the kind [`FaultKind::Damaged`] if there are checkpoints and none is whole. It is also an error if
    /// another version of the program wrote the newest one.
    pub(crate) fn of_newest(
        checkpoints: &CheckpointFolder,
        last: &mut Option<LoadedCheckpoint>,
        damaged: &mut DamagedCheckpoints,
        shards: usize,
        context: &Context,
    ) -> Result<Option<Self>, Fault> {
        loop {
            let there = checkpoints.numbers()?.last().copied();
            if there == last.map(|last| last.number) || there.is_none() {
                return Ok(None);
            }
            let whole = match checkpoints.newest(damaged) {
                // Meanwhile the run has written a checkpoint, and may have removed the one that was read here.
                Err(_) if checkpoints.numbers()?.last().copied() != there => continue,
                // A file that may not be read may be on its way from another machine, too.
                Err(fault) if fault.domain == Domain::User && fault.kind == FaultKind::Other => {
                    return Err(fault.kind(FaultKind::Damaged));
                }
                whole => whole?,
            };
            let Some(manifest) = whole.filter(|whole| last.is_none_or(|last| last.is_before(whole))) else {
                *last = last.map(|last| LoadedCheckpoint { number: last.number.max(there.unwrap_or(0)), ..last });
                return Ok(None);
            };
            let (number, run) = (manifest.number, manifest.position.run);
            match Self::of_checkpoint(checkpoints, manifest, shards, context) {
                Ok(model) => {
                    *last = Some(LoadedCheckpoint { run, number });
                    return Ok(Some(model));
                }
                Err(_) if !checkpoints.numbers()?.contains(&number) => {
                    tracing::info!("checkpoint {number} is passed over: the run has removed it meanwhile");
                }
                Err(fault) if fault.kind == FaultKind::Damaged => damaged.add(OriginCheckpoint::own(number), fault),
                Err(fault) => return Err(fault),
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
        let needs = |fault: Fault| {
            let message = format!("cannot load checkpoint {} of {from}: {fault}", manifest.number);
            Fault::user(message).kind(fault.kind).with_source(fault)
        };
        context.registry.check_to_score(&manifest.job).map_err(needs)?;
        let model = JobModel::of(&manifest.job, &context.registry)?;
        let [tables] = manifest.tables.as_slice() else {
            let several = Fault::user(format!("{} tables, expected one", manifest.tables.len()));
            return Err(needs(several.kind(FaultKind::OtherVersion)));
        };
        let dense = dense_parameters(checkpoints, &manifest, &model, context)?;
        let host = Host::start("ps")?;
        let table = start_read_only(&host, tables.config.clone(), shards)?;
        checkpoint::load_rows(checkpoints, &manifest, &table)?;
        let training = Some(manifest.summary());
        let (job, context) = (manifest.job, context.clone());
        Ok(Self { job, dense, optimizer: None, table, training, approximates: None, model, host, context })
    }
}

/// The dense parameters of a checkpoint. The blocks of ps processes have no names: the model knows them.
fn dense_parameters(
    checkpoints: &CheckpointFolder,
    manifest: &CheckpointManifest,
    model: &JobModel,
    context: &Context,
) -> Result<Vec<NamedTensor>, Fault> {
    let (job, name) = (&manifest.job, format!("checkpoint {} of {}", manifest.number, checkpoints.folder));
    let in_blocks = !job.placement.is_one_process() && job.placement.dense() == DenseAt::Ps;
    if !in_blocks {
        let dense = checkpoint::dense_parameters(checkpoints, manifest)?;
        return model.check_parameters(&dense, &name).map(|()| dense);
    }
    let whole = checkpoint::dense_blocks(checkpoints, manifest, job.dense_optimizer())?;
    let values = whole.values().to_vec();
    model.check_parameters(&[NamedTensor { name: String::new(), shape: vec![values.len()], data: values }], &name)?;
    let mut model = JobModel::on_cpu(job, &context.registry)?;
    model.set_flat(whole.values()).map_err(|e| model_fault(e).context(name))?;
    Ok(model.parameters())
}
