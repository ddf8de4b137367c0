//! The `[output]` section of a job.

use std::time::Duration;

use forebay_actors::Fault;
use forebay_connectors::OnBadRow;
use forebay_connectors::staged::is_in;
use serde::{Deserialize, Serialize};

use super::Job;
use crate::checkpoint::Interval;
use crate::run_end::RunEnd;

/// What a run writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputOptions {
    /// The model folder: a path or a URL (`hdfs://`, `s3://`, `file://`), for instance `rows/model`. The run writes a staged folder and
    /// renames it at the end. It replaces an older model. On S3 there is no rename: the manifest of the older model is deleted before the
    /// uploads of the new one are completed, so a run that is killed between leaves neither. Default: the model is not saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether the model folder also has the state of all optimizers, so that `train.from` continues as if the training had not ended. With
    /// Adagrad or FTRL the tables are about twice as large, with Adam three times.
    pub state: bool,
    /// Where the model goes when Ctrl-C or SIGTERM drains the run before all rows are trained on. With `checkpoint.to` it is saved only if
    /// the last checkpoint cannot be written.
    pub on_drain: OnDrain,
    /// How long the run tries to save the model again if a disk or a store is full or cannot be reached. After that, a run with
    /// `checkpoint.to` writes a checkpoint of all rows; a run without saves the model with the suffix `.rescued` in the working directory
    /// or in the folder for temporary files. An evaluation during training, and its best model, are tried again for as long, and then left
    /// out. 0s: one attempt.
    pub retry_for: Interval,
}

impl Default for OutputOptions {
    fn default() -> Self {
        let retry_for = Interval(Duration::from_secs(300));
        Self { model: None, state: false, on_drain: OnDrain::default(), retry_for }
    }
}

/// What becomes of the model of a run that was drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDrain {
    /// It is saved beside `model`, with the suffix `.partial`. An older model at `model` stays.
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

    /// The folder of a model is replaced as a whole, and only if it holds a model: nothing else of the run may be in it.
    pub(super) fn check(&self, job: &Job, on_bad_row: &OnBadRow) -> Result<(), Fault> {
        let bad_rows = match on_bad_row {
            OnBadRow::WriteTo(folder) => Some(folder.to_string_lossy().into_owned()),
            _ => None,
        };
        let others = [("checkpoint.to", &job.checkpoint.to), ("data.on_bad_row.write_to", &bad_rows)];
        for model in [RunEnd::Complete, RunEnd::Drained].into_iter().filter_map(|ended| self.folder(ended)) {
            for (field, place) in others {
                if let Some(place) = place.as_ref().filter(|place| is_in(place, &model)) {
                    return Err(Fault::user(format!(
                        "{field} is {place}, in the folder of the model (output.model), which the run replaces at the \
                         end: name a folder outside of {model}"
                    )));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_a_run_fills_in_the_folder_of_its_model_is_refused() {
        let checked = |settings: &[&str]| Job::with_settings("", settings).unwrap().check();
        for (model, other) in [
            ("rows/model", "rows/model"),
            ("rows/model/", "./rows/model/checkpoints"),
            ("file:///a/model", "/a/model/checkpoints"),
            ("/a/model", "/a/model.partial"),
            ("hdfs://ns/model", "hdfs://ns/model/checkpoints"),
        ] {
            let (model, to) = (format!("output.model={model}"), format!("checkpoint.to={other}"));
            let fault = checked(&[&model, &to]).unwrap_err().to_string();
            assert!(fault.contains("checkpoint.to") && fault.contains("output.model"), "{fault}");
            if !other.contains("://") {
                let bad = format!("data.on_bad_row={{write_to=\"{other}\"}}");
                assert!(checked(&[&model, &bad]).unwrap_err().to_string().contains("data.on_bad_row"));
            }
            assert!(checked(&[&to]).is_ok());
        }
        for (model, to) in
            [("rows/model", "rows/model-checkpoints"), ("rows/model", "rows"), ("s3://a/m", "hdfs://a/m")]
        {
            checked(&[&format!("output.model={model}"), &format!("checkpoint.to={to}")]).unwrap();
        }
    }

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
