//! What the stages of a training run share, and what outlives its pipeline.

use std::sync::Arc;

use forebay_actors::{Fault, Host};
use forebay_models::NamedTensor;
use forebay_ps::{TableClient, TableConfig, start_table};

use crate::checkpoint::{BatchOrder, CheckpointFolder, Checkpoints, CutPoint, ModelState, Restored, Shards};
use crate::cluster::ClusterSession;
use crate::context::Context;
use crate::job::Job;
use crate::job_model::JobModel;
use crate::model_folder::check_place;
use crate::participation::Participation;
use crate::progress::Progress;
use crate::source_progress::SourceProgress;
use crate::staleness::Staleness;
use crate::training_summary::TrainingSummary;

/// The table, the model and the counters of one training run.
pub(crate) struct Resources {
    pub(crate) job: Job,
    pub(crate) context: Context,
    pub(crate) model: JobModel,
    pub(crate) host: Host,
    pub(crate) table: TableClient,
    pub(crate) progress: Progress,
    pub(crate) staleness: Staleness,
    pub(crate) participation: Participation,
    /// The state that the dense model goes on from.
    pub(crate) restored: Option<ModelState>,
    /// The checkpoints to make.
    pub(crate) checkpoints: Option<Checkpoints>,
    /// How far the source of this process has read.
    pub(crate) source: SourceProgress,
    /// Set if this process is a member of a cluster.
    pub(crate) session: Option<ClusterSession>,
}

impl Resources {
    /// For training in one process, with a new table.
    pub(crate) fn alone(job: Job, context: Context) -> Result<Self, Fault> {
        Self::new(job, context, |host, job, config| {
            start_table(host, config.clone(), job.table.shards)
                .map_err(|e| Fault::user("the table cannot be made").because(e))
        })
    }

    /// For training over the table that `table` starts or connects to.
    pub(crate) fn new(
        job: Job,
        context: Context,
        table: impl FnOnce(&Host, &Job, &TableConfig) -> Result<TableClient, Fault>,
    ) -> Result<Self, Fault> {
        job.check()?;
        context.registry.check(&job)?;
        if let Some(folder) = &job.output.model {
            // Check it now, not after hours of training.
            check_place(folder, &context)?;
        }
        let model = JobModel::of(&job, &context.registry)?;
        let host = Host::start("ps")?;
        let table = table(&host, &job, &model.table_config(&job))?;
        Ok(Self {
            staleness: Staleness::new(job.train.staleness),
            job,
            context,
            model,
            host,
            table,
            progress: Progress::default(),
            participation: Participation::default(),
            source: SourceProgress::default(),
            restored: None,
            checkpoints: None,
            session: None,
        })
    }

    /// Has the run make checkpoints, and go on from what was restored.
    pub(crate) fn add_checkpoints(
        &mut self,
        folder: CheckpointFolder,
        restored: Restored,
        order: BatchOrder,
        shards: Shards,
    ) {
        let Restored { position, model } = restored;
        self.progress.goes_on_after(position.rows, position.steps);
        let (cut_point, cuts) = CutPoint::new(position, order, shards);
        self.restored = model;
        self.participation = std::mem::take(&mut self.participation).with_checkpoints(Arc::clone(&cut_point));
        let (job, config) = (self.job.clone(), self.table.config().clone());
        self.checkpoints = Some(Checkpoints { folder, job, config, cut_point, cuts });
    }

    /// What the run has trained, once it has ended.
    pub(crate) fn summary(&self) -> TrainingSummary {
        match &self.session {
            Some(session) => TrainingSummary::of_run(&self.job, &session.status()),
            None => TrainingSummary::alone(&self.job, &self.progress.snapshot(), &self.source),
        }
    }

    /// The dense parameters after the last push: the values of the shared store if there is one, else `tensors`, which the
    /// trainer's own model holds.
    pub(crate) fn latest(&self, mut tensors: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Fault> {
        let Some(flat) = futures::executor::block_on(self.participation.pull_dense())? else { return Ok(tensors) };
        let mut rest = flat.as_slice();
        for tensor in &mut tensors {
            let Some((values, after)) = rest.split_at_checked(tensor.data.len()) else { break };
            tensor.data.copy_from_slice(values);
            rest = after;
        }
        Ok(tensors)
    }
}
