//! What a table is: its name, its seed, and the parts of its rows, each with an optimizer and an initialiser.
//!
//! Which keys get a row and which rows go again stands in `lifetime.rs`.

use serde::{Deserialize, Serialize};

use crate::error::TableError;
use crate::lifetime::Lifetime;
use crate::optim::Optimizer;

/// A sparse table: rows of [`row_dim`](TableConfig::row_dim) weights, one per key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableConfig {
    /// Names the table in faults, reports and files. Part of the seed of every new row.
    pub name: String,
    /// Seed of new rows, default 0.
    #[serde(default)]
    pub seed: u64,
    /// What a row consists of, in this order; at least one part.
    pub parts: Vec<PartConfig>,
    /// How weights are kept, default `f32`.
    #[serde(default)]
    pub storage: Storage,
    /// Which keys get a row, and which rows are removed. By default every key gets one and keeps it.
    #[serde(default, skip_serializing_if = "Lifetime::is_unlimited")]
    pub lifetime: Lifetime,
}

/// A part of every row of a table, with an optimizer of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartConfig {
    /// Names the part, for instance `linear` or `embedding`. Part of the seed of every new row.
    pub name: String,
    /// Weights of the part, at least 1.
    pub dim: usize,
    /// How a gradient changes the weights.
    pub optimizer: Optimizer,
    /// Weights of a new row, default zeros.
    #[serde(default)]
    pub init: Init,
}

/// How the weights of a row are kept. Optimizer state is f32 always (see [`Storage::F16`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// Four bytes per weight, exact.
    #[default]
    F32,
    /// Two bytes per weight, rounded to nearest after each update; arithmetic is f32.
    ///
    /// A weight beyond ±65504 is kept as ±65504 and counted
    /// ([`ShardStats::saturated`](crate::ShardStats::saturated)): an error would come after some rows of the batch
    /// changed already. An update of less than 1/4096 of its weight is rounded away, so late in training a small
    /// learning rate stands still: f16 suits serving and short runs. State stays f32 since sums of squares leave the
    /// range of f16 within a few steps.
    F16,
}

/// Weights of a new row. They depend on (seed, table, part, key) alone: not on the order in which keys arrive, nor on
/// the number of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Init {
    /// All zeros.
    #[default]
    Zeros,
    /// Uniform in [-scale, scale).
    Uniform {
        /// Half the width, default 0.01.
        #[serde(default = "defaults::scale")]
        scale: f32,
    },
    /// Normal around zero.
    Normal {
        /// Standard deviation, default 0.01.
        #[serde(default = "defaults::scale")]
        std: f32,
    },
}

mod defaults {
    pub(super) fn scale() -> f32 {
        0.01
    }
}

/// The largest row a table takes, in weights.
pub const MAX_ROW_DIM: usize = 1 << 16;

impl TableConfig {
    /// Weights per row, over all parts.
    pub fn row_dim(&self) -> usize {
        self.parts.iter().map(|p| p.dim).sum()
    }

    /// Floats of optimizer state per row, over all parts.
    pub fn state_dim(&self) -> usize {
        self.parts.iter().map(|p| p.dim * p.optimizer.state_per_weight()).sum()
    }

    /// Checks every number; the error names the field.
    pub fn check(&self) -> Result<(), TableError> {
        let bad = |what: String| Err(TableError::Config { table: self.name.clone(), what });
        if self.parts.is_empty() {
            return bad("no parts were given; a row needs at least one".into());
        }
        for (i, part) in self.parts.iter().enumerate() {
            let name = &part.name;
            if self.parts[..i].iter().any(|p| p.name == *name) {
                return bad(format!("two parts are named `{name}`; give each a name of its own"));
            }
            if part.dim == 0 || part.dim > MAX_ROW_DIM {
                return bad(format!("part `{name}` has dim {}; expected 1 to {MAX_ROW_DIM}", part.dim));
            }
            if let Err(what) = part.optimizer.check() {
                return bad(format!("part `{name}`: {what}"));
            }
            if let Init::Uniform { scale: v } | Init::Normal { std: v } = part.init
                && !(v.is_finite() && v >= 0.0)
            {
                return bad(format!(
                    "part `{name}` is initialised with scale {v}; expected a finite number, at least 0"
                ));
            }
        }
        let dim = self.parts.iter().fold(0usize, |sum, p| sum.saturating_add(p.dim));
        if dim > MAX_ROW_DIM {
            return bad(format!("its parts add up to {dim} weights per row; at most {MAX_ROW_DIM} fit"));
        }
        if let Err(what) = self.lifetime.check() {
            return bad(what);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<TableConfig, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn defaults_are_pytorchs() {
        let config = read(
            r#"{"name": "t", "parts": [
                {"name": "wide", "dim": 1, "optimizer": {"kind": "ftrl"}},
                {"name": "deep", "dim": 8, "optimizer": {"kind": "adagrad"}, "init": {"kind": "normal"}},
                {"name": "a", "dim": 8, "optimizer": {"kind": "adam", "lr": 0.5}, "init": {"kind": "uniform", "scale": 1}}
            ]}"#,
        )
        .unwrap();
        assert_eq!((config.seed, config.storage), (0, Storage::F32));
        assert_eq!(
            config.parts[1].optimizer,
            Optimizer::Adagrad { lr: 0.01.into(), initial_accumulator: 0.0, eps: 1e-10 }
        );
        assert_eq!(config.parts[2].optimizer, Optimizer::Adam { lr: 0.5.into(), beta1: 0.9, beta2: 0.999, eps: 1e-8 });
        assert_eq!(config.parts[0].init, Init::Zeros);
        assert_eq!(config.parts[1].init, Init::Normal { std: 0.01 });
        assert_eq!((config.row_dim(), config.state_dim()), (17, 2 + 8 + 16));
        config.check().unwrap();
        let again = read(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn unknown_fields_are_refused() {
        for json in [
            r#"{"name": "t", "parts": [], "shard": 1}"#,
            r#"{"name": "t", "parts": [{"name": "p", "dim": 1, "optimizer": {"kind": "sgd", "learning_rate": 1}}]}"#,
            r#"{"name": "t", "parts": [{"name": "p", "dims": 1, "dim": 1, "optimizer": {"kind": "sgd"}}]}"#,
            r#"{"name": "t", "parts": [{"name": "p", "dim": 1, "optimizer": {"kind": "sgd"}, "init": {"kind": "normal", "scale": 1}}]}"#,
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{error}");
        }
    }

    #[test]
    fn check_names_what_is_wrong() {
        let good = read(r#"{"name": "t", "parts": [{"name": "p", "dim": 1, "optimizer": {"kind": "sgd"}}]}"#).unwrap();
        good.check().unwrap();
        let spoil = |f: &dyn Fn(&mut TableConfig)| {
            let mut config = good.clone();
            f(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(spoil(&|c| c.parts.clear()).contains("no parts"));
        assert!(spoil(&|c| c.parts[0].dim = 0).contains("dim 0"));
        assert!(spoil(&|c| c.parts[0].dim = usize::MAX).contains("dim"));
        assert!(spoil(&|c| c.parts.push(c.parts[0].clone())).contains("two parts"));
        assert!(spoil(&|c| c.parts[0].init = Init::Uniform { scale: f32::NAN }).contains("NaN"));
        assert!(spoil(&|c| c.parts[0].optimizer = Optimizer::Sgd { lr: f64::INFINITY.into() }).contains("lr"));
    }
}
