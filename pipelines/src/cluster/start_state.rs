//! What the parameters of an attempt begin with, if not with new ones. Blocks on the store.

use forebay_actors::Fault;

use super::members::Role;
use crate::checkpoint::{CheckpointFolder, CheckpointManifest};
use crate::context::Context;
use crate::job::Job;
use crate::model_folder::Predecessor;

/// What a process loads before it joins.
pub(crate) enum StartState {
    /// A checkpoint of the run.
    Checkpoint(CheckpointFolder, CheckpointManifest),
    /// The model at `train.from`.
    Model(Predecessor),
}

impl StartState {
    /// Opens the checkpoint of this number, or without one the model at `train.from`, which readers need not reach.
    pub(super) fn find(
        job: &Job,
        role: Role,
        checkpoint: Option<u64>,
        context: &Context,
    ) -> Result<Option<Self>, Fault> {
        if let (Some(number), Some(to)) = (checkpoint, &job.checkpoint.to) {
            let folder = CheckpointFolder::open(to, context)?;
            let manifest = folder.manifest(number)?;
            return Ok(Some(Self::Checkpoint(folder, manifest)));
        }
        if role == Role::Reader {
            return Ok(None);
        }
        Ok(Predecessor::open(job, context)?.map(Self::Model))
    }
}
