//! The `[pipeline]` part of a job: how many of each, and how much may wait between them.

use serde::{Deserialize, Serialize};

/// Replicas and links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineOptions {
    /// Replicas of the parse stage. The order of rows does not depend on it. Default 1.
    pub parse_replicas: usize,
    /// Batches that may wait in front of each stage.
    pub links: Links,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self { parse_replicas: 1, links: Links::default() }
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
