//! What a table is: its name, its seed, and the parts of its rows, each with an optimizer and an initialiser.
//!
//! `lifetime.rs` says which keys get a row and which rows are removed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::TableError;
use crate::groups::MOST_GROUPS;
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
    /// Further groups of keys, each with rows of its own kind, at most [`MOST_GROUPS`](crate::MOST_GROUPS). Empty: all keys have rows of
    /// `parts`. Otherwise the highest byte of a key is the number of its group ([`group_of`](crate::group_of)): 0 for rows of `parts`,
    /// and from 1 on the groups of this list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
}

/// A group of keys whose rows have parts, a storage and a lifetime of their own.
///
/// The parts have the names of the table's parts, in the same order, with widths of their own. Rows that are pulled or pushed are as wide
/// as in the widest group: a narrower part ends in zeros.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// Names the group in faults, reports and files.
    pub name: String,
    /// What a row consists of.
    pub parts: Vec<PartConfig>,
    /// How weights are kept, default `f32`.
    #[serde(default)]
    pub storage: Storage,
    /// Which keys get a row, and which rows are removed.
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
    /// A weight beyond ±65504 is kept as ±65504 and counted in the statistics of the shard, because an error would come after some rows of
    /// the batch have changed. An update below 1/4096 of its weight is lost, so late in training a small learning rate has no effect: f16
    /// suits serving and short runs. State stays f32, because sums of squares leave the range of f16 within a few steps.
    F16,
    /// One byte per weight, and four for the scale of each part of a row; a part of one weight (the linear one) is kept exactly.
    ///
    /// A weight is off by less than 1/63 of the largest magnitude of its part. Updates use stochastic rounding, so small updates count
    /// on average. The randomness follows from the weight itself, so the bits depend on the row alone. Arithmetic and state are f32.
    Int8,
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        })
    }
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

impl PartConfig {
    /// A part.
    pub fn new(name: &str, dim: usize, optimizer: Optimizer, init: Init) -> Self {
        Self { name: name.into(), dim, optimizer, init }
    }
}

impl TableConfig {
    /// A table of f32 without groups, where every key gets a row and keeps it.
    pub fn new(name: &str, seed: u64, parts: Vec<PartConfig>) -> Self {
        let (lifetime, groups) = (Lifetime::default(), Vec::new());
        Self { name: name.into(), seed, parts, storage: Storage::F32, lifetime, groups }
    }

    /// Weights per row, over all parts; with several groups, in the widest group.
    pub fn row_dim(&self) -> usize {
        let of = |parts: &[PartConfig]| parts.iter().map(|p| p.dim).sum();
        self.groups.iter().map(|group| of(&group.parts)).fold(of(&self.parts), usize::max)
    }

    /// Floats of optimizer state per row, over all parts; with several groups, the most.
    pub fn state_dim(&self) -> usize {
        let of = |parts: &[PartConfig]| parts.iter().map(|p| p.dim * p.optimizer.state_per_weight()).sum();
        self.groups.iter().map(|group| of(&group.parts)).fold(of(&self.parts), usize::max)
    }

    /// The parts of rows that are pulled or pushed: the parts of the widest group.
    pub fn widest_parts(&self) -> &[PartConfig] {
        let width = |parts: &[PartConfig]| parts.iter().map(|p| p.dim).sum::<usize>();
        let all = self.groups.iter().map(|group| &group.parts[..]);
        all.fold(&self.parts[..], |widest, other| if width(other) > width(widest) { other } else { widest })
    }

    /// Whether the keys of any group have to be admitted, or rows are removed.
    pub fn has_lifetime(&self) -> bool {
        self.lifetimes().any(|lifetime| !lifetime.is_unlimited())
    }

    /// Whether rows of any group are removed.
    pub fn has_eviction(&self) -> bool {
        self.lifetimes().any(|lifetime| lifetime.eviction.is_some())
    }

    fn lifetimes(&self) -> impl Iterator<Item = &Lifetime> {
        std::iter::once(&self.lifetime).chain(self.groups.iter().map(|group| &group.lifetime))
    }

    /// A table without groups, with the rows of the widest group.
    #[must_use]
    pub fn widest(&self) -> TableConfig {
        TableConfig { parts: self.widest_parts().to_vec(), groups: Vec::new(), ..self.clone() }
    }

    /// The names and widths of the parts of all groups; the names of later groups are `group.part`.
    pub fn part_widths(&self) -> Vec<(String, usize)> {
        let first = self.parts.iter().map(|part| (part.name.clone(), part.dim));
        let others = self
            .groups
            .iter()
            .flat_map(|group| group.parts.iter().map(move |part| (format!("{}.{}", group.name, part.name), part.dim)));
        first.chain(others).collect()
    }

    /// This table with the lifetimes of another one of the same groups.
    #[must_use]
    pub fn with_lifetimes_of(mut self, other: &TableConfig) -> Self {
        self.lifetime = other.lifetime;
        self.groups.iter_mut().zip(&other.groups).for_each(|(group, other)| group.lifetime = other.lifetime);
        self
    }

    /// The same rows without the state of optimizers and without lifetimes: for tables whose rows are only set and read.
    #[must_use]
    pub fn weights_only(&self) -> TableConfig {
        let mut config = TableConfig { lifetime: Lifetime::default(), ..self.clone() };
        config.groups.iter_mut().for_each(|group| group.lifetime = Lifetime::default());
        let groups = config.groups.iter_mut().flat_map(|group| &mut group.parts);
        for part in config.parts.iter_mut().chain(groups) {
            part.optimizer = Optimizer::Sgd { lr: 1.0.into(), l2: 0.0 };
        }
        config
    }

    /// Returns a configuration without groups for each group, in the order of the groups' numbers. A table without groups gives its own
    /// configuration alone.
    pub fn of_groups(&self) -> Vec<TableConfig> {
        let first = TableConfig { groups: Vec::new(), ..self.clone() };
        let others = self.groups.iter().map(|group| TableConfig {
            name: group.name.clone(),
            seed: self.seed,
            parts: group.parts.clone(),
            storage: group.storage,
            lifetime: group.lifetime,
            groups: Vec::new(),
        });
        std::iter::once(first).chain(others).collect()
    }

    fn check_groups(&self) -> Result<(), TableError> {
        let bad = |what: String| Err(TableError::Config { table: self.name.clone(), what });
        if self.groups.len() > MOST_GROUPS {
            return bad(format!("{} groups besides the first; expected at most {MOST_GROUPS}", self.groups.len()));
        }
        let names = |parts: &[PartConfig]| parts.iter().map(|part| part.name.clone()).collect::<Vec<_>>();
        for (i, group) in self.groups.iter().enumerate() {
            let name = &group.name;
            if *name == self.name || self.groups[..i].iter().any(|other| other.name == *name) {
                return bad(format!("two groups are named `{name}`; give each a name of its own"));
            }
            let (found, expected) = (names(&group.parts), names(&self.parts));
            // Only the last part may have another width or be missing: rows that travel are padded at their end.
            if found != expected && Some(&found[..]) != expected.split_last().map(|(_, others)| others) {
                return bad(format!(
                    "group `{name}` has the parts {found:?}; expected {expected:?}, or these without the last"
                ));
            }
            let fixed = self.parts.len().saturating_sub(1);
            let all = group.parts.iter().zip(&self.parts).take(fixed);
            if let Some((part, other)) = all.rev().find(|(part, other)| part.dim != other.dim) {
                let (part, dim, other) = (&part.name, part.dim, other.dim);
                return bad(format!(
                    "part `{part}` of group `{name}` has dim {dim}; expected {other}, as in `{}`",
                    self.name
                ));
            }
        }
        self.of_groups().iter().skip(1).try_for_each(TableConfig::check)
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
        if self.groups.is_empty() { Ok(()) } else { self.check_groups() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lifetime::Admission;

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
            Optimizer::Adagrad { lr: 0.01.into(), initial_accumulator: 0.0, eps: 1e-10, l2: 0.0 }
        );
        assert_eq!(
            config.parts[2].optimizer,
            Optimizer::Adam { lr: 0.5.into(), beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 }
        );
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
        assert!(spoil(&|c| c.parts[0].optimizer = Optimizer::Sgd { lr: f64::INFINITY.into(), l2: 0.0 }).contains("lr"));
    }

    proptest! {
        #[test]
        fn every_finite_number_reads_back(
            number in any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |number| number.is_finite()),
            small in any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |number| number.is_finite()),
        ) {
            let optimizer = Optimizer::Sgd { lr: number.into(), l2: small };
            let part = PartConfig::new("p", 1, optimizer, Init::Normal { std: small });
            let mut config = TableConfig::new("t", 0, vec![part]);
            config.lifetime.admission = Some(Admission::Probability(number));
            let json = serde_json::to_string(&config).unwrap();
            prop_assert_eq!(&read(&json).unwrap(), &config);
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(serde_json::from_value::<TableConfig>(value).unwrap(), config);
        }
    }
}
