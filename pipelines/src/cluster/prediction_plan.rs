//! What the processes of a prediction with readers apart have in common (docs/adr/0027-predict-with-readers-apart.md): the job of a run
//! with one trainer, which only scores, and the columns to keep.

use std::time::Duration;

use forebay_actors::Fault;
use forebay_connectors::staged::Folder;
use forebay_job::{Job, Paths, Placement, TrainOptions};

use crate::columns::kept_columns::check_kept;
use crate::columns::score_columns::ScoreColumns;
use crate::columns::trained_types::{TrainedTypes, job_as_trained};
use crate::context::Context;
use crate::metrics::training_summary::TrainingSummary;
use crate::model::Model;
use crate::model_folder::{Manifest, replaced};
use crate::window_rows::{FORWARD_ROWS, UNSHUFFLED};

/// What all processes of a prediction with readers apart must have in common.
pub struct PredictionPlan {
    /// The job of the model, with the rows and the processes of the prediction.
    pub(crate) job: Job,
    /// The columns to write beside the scores.
    pub(crate) keep: Vec<String>,
    pub(crate) types: TrainedTypes,
}

impl PredictionPlan {
    /// The plan of the process that scores the rows at `paths` with `model`, and of `readers` readers.
    ///
    /// # Errors
    /// As [`Model::predict`]; a user fault if a setting of the job is wrong.
    pub fn of_model(model: &Model, paths: impl Into<Paths>, keep: &[&str], readers: usize) -> Result<Self, Fault> {
        Self::new(&model.job, model.training.as_ref(), paths.into(), keep, readers)
    }

    /// The plan of a reader, from the manifest of the model in `folder` alone. `settings` change the job of the model, and must be the
    /// settings of the process that scores. Blocks on the store.
    ///
    /// # Errors
    /// Returns a fault if the manifest cannot be read, and the faults of [`of_model`](Self::of_model).
    pub fn of_folder(
        folder: impl Into<Folder>,
        settings: &[String],
        paths: impl Into<Paths>,
        keep: &[&str],
        readers: usize,
        context: &Context,
    ) -> Result<Self, Fault> {
        let folder = folder.into().with_stores(&context.stores).open()?;
        let manifest = replaced::read_one(folder, |folder| {
            let manifest = Manifest::read_in(folder)?;
            manifest.check_job(folder)?;
            Ok(manifest)
        })?;
        let job = manifest.job.adapted(settings)?;
        Self::new(&job, manifest.training.as_ref(), paths.into(), keep, readers)
    }

    fn new(
        job: &Job,
        training: Option<&TrainingSummary>,
        paths: Paths,
        keep: &[&str],
        readers: usize,
    ) -> Result<Self, Fault> {
        let keep = check_kept(keep, ScoreColumns::of(job).names())?;
        let types = TrainedTypes::of(training);
        let mut job = job_as_trained(job, training).for_evaluation();
        job.data.train = Some(paths);
        job.data.filter = None;
        // Rows are not shuffled. A window is what readers share out.
        job.data.shuffle_rows = job.data.shuffle_rows.min(UNSHUFFLED);
        job.train = TrainOptions { batch_rows: FORWARD_ROWS, ..TrainOptions::default() };
        (job.checkpoint, job.evaluation, job.output) = Default::default();
        let Placement {
            in_flight, in_flight_bytes, streams, compress, lease_rows, lease_seconds, timeout_seconds, ..
        } = job.placement;
        job.placement = Placement {
            readers,
            in_flight,
            in_flight_bytes,
            streams,
            compress,
            lease_rows,
            lease_seconds,
            timeout_seconds,
            ..Placement::default()
        };
        job.check_saved()?;
        Ok(Self { job, keep, types })
    }

    /// A reader hangs if it gives no sign of life for longer.
    pub fn most_silence(&self) -> Duration {
        Duration::from_secs_f64(self.job.placement.lease_seconds)
    }

    /// The cores of each reader, if all processes are on this machine.
    pub fn cores_of_a_reader(&self) -> usize {
        self.job.cores_of_each("reader", self.job.cores())
    }
}
