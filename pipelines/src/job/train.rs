//! The `[train]` part of a job.

use forebay_models::DenseOptimizer;
use serde::{Deserialize, Serialize};

/// How the model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainOptions {
    /// Rows of a batch. Default 2,048.
    pub batch_rows: usize,
    /// Leave out the last batch of a window of the shuffle if it is short. Default false.
    pub drop_last: bool,
    /// Batches that may be looked up before the gradients of the oldest are applied. 0, the default, is the sequential
    /// program: the same model to the bit on every run. On a GPU, or with tables on other machines, 2 to 8 hides the
    /// way there and back.
    pub staleness: usize,
    /// Of several trainers: whether they take each step together, as one trainer with a batch of `trainers` x
    /// `batch_rows` would (synchronous SGD), or each at its own pace. Default false.
    pub sync: bool,
    /// What computes: "native" (the default) or "torch" (when built with the feature `torch`).
    pub backend: Backend,
    /// "torch": where: "cpu" (the default) or "cuda:0", "cuda:1", ...
    pub device: String,
    /// Threads of dense compute. Default 0: as many as there are cores.
    pub threads: usize,
    /// Optimizer of the dense parameters. Default Adam with a learning rate of 0.001.
    pub optimizer: DenseOptimizer,
}

/// What computes the dense part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Pure Rust, in the program itself.
    #[default]
    Native,
    /// libtorch through tch.
    Torch,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Torch => "torch",
        })
    }
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            batch_rows: 2048,
            drop_last: false,
            staleness: 0,
            sync: false,
            backend: Backend::Native,
            device: "cpu".into(),
            threads: 0,
            optimizer: DenseOptimizer::adam(1e-3),
        }
    }
}

impl TrainOptions {
    /// Threads of dense compute, with 0 resolved.
    pub fn resolved_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }
}
