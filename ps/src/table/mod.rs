//! A table of one shard: rows of weights and optimizer state by key. The heart of the parameter server.
//!
//! There are no locks: the shard that owns the table is the only one to call it.
//!
//! This file has construction, exports and new rows. Pulls and pushes are in `pass.rs`, imports in `import.rs`, snapshots of
//! one moment in `snapshot.rs`. What happens to keys and rows of a table with a lifetime is in `with_lifetime.rs`.

mod arena;
mod bits;
mod bloom;
mod copy_on_write;
mod export_block;
mod filtered;
mod grouped;
pub(crate) mod halves;
mod import;
mod index;
pub(crate) mod int8;
mod layout;
mod part;
mod pass;
mod read_only;
mod recent;
mod row_keys;
mod row_usages;
mod saved_rows;
mod slots;
mod snapshot;
mod with_lifetime;

use forebay_base::LrReductions;

use crate::config::{Init, PartConfig, TableConfig};
use crate::error::TableError;
use crate::lifetime::{Admission, Eviction, Lifetime};
use crate::optim::{Optimizer, Update};
use crate::stats::ShardStats;
use arena::Arena;
use bloom::{Bloom, ENTRIES, WORDS};
pub use copy_on_write::SnapshotKind;
use copy_on_write::Snapshots;
pub use export_block::ExportBlock;
use index::{Entry, Index};
pub(crate) use layout::Layout;
pub(crate) use part::Part;
use recent::Recent;
use row_usages::RowUsages;

/// The rows of one shard, owned and single-threaded.
///
/// A shard serves it; use it directly without an actor.
///
/// ```
/// # use forebay_ps::*;
/// let part = PartConfig::new("embedding", 2, Optimizer::Sgd { lr: 0.5.into(), l2: 0.0 }, Init::Zeros);
/// let mut table = Table::new(&TableConfig::new("ads", 1, vec![part]))?;
/// let mut rows = Vec::new();
/// table.pull(&[7, 9], &mut rows)?;
/// table.push(&[9], &[1.0, -1.0], 1)?;
/// table.peek(&[9, 8], &mut rows);
/// assert_eq!(rows, [-0.5, 0.5, 0.0, 0.0]);
/// # Ok::<(), TableError>(())
/// ```
pub struct Table {
    layout: Layout,
    index: Index,
    arena: Arena,
    /// One row of weights, for f16 and for new rows.
    scratch: Vec<f32>,
    updates: Vec<Update>,
    /// How far the learning rates are reduced.
    reductions: LrReductions,
    recent: Recent,
    /// Keys by row number while an export is under way.
    order: Vec<u64>,
    /// From the first snapshot on.
    snapshots: Option<Box<Snapshots>>,
    stats: ShardStats,
    admission: Option<Admission>,
    /// With a lifetime.
    usages: Option<Box<RowUsages>>,
    /// With admission by count: a row of one weight for each key that is counted, or one for each block of a filter.
    waiting: Option<Box<Table>>,
    /// With admission by count in a filter, whose blocks are in `waiting`.
    bloom: Option<Box<Bloom>>,
    /// Rows to remove, kept for the next push.
    leaving: Vec<u32>,
    /// Keys of rows that this push has removed, which are still in the index.
    removed: Vec<u64>,
    /// A row that is not in the table; in a table with groups a buffer for rows of one group.
    blank: Vec<f32>,
    /// A table for each group, if there are several: then the outer table holds no row itself.
    groups: Vec<Table>,
}

impl Table {
    /// An empty table.
    pub fn new(config: &TableConfig) -> Result<Self, TableError> {
        config.check()?;
        let (layout, groups) = (Layout::new(config), Self::groups_of(config)?);
        let lifetime = if groups.is_empty() { config.lifetime } else { Lifetime::default() };
        let Some(index) = Index::new() else {
            return Err(TableError::Full { table: layout.table, rows: 0, what: NO_MEMORY });
        };
        Ok(Self {
            arena: Arena::new(layout.stride),
            scratch: vec![0.0; layout.row_dim],
            updates: Vec::new(),
            reductions: LrReductions::default(),
            recent: Recent::default(),
            order: Vec::new(),
            snapshots: None,
            stats: ShardStats::default(),
            admission: lifetime.admission,
            usages: (!lifetime.is_unlimited()).then(|| Box::new(RowUsages::new(lifetime.eviction.unwrap_or_default()))),
            waiting: Self::of_counts(&TableConfig { lifetime, ..config.clone() })?.map(Box::new),
            bloom: match lifetime.admission {
                Some(Admission::Bloom(rules)) => Some(Box::new(Bloom::new(rules, layout.seed))),
                _ => None,
            },
            leaving: Vec::new(),
            removed: Vec::new(),
            blank: vec![0.0; layout.stride],
            layout,
            index,
            groups,
        })
    }

    /// The table of the keys that wait for their admission, which live as long as rows do; or of the blocks of a filter, which stay.
    fn of_counts(config: &TableConfig) -> Result<Option<Self>, TableError> {
        let (dim, eviction) = match config.lifetime.admission {
            Some(Admission::Count(_)) => {
                let rules =
                    config.lifetime.eviction.map(|rules| Eviction { half_life: None, min_score: None, ..rules });
                (1, rules.filter(|rules| *rules != Eviction::default()))
            }
            Some(Admission::Bloom(_)) => (WORDS, None),
            _ => return Ok(None),
        };
        let (optimizer, init) = (Optimizer::Sgd { lr: 0.0.into(), l2: 0.0 }, Init::Zeros);
        let parts = vec![PartConfig::new("count", dim, optimizer, init)];
        let lifetime = Lifetime { admission: None, eviction };
        let mut table = Self::new(&TableConfig { lifetime, ..TableConfig::new(&config.name, config.seed, parts) })?;
        if dim == 1 {
            table.usages.get_or_insert_with(|| Box::new(RowUsages::new(Eviction::default())));
        }
        Ok(Some(table))
    }

    /// The number of saved entries of keys without a row: one count for each, or the entries of a filter.
    fn absent(&self) -> usize {
        let each = if self.bloom.is_some() { ENTRIES } else { 1 };
        self.waiting.as_ref().map_or(0, |waiting| waiting.rows() * each)
    }

    /// Weights per row.
    pub fn row_dim(&self) -> usize {
        self.layout.row_dim
    }

    /// Floats of optimizer state per row.
    pub fn state_dim(&self) -> usize {
        self.layout.state_dim
    }

    /// Rows in the table.
    pub fn rows(&self) -> usize {
        if self.is_grouped() {
            return self.groups.iter().map(Table::rows).sum();
        }
        self.usages.as_ref().map_or(self.arena.rows(), |usages| usages.rows())
    }

    /// Up to `at_most` rows from row number `from` on; an empty block means that there are no more.
    ///
    /// Rows are numbered in the order in which they came (in a table with a lifetime: in no order), so paging through them gives each row
    /// exactly once, new ones last. The first page lists the keys by row (8 bytes per row, a scan of the index, about 20 ns per row), and
    /// the list is dropped with the page that reaches the end. In a table with groups, a page has rows of one group, and no row may be
    /// added or removed between the first page and the last.
    pub fn export(&mut self, from: usize, at_most: usize) -> ExportBlock {
        if self.is_grouped() {
            return self.export_grouped(from, at_most);
        }
        if self.usages.is_some() {
            return self.export_with_usages(from, at_most);
        }
        let rows = self.arena.rows();
        let to = from.saturating_add(at_most).min(rows);
        if from >= to {
            self.order = Vec::new();
            return ExportBlock::default();
        }
        if self.order.len() < to {
            self.order.clear();
            self.order.resize(rows, 0);
            for (key, row) in self.index.iter() {
                self.order[row as usize] = key;
            }
        }
        let (dim, words) = (self.layout.row_dim, self.layout.weight_words);
        let mut block = ExportBlock {
            keys: self.order[from..to].to_vec(),
            weights: vec![0.0; (to - from) * dim],
            state: Vec::with_capacity((to - from) * self.layout.state_dim),
            usages: Vec::new(),
        };
        for (row, out) in (from..to).zip(block.weights.chunks_exact_mut(dim)) {
            let row = self.arena.row(row as u32);
            self.layout.read_weights(row, out);
            block.state.extend_from_slice(&row[words..][..self.layout.state_dim]);
        }
        if to == rows {
            self.order = Vec::new();
        }
        block
    }

    fn export_with_usages(&mut self, from: usize, at_most: usize) -> ExportBlock {
        let Self { usages: Some(usages), layout, arena, .. } = self else { return ExportBlock::default() };
        let (mut rows, mut block) = (Vec::new(), ExportBlock::default());
        usages.alive().list(usages.alive().nth(from), at_most, &mut rows);
        block.weights.resize(rows.len() * layout.row_dim, 0.0);
        for (row, out) in rows.iter().zip(block.weights.chunks_exact_mut(layout.row_dim)) {
            let data = arena.row(*row);
            layout.read_weights(data, out);
            block.state.extend_from_slice(&data[layout.weight_words..][..layout.state_dim]);
            block.keys.push(usages.key(*row));
            block.usages.push(usages.usage(*row));
        }
        block
    }

    /// Bytes taken from the system.
    fn bytes(&self) -> usize {
        let snapshots = self.snapshots.as_ref().map_or(0, |snapshots| snapshots.bytes());
        let usages = self.usages.as_ref().map_or(0, |usages| usages.bytes());
        let waiting = self.waiting.as_ref().map_or(0, |waiting| waiting.bytes());
        let order = self.order.capacity() * 8;
        self.index.bytes() + self.arena.bytes() + order + self.recent.bytes() + snapshots + usages + waiting
    }

    /// The counts of the table.
    pub fn stats(&self) -> ShardStats {
        if self.is_grouped() {
            return self.stats_grouped();
        }
        ShardStats {
            rows: self.rows() as u64,
            waiting: match (&self.bloom, &self.waiting) {
                (Some(bloom), _) => bloom.keys(),
                (None, waiting) => waiting.as_ref().map_or(0, |waiting| waiting.rows() as u64),
            },
            bytes: self.bytes() as u64,
            index_slots: self.index.capacity() as u64,
            load_factor: self.index.load(),
            ..self.stats.clone()
        }
    }

    /// The row of `key`, which is inserted when it is not there.
    #[inline(always)]
    fn row_of(&mut self, hash: u64, key: u64) -> Result<u32, TableError> {
        match self.index.entry(hash, key) {
            Entry::Found(row) => Ok(row),
            Entry::Vacant(_) => self.insert(hash, key),
        }
    }

    #[inline(never)]
    fn insert(&mut self, hash: u64, key: u64) -> Result<u32, TableError> {
        let row = self.add_row(hash, key)?;
        self.stats.saturated += self.layout.init_row(key, self.arena.row_mut(row), &mut self.scratch);
        Ok(row)
    }

    /// Adds a row of zeros for `key`, which has none.
    fn add_row(&mut self, hash: u64, key: u64) -> Result<u32, TableError> {
        self.check_row_numbers()?;
        if !self.arena.make_room() || !self.index.grow() {
            return Err(self.full(NO_MEMORY));
        }
        match self.index.entry(hash, key) {
            Entry::Found(row) => Ok(row),
            Entry::Vacant(vacant) => {
                let row = self.arena.add();
                self.index.fill(vacant, row);
                if let Some(snapshots) = &mut self.snapshots {
                    snapshots.inserted(row, key);
                }
                self.count_inserted();
                Ok(row)
            }
        }
    }

    fn check_row_numbers(&self) -> Result<(), TableError> {
        if self.arena.rows() < u32::MAX as usize - 32 {
            return Ok(());
        }
        Err(self.full("row numbers are of 32 bits; use more shards"))
    }

    fn count_inserted(&mut self) {
        self.stats.inserted += 1;
        self.stats.high_water = self.stats.high_water.max(self.rows() as u64);
    }

    /// To be called before these rows change.
    #[inline(always)]
    fn before_changes(&mut self, rows: &[u32]) {
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.before_changes(rows, &self.arena, self.usages.as_deref());
        }
    }

    fn full(&self, what: &'static str) -> TableError {
        TableError::Full { table: self.layout.table.clone(), rows: self.arena.rows(), what }
    }
}

const NO_MEMORY: &str = "the system has no memory left; use more machines, fewer weights per row, or f16 storage";
