//! The `[output]` section of a job.

use serde::{Deserialize, Serialize};

use crate::training_summary::RunEnd;

/// What a run writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputOptions {
    /// The model folder: a path or a URL (`hdfs://`, `s3://`, `file://`), for instance `rows/model`. It is written to a staged
    /// folder and renamed at the end, and replaces a model that is there. Default: the model is not saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether the model folder also holds the state of all optimizers, so that `train.from` can go on from the model as if
    /// the training had not ended. With Adagrad or FTRL the tables are about twice as large, with Adam three times.
    pub state: bool,
    /// Where the model goes when Ctrl-C or SIGTERM drains the run before all rows are trained on.
    pub on_drain: OnDrain,
}

/// What becomes of the model of a run that was drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDrain {
    /// It is saved beside `model`, under the same name with `.partial` behind it. An older model at `model` stays.
    #[default]
    Partial,
    /// It replaces the model at `model`.
    Replace,
    /// It is not saved.
    Discard,
}

impl OutputOptions {
    /// The folder for the model of a run that ended like this; `None` if it is not saved.
    pub fn folder(&self, ended: RunEnd) -> Option<String> {
        let model = self.model.as_deref()?;
        match (ended, self.on_drain) {
            (RunEnd::Complete | RunEnd::StoppedEarly, _) | (RunEnd::Drained, OnDrain::Replace) => {
                Some(model.to_owned())
            }
            (RunEnd::Drained, OnDrain::Partial) => Some(format!("{}.partial", model.trim_end_matches('/'))),
            (RunEnd::Drained, OnDrain::Discard) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drained_run_replaces_a_model_only_if_the_job_says_so() {
        let folder = |on_drain, ended| {
            let model = Some("s3://bucket/ctr/".to_owned());
            OutputOptions { model, on_drain, ..OutputOptions::default() }.folder(ended)
        };
        for on_drain in [OnDrain::Partial, OnDrain::Replace, OnDrain::Discard] {
            for ended in [RunEnd::Complete, RunEnd::StoppedEarly] {
                assert_eq!(folder(on_drain, ended).as_deref(), Some("s3://bucket/ctr/"));
            }
        }
        assert_eq!(folder(OnDrain::Partial, RunEnd::Drained).as_deref(), Some("s3://bucket/ctr.partial"));
        assert_eq!(folder(OnDrain::Replace, RunEnd::Drained).as_deref(), Some("s3://bucket/ctr/"));
        assert_eq!(folder(OnDrain::Discard, RunEnd::Drained), None);
        assert_eq!(OutputOptions::default().folder(RunEnd::Complete), None);
    }
}
