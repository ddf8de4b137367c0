//! How a [`Job`] becomes text and back. Errors in TOML need its own reader, which knows lines and paths. All other formats go through
//! JSON values, so that the fields of all sections are compiled for three readers and two writers, and not for each format that a job
//! or a manifest is in.

use forebay_base::StrictTables;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Job;

impl<'de> Deserialize<'de> for Job {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        ReadJob::deserialize(value).map(|read| read.0).map_err(D::Error::custom)
    }
}

impl Serialize for Job {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::to_value(WrittenJob(self)).map_err(S::Error::custom)?.serialize(serializer)
    }
}

/// A job that is read without JSON values in between. A list in the place of a table is an error at every level.
pub(super) struct ReadJob(pub(super) Job);

impl<'de> Deserialize<'de> for ReadJob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Job::deserialize(StrictTables(deserializer)).map(Self)
    }
}

/// A job that is written without JSON values in between.
pub(super) struct WrittenJob<'a>(pub(super) &'a Job);

impl Serialize for WrittenJob<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Job::serialize(self.0, serializer)
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::DenseOptimizer;
    use proptest::prelude::*;

    use super::*;
    use crate::{DenseStatistics, Slot, SlotKind};

    /// A job with these numbers in several sections.
    fn job_with(number: f64, small: f32) -> Job {
        let mut job = Job::default();
        let boundaries = Some(vec![number]);
        job.columns.slots = vec![Slot { kind: SlotKind::Boundaries, boundaries, ..Slot::from("x".to_owned()) }];
        let statistics = DenseStatistics { mean: number, std: number, ..DenseStatistics::default() };
        job.columns.statistics = Some([("y".to_owned(), statistics)].into());
        job.train.optimizer = Some(DenseOptimizer::adam(number));
        job.train.clip_norm = Some(number);
        job.table.admission.probability = Some(number);
        job.table.eviction.min_score = Some(small);
        job
    }

    fn assert_it_reads_back(job: &Job) {
        assert_eq!(&Job::from_toml(&job.to_toml(), &[]).unwrap(), job);
        let json = serde_json::to_string(job).unwrap();
        assert_eq!(&serde_json::from_str::<Job>(&json).unwrap(), job);
        assert_eq!(&serde_json::from_value::<Job>(serde_json::from_str(&json).unwrap()).unwrap(), job);
    }

    /// A bug: these were one bit off after JSON.
    #[test]
    fn numbers_with_many_digits_read_back() {
        for number in [0.010506151518672291, 0.012561043700013551, 0.030000000000000002, 1e-25, 1e-30] {
            assert_it_reads_back(&job_with(number, 0.1));
        }
    }

    proptest! {
        #[test]
        fn every_finite_number_reads_back(
            number in any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |number| number.is_finite()),
            small in any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |number| number.is_finite()),
        ) {
            assert_it_reads_back(&job_with(number, small));
        }
    }
}
