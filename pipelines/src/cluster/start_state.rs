//! What the parameters of an attempt begin with, if not with new ones. Blocks on the store.

use forebay_actors::Fault;

use super::members::Role;
use crate::checkpoint::{CheckpointFolder, CheckpointManifest, Found, OriginCheckpoint};
use crate::context::Context;
use crate::job::Job;
use crate::model_folder::Predecessor;

/// What a process loads before it joins.
pub(crate) enum StartState {
    /// The checkpoint that the run goes on from.
    Checkpoint(CheckpointFolder, CheckpointManifest),
    /// The model at `train.from`.
    Model(Predecessor),
}

impl StartState {
    /// Opens the checkpoint, or without one the model at `train.from`, which readers need not reach.
    pub(super) fn find(
        job: &Job,
        role: Role,
        checkpoint: Option<OriginCheckpoint>,
        context: &Context,
    ) -> Result<Option<Self>, Fault> {
        if let Some(at) = checkpoint {
            let Found { folder, manifest, .. } = Found::open(job, at, context)?;
            return Ok(Some(Self::Checkpoint(folder, manifest)));
        }
        if role == Role::Reader {
            return Ok(None);
        }
        Ok(Predecessor::open(job, context)?.map(Self::Model))
    }
}
