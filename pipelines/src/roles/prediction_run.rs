//! The run of a prediction with readers apart, in the process that scores: trainer 0, which coordinates.

use std::sync::Arc;

use forebay_actors::{Control, Fault, FaultKind};
use forebay_job::Job;
use forebay_net::Handler;

use crate::cluster::coordinator::Coordinator;
use crate::cluster::member::Member;
use crate::cluster::{ClusterProcess, ClusterSession, Role};
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;

/// The run of a prediction, in the process that scores.
pub(crate) struct PredictionRun {
    session: ClusterSession,
    /// Gives signs of life.
    _process: ClusterProcess,
}

/// What the run knows of its readers.
pub(crate) struct RunReaders(Coordinator);

impl RunReaders {
    /// As [`Predictions::reader_has_ended`](crate::scoring::prediction::Predictions::reader_has_ended).
    pub(crate) fn has_ended(&self, rank: u32) {
        self.0.has_ended(Role::Reader, rank);
    }

    /// As [`Predictions::silent_readers`](crate::scoring::prediction::Predictions::silent_readers).
    pub(crate) fn silent(&self) -> Vec<String> {
        self.0.silent()
    }
}

impl PredictionRun {
    /// Joins as trainer 0 of a run of `job`, which coordinates, with `handler` for what readers send. Blocks until this process listens.
    ///
    /// # Errors
    /// A user fault: the address cannot be listened at, or `process` is not trainer 0.
    pub(crate) fn join(
        context: &Context,
        process: ClusterProcess,
        job: &Job,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, Fault> {
        let config = process.config();
        if !config.coordinates(job) {
            let (role, rank) = (config.role, config.rank);
            return Err(Fault::user(format!("{role} {rank} scores, expected trainer 0, which readers join")));
        }
        let session = ClusterSession::join(context, &process, job, vec![handler], |_| Ok(SampledSettings::default()))?;
        Ok(Self { session, _process: process })
    }

    pub(crate) fn member(&self) -> &Member {
        &self.session.member
    }

    pub(crate) fn readers(&self) -> Option<RunReaders> {
        self.session.coordinator.clone().map(RunReaders)
    }

    /// Tells the readers how the predictions have ended, and ends the run. Blocks for up to some seconds, until they know it. Returns the
    /// number of rows that the readers left out.
    ///
    /// # Errors
    /// Returns the fault of the predictions. Returns an internal fault if a window is not done.
    pub(crate) fn ended(self, result: Result<(), Fault>) -> Result<u64, Fault> {
        let status = self.session.status();
        let (done, all) = (status.windows_done, status.windows_total);
        let complete = result.and_then(|()| match done < all {
            true => Err(Fault::internal(format!("the prediction has ended with {done} of {all} windows"))),
            false => Ok(()),
        });
        match complete {
            Ok(()) => self.session.over().map(|()| status.counts.rejected),
            Err(fault) => Err(self.fail(fault)),
        }
    }

    /// Tells the readers that the run has failed, as [`ended`](Self::ended). Returns the fault to end with.
    pub(crate) fn fail(self, fault: Fault) -> Fault {
        self.session.fail(fault)
    }

    /// Tells the readers that the rest of the result is not wanted.
    pub(crate) fn give_up(self) {
        drop(self.session.fail(Fault::external("the rest of the scores is not wanted").kind(FaultKind::Drained)));
    }

    /// Ends the pipeline when the run fails.
    pub(crate) fn kill_when_failed(&self, pipeline: Control) {
        self.session.kill_when_failed(pipeline);
    }
}
