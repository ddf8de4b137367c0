//! The vectors of users or of items by a trained model of two towers: rows go in, record batches with their vectors come out.

use forebay_actors::Fault;
use forebay_job::Paths;
use forebay_models::{ModelSpec, TowerSide};

use super::prediction::Predictions;
use crate::columns::kept_columns::check_kept;
use crate::model::Model;
use crate::sources;
use crate::stages::VECTOR;
use crate::training::wiring;

impl Model {
    /// Computes the vectors of all rows at `paths` by one of the model's two towers, for an index of nearest neighbours, or to search one.
    /// The rows need only the columns of this tower. The result is as for [`predict`](Self::predict), with `vector`, a list of
    /// `model.vector_dim` floats, instead of the score. With the cosine as similarity, a vector has length 1, so the inner product of a
    /// user's vector and an item's vector is their similarity, which orders items as their scores do.
    ///
    /// # Errors
    /// A user fault if the model has no two towers, `keep` names a column twice or one called `vector`, or nothing is at `paths`.
    pub fn embed(&self, paths: impl Into<Paths>, side: TowerSide, keep: &[&str]) -> Result<Predictions<'_>, Fault> {
        let spec = self.two_towers()?;
        let keep = check_kept(keep, &[VECTOR.to_owned()])?;
        let mut job = self.job_as_trained().for_tower(spec, side).for_evaluation();
        job.data.filter = None;
        let read = sources::to_predict(&job, &self.context, &paths.into(), &keep)?;
        let source = read.progress.clone();
        let wire = |batches| wiring::embedding(self, &job, (spec, side), read, keep, batches);
        Ok(Predictions::start(self, "embed", wire)?.reading(source))
    }

    fn two_towers(&self) -> Result<&ModelSpec, Fault> {
        self.model.spec.as_ref().filter(|spec| spec.two_towers.is_some()).ok_or_else(|| {
            Fault::user(format!(
                "the model is of the kind \"{}\", which has no vectors of users and items, expected \"two_towers\"",
                self.job.model.kind
            ))
        })
    }
}
