//! The `[pipeline]` part of a job: stages of your own, replicas, and how much may wait between stages.

use serde::{Deserialize, Serialize};

use crate::string_or_table::{Named, list};

/// Own stages, replicas and links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineOptions {
    /// Replicas of the parse stage. The order of rows does not depend on it. Default 1.
    pub parse_replicas: usize,
    /// Batches that may wait in front of each stage.
    pub links: Links,
    /// Stages of your own over the rows as they were read, in this order: names of the program's
    /// [`Registry`](crate::Registry). They run in training and in evaluation, since a model is to be judged on rows like
    /// those that it will see. Write `{ name = "downsample", training_only = true }` for a stage that evaluation leaves out.
    /// Default: none.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub after_read: Vec<OwnStage>,
    /// The same over parsed rows. Default: none.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub after_parse: Vec<OwnStage>,
    /// The same over batches of their final size. Default: none.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub after_batch: Vec<OwnStage>,
}

/// A stage of your own, by the name that the program's registry has it under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnStage {
    /// Its name, which is its name in plans and reports, too.
    pub name: String,
    /// Evaluation leaves it out. Default false.
    #[serde(default)]
    pub training_only: bool,
}

impl From<String> for OwnStage {
    fn from(name: String) -> Self {
        Self { name, training_only: false }
    }
}

impl Named for OwnStage {
    const EXPECTED: &'static str = "the name of a stage, or a table with `name = ...`";
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            parse_replicas: 1,
            links: Links::default(),
            after_read: Vec::new(),
            after_parse: Vec::new(),
            after_batch: Vec::new(),
        }
    }
}

/// The capacity, in batches, of the link in front of each stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Links {
    /// source → parse. Default 8.
    pub parse: usize,
    /// parse → batch. Default 8.
    pub batch: usize,
    /// batch → lookup. Default 4.
    pub lookup: usize,
    /// lookup → train (or evaluate). Default 2.
    pub train: usize,
    /// train → push. Default 2.
    pub push: usize,
}

impl Default for Links {
    fn default() -> Self {
        Self { parse: 8, batch: 8, lookup: 4, train: 2, push: 2 }
    }
}
