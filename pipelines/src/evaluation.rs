//! Scoring a trained model.

use forebay_actors::{Fault, Report, Source};
use forebay_connectors::Rows;

use crate::model::Model;
use crate::registry::{Read, read_from};
use crate::stages::Evaluation;
use crate::{sources, wiring};

impl Model {
    /// Scores all rows at `path`: a file, a folder, a glob or a URL. The file names give the format. The rows pass the custom
    /// stages of the job, except those that are for training only. Blocks until it is done.
    pub fn evaluate(&self, path: &str) -> Result<(Evaluation, Report), Fault> {
        self.score(sources::whole(&self.job.for_evaluation(), &self.context, path, self.job.columns.names())?)
    }

    /// Scores all rows of any source. Blocks until it is done.
    pub fn evaluate_source<S: Source<Out = Rows>>(
        &self,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Result<(Evaluation, Report), Fault> {
        self.score(read_from(make))
    }

    fn score(&self, read: Read) -> Result<(Evaluation, Report), Fault> {
        let outcome = wiring::evaluation(self, read)?.start()?.wait();
        outcome.result?;
        let evaluation = outcome.results.take("evaluate");
        Ok((evaluation.ok_or_else(|| Fault::internal("the evaluation ended without a result"))?, outcome.report))
    }
}
