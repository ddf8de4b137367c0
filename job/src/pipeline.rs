//! The `[pipeline]` section of a job.

use forebay_actors::Capacity;
use serde::{Deserialize, Serialize};

use super::{ByteSize, Knob};
use crate::string_or_table::{Named, list};

/// Custom stages, replicas of stages, and the capacities of links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineOptions {
    /// Cores that the run may use in each process. "auto": the cores that affinity and cgroup allow; `forebay launch` gives each process
    /// its share. All other "auto" fields follow from this number. A number is 1 to 1024.
    pub cores: Knob,
    /// The memory limit of the process for "auto", for instance `8GiB`: "auto" adds no replica that would need more. Default: the free
    /// memory of the cgroup and the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Replicas of the parse stage. "auto": a training begins with one, and changes the number during the run. The order of rows does not
    /// depend on it. A number is 1 to 1024.
    pub parse_replicas: Knob,
    /// Replicas of the batch stage. "auto": as for the parse stage; on one or two cores one. The batches and their order do not depend on
    /// it. Each replica holds the rows of a window (`data.shuffle_rows`) and the batches made of them. A number is 1 to 1024.
    pub batch_replicas: Knob,
    /// Capacity of the link in front of each stage.
    pub links: Links,
    /// Custom stages over rows as they are read, such as row filters, in this order. An entry is a name that your program registers
    /// ([how](in-rust.md#a-row-filter-or-a-stage-of-your-own)), or a table. They run in training, evaluation and prediction.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub after_read: Vec<OwnStage>,
    /// Custom stages over parsed rows.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub after_parse: Vec<OwnStage>,
    /// Custom stages over batches of their final size.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub after_batch: Vec<OwnStage>,
}

/// A custom stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnStage {
    /// Name of the stage in the registry, in plans and in reports.
    pub name: String,
    /// Leave the stage out of evaluation, prediction and serving.
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
            cores: Knob::AUTO,
            memory: None,
            parse_replicas: Knob::AUTO,
            batch_replicas: Knob::AUTO,
            links: Links::default(),
            after_read: Vec::new(),
            after_parse: Vec::new(),
            after_batch: Vec::new(),
        }
    }
}

/// The capacity of the link in front of each stage: a number of batches, and bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Links {
    /// Batches that may wait between the source and the parse stage. From 1 to 65536.
    pub parse: usize,
    /// Batches that may wait between the parse stage and the batch stage. From 1 to 65536.
    pub batch: usize,
    /// Batches that may wait between the batch stage and the lookup stage. From 1 to 65536.
    pub lookup: usize,
    /// Batches that may wait between the lookup stage and the train (or evaluate) stage. From 1 to 65536.
    pub train: usize,
    /// Batches that may wait between the train stage and the push stage. From 1 to 65536.
    pub push: usize,
    /// Bytes that may wait in each of these links. A larger batch waits alone.
    pub bytes: ByteSize,
}

impl Links {
    /// The link in front of the parse stage.
    pub fn to_parse(&self) -> Capacity {
        self.capacity(self.parse)
    }

    /// The link in front of the batch stage.
    pub fn to_batch(&self) -> Capacity {
        self.capacity(self.batch)
    }

    /// The link in front of the lookup stage.
    pub fn to_lookup(&self) -> Capacity {
        self.capacity(self.lookup)
    }

    /// The link in front of the train (or evaluate) stage.
    pub fn to_train(&self) -> Capacity {
        self.capacity(self.train)
    }

    /// The link in front of the push stage.
    pub fn to_push(&self) -> Capacity {
        self.capacity(self.push)
    }

    fn capacity(&self, batches: usize) -> Capacity {
        Capacity::items(batches).bytes(self.bytes.0)
    }
}

impl Default for Links {
    fn default() -> Self {
        Self { parse: 8, batch: 8, lookup: 4, train: 2, push: 2, bytes: ByteSize(256 << 20) }
    }
}
