//! The checkpoint of a whole run, made when its model could not be saved. A run that continues from it only has to save the model.

use std::collections::BTreeMap;

use forebay_actors::Fault;
use forebay_job::Job;
use futures::executor::block_on;

use super::cut::{Cut, Kept, Shards};
use super::writer::{CheckpointWriter, Checkpoints};
use crate::checkpoint::finished::FinishedRun;
use crate::checkpoint::{CutPlan, TrainedBatches};
use crate::cluster::RunStatus;

/// Makes one more checkpoint after every stage of the run has ended.
pub(crate) struct LastCheckpoint {
    pub(super) checkpoints: Checkpoints,
    pub(super) writer: CheckpointWriter,
}

impl LastCheckpoint {
    /// Makes the checkpoint. All stages have ended, so it waits for none of them. `status`: in a cluster, the status of the run. Returns
    /// the number and the folder of the checkpoint. Blocks on the store.
    pub(crate) fn make(&mut self, status: Option<&RunStatus>) -> Result<(u64, String), Fault> {
        let plan = self.writer.plan(&self.checkpoints)?;
        let cut = match (&self.checkpoints.leader, status) {
            (None, _) => self.cut_alone(plan),
            (Some(_), Some(status)) => self.cut_all(plan, status),
            (Some(_), None) => Err(Fault::internal("several trainers without a coordinator")),
        };
        let manifest = self.writer.write(&self.checkpoints, cut?)?;
        Ok((manifest.number, self.checkpoints.folder.folder.to_string()))
    }

    /// Leaves a note beside the checkpoints that the run has ended. Blocks on the store.
    pub(crate) fn note_finished(&self, job: String, model: Option<String>, rows: u64) -> Result<(), Fault> {
        let Checkpoints { folder, author, .. } = &self.checkpoints;
        folder.finish(&FinishedRun::new(author.run, job, model, rows))
    }

    fn cut_alone(&self, plan: CutPlan) -> Result<Cut, Fault> {
        let Checkpoints { cut_point, cuts, .. } = &self.checkpoints;
        // Drops the cuts of a checkpoint that the end of the run interrupted.
        while cuts.try_recv().is_ok() {}
        block_on(cut_point.cut_now(plan));
        cuts.try_recv().map_err(|_| Fault::internal("no cut was made for the checkpoint at the end of the run"))?
    }

    /// With several trainers: all of them have ended, and the coordinator knows that every window is done.
    fn cut_all(&self, plan: CutPlan, status: &RunStatus) -> Result<Cut, Fault> {
        let Checkpoints { cut_point, job, .. } = &self.checkpoints;
        match cut_point.shards() {
            Shards::InPs(ps) => block_on(ps.begin(plan))?,
            Shards::Here(_) => return Err(Fault::internal("several trainers share the shards of one of them")),
        }
        let position = cut_point.position_after(all_windows(job, status), job.in_step());
        Ok(Cut {
            plan,
            position,
            model: None,
            snapshots: Vec::new(),
            kept: Kept::Written(Vec::new()),
            metrics: Some(cut_point.metrics()),
        })
    }
}

fn all_windows(job: &Job, status: &RunStatus) -> TrainedBatches {
    let windows = status.data.as_ref().map_or(0, |data| data.windows);
    let done: BTreeMap<_, _> =
        (0..job.data.epochs as u32).map(|epoch| (epoch, std::iter::once(0..windows).collect())).collect();
    TrainedBatches::of_windows(done, status.counts)
}
