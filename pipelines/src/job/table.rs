//! The `[table]` part of a job: the sparse rows, one part for each part of the model that needs them.

use forebay_models::RowPart;
use forebay_ps::{Init, Optimizer, PartConfig, Storage, TableConfig};
use serde::{Deserialize, Serialize};

/// Name of the one table of a job.
const TABLE: &str = "embedding";

/// The sparse rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableOptions {
    /// Shards, each with a thread of its own. The model does not depend on it. Default 1.
    pub shards: usize,
    /// What a weight is kept as: "f32" (the default) or "f16".
    pub storage: Storage,
    /// Optimizer of the linear part. Default FTRL-proximal with alpha = 0.05, beta = 0.001: the gradients are those of a
    /// batch's mean loss, so beta is small beside the paper's 1, which is for one row at a time.
    pub linear_optimizer: Optimizer,
    /// Optimizer of the embeddings. Default Adagrad with a learning rate of 0.05.
    pub embedding_optimizer: Optimizer,
    /// How a new embedding begins. Default uniform within ±0.01; linear weights begin at 0.
    pub embedding_init: Init,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            shards: 1,
            storage: Storage::F32,
            linear_optimizer: Optimizer::Ftrl { alpha: 0.05, beta: 1e-3, l1: 0.0, l2: 0.0 },
            embedding_optimizer: Optimizer::Adagrad { lr: 0.05, initial_accumulator: 0.0, eps: 1e-10 },
            embedding_init: Init::Uniform { scale: 0.01 },
        }
    }
}

impl TableOptions {
    /// The table whose rows consist of these parts. A part named "linear" takes the linear optimizer, any other the
    /// embedding's.
    pub fn config(&self, parts: Vec<RowPart>, seed: u64) -> TableConfig {
        let parts = parts
            .into_iter()
            .map(|part| {
                let linear = part.name == "linear";
                PartConfig {
                    optimizer: if linear { self.linear_optimizer } else { self.embedding_optimizer },
                    init: if linear { Init::Zeros } else { self.embedding_init },
                    name: part.name,
                    dim: part.dim,
                }
            })
            .collect();
        TableConfig { name: TABLE.into(), seed, parts, storage: self.storage }
    }
}
