//! The `[table]` section of a job.

use forebay_models::RowPart;
use forebay_ps::{Init, Optimizer, PartConfig, Storage, TableConfig};
use serde::{Deserialize, Serialize};

/// Name of the one table of a job.
const TABLE: &str = "embedding";

/// The table of embeddings and linear weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableOptions {
    /// Shards per ps process, each with its own thread. The trained model does not depend on this number.
    pub shards: usize,
    /// The number format of the weights in memory.
    pub storage: Storage,
    /// Optimizer of the linear weights. The default `beta` is smaller than the paper's 1: gradients here are of the mean loss
    /// of a batch, the paper's of one row.
    pub linear_optimizer: Optimizer,
    /// Optimizer of the embeddings. Adagrad keeps one number of state per weight, Adam two.
    pub embedding_optimizer: Optimizer,
    /// Initial values of a new embedding. Linear weights start at 0.
    pub embedding_init: Init,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            shards: 1,
            storage: Storage::F32,
            linear_optimizer: Optimizer::Ftrl { alpha: 0.1, beta: 1e-3, l1: 0.0, l2: 0.0 },
            embedding_optimizer: Optimizer::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8 },
            embedding_init: Init::Uniform { scale: 0.01 },
        }
    }
}

impl TableOptions {
    /// The configuration of a table with these row parts. The part "linear" has the linear optimizer, every other part that of
    /// the embeddings.
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
