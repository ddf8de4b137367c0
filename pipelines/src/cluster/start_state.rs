//! What the parameters of an attempt begin with, if they are not new. Blocks on the store.

use forebay_actors::Fault;
use forebay_job::Job;

use super::members::Role;
use crate::checkpoint::{CheckpointFolder, CheckpointManifest, Found, OriginCheckpoint};
use crate::context::Context;
use crate::predecessor::Predecessor;

/// What a process loads before it joins.
pub(crate) enum StartState {
    /// The checkpoint that the run continues from.
    Checkpoint(CheckpointFolder, Box<CheckpointManifest>),
    /// The model at `train.from`.
    Model(Box<Predecessor>),
}

impl StartState {
    /// Opens the checkpoint, or without one the model at `train.from`. A manifest that is known, as JSON, is not read again. Readers load
    /// neither. So a reader need not reach the model, and may start again after the run has removed its first checkpoint.
    pub(super) fn find(
        job: &Job,
        role: Role,
        checkpoint: Option<(OriginCheckpoint, Option<String>)>,
        context: &Context,
    ) -> Result<Option<Self>, Fault> {
        if role == Role::Reader {
            return Ok(None);
        }
        if let Some((at, manifest)) = checkpoint {
            let Found { folder, manifest, .. } = Found::open(job, at, manifest.as_deref(), context)?;
            return Ok(Some(Self::Checkpoint(folder, Box::new(manifest))));
        }
        Ok(Predecessor::open(job, context)?.map(|model| Self::Model(Box::new(model))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_does_not_miss_a_checkpoint_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let to = format!("checkpoint.to={}", folder.path().join("checkpoints").display());
        let (job, context) = (Job::from_toml("", &[to]).unwrap(), Context::default());
        let find = |role| StartState::find(&job, role, Some((OriginCheckpoint::own(5), None)), &context);
        assert!(find(Role::Reader).unwrap().is_none());
        for role in [Role::Ps, Role::Trainer] {
            let fault = find(role).err().unwrap().to_string();
            assert!(fault.contains("checkpoint-000005.json"), "{fault}");
        }
    }
}
