//! The memory of the tables at the end of a run: the sum over all tables, each with its own rows.

use forebay_ps::TableConfig;

use super::assumption::{Assumption, count};
use super::profile::MeasuredTable;

/// The sums over all tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TableSums {
    /// Rows.
    pub(super) keys: f64,
    /// Bytes of memory.
    pub(super) bytes: f64,
    pub(super) weights: f64,
    /// Floats of optimizer state.
    pub(super) state: f64,
}

/// The tables of a model when they have `keys` rows together, or as many as their caps allow. Each table has the share of all rows that it
/// had in the measured run. `given`: the user gave the rows, so caps change nothing.
pub(super) fn sums(
    config: &TableConfig,
    measured: &[MeasuredTable],
    keys: f64,
    given: bool,
    assumptions: &mut Vec<Assumption>,
) -> TableSums {
    let tables = config.of_groups();
    let rows_of =
        |table: &TableConfig| measured.iter().find(|one| one.name == table.name).map_or(0, |one| one.rows) as f64;
    let all: f64 = tables.iter().map(rows_of).sum();
    if tables.len() > 1 {
        let what = match all > 0.0 {
            true => "each table has the share of all keys that it had in the measured run",
            false => "the tables have as many keys each: the report does not say how many each had",
        };
        assumptions.push(Assumption { what: what.into(), change: "--profile".into() });
    }
    let mut sums = TableSums::default();
    for table in &tables {
        let share = if all > 0.0 { rows_of(table) / all } else { 1.0 / tables.len() as f64 };
        let cap = table.lifetime.eviction.and_then(|rules| rules.max_rows).filter(|_| !given).map(|cap| cap as f64);
        let mut rows = share * keys;
        if let Some(cap) = cap.filter(|cap| rows > *cap) {
            rows = cap;
            let (name, change) = match tables.len() {
                1 => ("the table".to_owned(), "table.eviction".to_owned()),
                _ if table.name == config.name => (format!("the table `{}`", table.name), "table.eviction".to_owned()),
                _ => (format!("the table `{}`", table.name), format!("tables.{}.eviction", table.name)),
            };
            assumptions.push(Assumption { what: format!("{name} is capped at {} rows", count(cap)), change });
        }
        sums.keys += rows;
        sums.bytes += rows * table.most_bytes_per_row() as f64;
        sums.weights += rows * table.row_dim() as f64;
        sums.state += rows * table.state_dim() as f64;
    }
    sums
}
