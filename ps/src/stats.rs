//! What the shards of a table hold and have done.

use forebay_actors::{counted, size};
use serde::{Deserialize, Serialize};

/// One shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardStats {
    /// Rows held.
    pub rows: u64,
    /// Bytes taken from the system for index and rows.
    pub bytes: u64,
    /// Slots of the index (of both arrays while it grows).
    pub index_slots: u64,
    /// Keys per slot of the index.
    pub load_factor: f64,
    /// Keys pulled (peeks are not counted).
    pub pulls: u64,
    /// Keys pulled that had no row.
    #[serde(default)]
    pub missed: u64,
    /// Keys pushed.
    pub pushes: u64,
    /// Rows made for keys that had none, imports included.
    pub inserted: u64,
    /// Keys pushed that have no row and were not admitted.
    #[serde(default)]
    pub refused: u64,
    /// Rows removed.
    #[serde(default)]
    pub evicted: u64,
    /// Keys without a row whose pushes are counted.
    #[serde(default)]
    pub waiting: u64,
    /// The most rows ever held.
    pub high_water: u64,
    /// Weights that f16 storage cut short to ±65504.
    pub saturated: u64,
    /// Push ids held: of series that are not acknowledged.
    pub push_ids: u64,
    /// What each group holds, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupStats>,
}

/// What a group of keys holds, in one shard or in all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupStats {
    /// Name of the group; for the first group the name of the table.
    pub name: String,
    /// Weights per row.
    pub row_dim: u64,
    /// Rows held.
    pub rows: u64,
    /// Bytes taken from the system for index and rows.
    pub bytes: u64,
    /// Keys pulled (peeks are not counted).
    #[serde(default)]
    pub pulls: u64,
    /// Keys pulled that had no row.
    #[serde(default)]
    pub missed: u64,
    /// Rows made for keys that had none, imports included.
    #[serde(default)]
    pub inserted: u64,
    /// Keys pushed that have no row and were not admitted.
    #[serde(default)]
    pub refused: u64,
    /// Rows removed.
    #[serde(default)]
    pub evicted: u64,
    /// Keys without a row whose pushes are counted.
    #[serde(default)]
    pub waiting: u64,
}

impl GroupStats {
    /// Adds what another shard holds of the group.
    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.pulls += other.pulls;
        self.missed += other.missed;
        self.inserted += other.inserted;
        self.refused += other.refused;
        self.evicted += other.evicted;
        self.waiting += other.waiting;
    }

    /// The share of the keys pulled that had a row; none if no key was pulled.
    pub fn hit_share(&self) -> Option<f64> {
        (self.pulls > 0).then(|| 1.0 - self.missed as f64 / self.pulls as f64)
    }
}

impl ShardStats {
    /// The same counts as a group of this name, with rows of `row_dim` weights.
    pub(crate) fn as_group(&self, name: String, row_dim: u64) -> GroupStats {
        let Self { rows, bytes, pulls, missed, inserted, refused, evicted, waiting, .. } = *self;
        GroupStats { name, row_dim, rows, bytes, pulls, missed, inserted, refused, evicted, waiting }
    }
}

/// All shards of one table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStats {
    /// Name of the table.
    pub table: String,
    /// One per shard, in their order.
    pub shards: Vec<ShardStats>,
}

impl TableStats {
    /// Rows of all shards.
    pub fn rows(&self) -> u64 {
        self.shards.iter().map(|s| s.rows).sum()
    }

    /// Bytes of all shards.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.bytes).sum()
    }

    /// Bytes per row; 0 for an empty table.
    pub fn bytes_per_key(&self) -> f64 {
        if self.rows() == 0 { 0.0 } else { self.bytes() as f64 / self.rows() as f64 }
    }

    /// Keys of all shards that were pushed and not admitted.
    pub fn refused(&self) -> u64 {
        self.shards.iter().map(|s| s.refused).sum()
    }

    /// Rows removed from all shards.
    pub fn evicted(&self) -> u64 {
        self.shards.iter().map(|s| s.evicted).sum()
    }

    /// Push ids that all shards hold.
    pub fn push_ids(&self) -> u64 {
        self.shards.iter().map(|s| s.push_ids).sum()
    }

    /// What each group holds in all shards; empty if the table has one group.
    pub fn groups(&self) -> Vec<GroupStats> {
        let mut all: Vec<GroupStats> = Vec::new();
        for group in self.shards.iter().flat_map(|shard| &shard.groups) {
            match all.iter_mut().find(|other| other.name == group.name) {
                Some(other) => other.add(group),
                None => all.push(group.clone()),
            }
        }
        all
    }

    /// [`groups`](Self::groups), or the one group of the table; its rows have `row_dim` weights.
    pub fn all_groups(&self, row_dim: usize) -> Vec<GroupStats> {
        let groups = self.groups();
        if !groups.is_empty() || self.shards.is_empty() {
            return groups;
        }
        let mut all = GroupStats { name: self.table.clone(), row_dim: row_dim as u64, ..GroupStats::default() };
        self.shards.iter().for_each(|shard| all.add(&shard.as_group(String::new(), 0)));
        vec![all]
    }

    /// Weights of all shards that f16 storage cut short.
    pub fn saturated(&self) -> u64 {
        self.shards.iter().map(|s| s.saturated).sum()
    }
}

impl std::fmt::Display for TableStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (shards, rows) = (counted(self.shards.len(), "shard"), counted(self.rows(), "row"));
        let (bytes, per_key) = (size(self.bytes()), self.bytes_per_key());
        write!(f, "table `{}`: {rows} in {shards}, {bytes}, {per_key:.0} bytes per row", self.table)?;
        for (n, what, then) in [
            (self.refused(), "key", "not admitted"),
            (self.evicted(), "row", "removed"),
            (self.saturated(), "weight", "cut short to ±65504"),
            (self.push_ids(), "push id", "held"),
        ] {
            if n > 0 {
                write!(f, ", {} {then}", counted(n, what))?;
            }
        }
        for GroupStats { name, row_dim, rows, bytes, .. } in self.groups() {
            let (rows, weights) = (counted(rows, "row"), counted(row_dim, "weight"));
            write!(f, "; `{name}`: {rows} of {weights}, {}", size(bytes))?;
        }
        Ok(())
    }
}
