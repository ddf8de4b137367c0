//! How a [`Job`] becomes text and back. Errors in TOML need its own reader, which knows lines and paths. All other formats go through
//! JSON values, so that the fields of all sections are compiled for three readers and two writers, and not for each format that a job
//! or a manifest is in.

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

/// A job that is read without JSON values in between.
pub(super) struct ReadJob(pub(super) Job);

impl<'de> Deserialize<'de> for ReadJob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Job::deserialize(deserializer).map(Self)
    }
}

/// A job that is written without JSON values in between.
pub(super) struct WrittenJob<'a>(pub(super) &'a Job);

impl Serialize for WrittenJob<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Job::serialize(self.0, serializer)
    }
}
