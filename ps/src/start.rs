//! Starts the shards of a table: all of them, or one process's share.
//!
//! The shards open on their own threads.

use std::sync::Arc;

use forebay_actors::{Fault, Host, Place};

use crate::client::TableClient;
use crate::config::TableConfig;
use crate::endpoint::Endpoint;
use crate::route::Route;
use crate::shard::Shard;
use crate::table::Layout;

/// Calls that may wait in the mailbox of one shard.
const CAPACITY: usize = 8;

/// The most shards that one table may have.
pub const MAX_SHARDS: usize = 1024;

/// Starts the shards of a table on `host`, each on a thread of its own, and returns their client.
///
/// # Errors
/// A user fault, when the configuration is wrong or `shards` is not 1 to [`MAX_SHARDS`].
pub fn start_table(host: &Host, config: TableConfig, shards: usize) -> Result<TableClient, Fault> {
    start_shards(host, config, Route::of_process(0, 1, shards))
}

/// As [`start_table`], of a table whose rows are only set and read: to score them, or to write them elsewhere. A row takes the memory of
/// its weights alone. The client has the [`config`](TableClient::config) of the whole table. It refuses pushes and pulls, which would need
/// the state of optimizers; [`peek`](TableClient::peek) reads rows.
///
/// # Errors
/// As [`start_table`].
pub fn start_read_only(host: &Host, config: TableConfig, shards: usize) -> Result<TableClient, Fault> {
    config.check()?;
    // Rows that a checkpoint has removed must be removable here. No key waits for its admission.
    let mut stored = config.weights_only();
    stored.lifetime.eviction = config.lifetime.eviction;
    stored
        .groups
        .iter_mut()
        .zip(&config.groups)
        .for_each(|(own, group)| own.lifetime.eviction = group.lifetime.eviction);
    Ok(start_shards(host, stored, Route::of_process(0, 1, shards))?.read_only(config))
}

/// Starts the shards of a table that one of several processes holds: the shards of `route`, which [`Route::of_process`] makes. The returned
/// client reaches these shards alone, and refuses the keys of others.
///
/// # Errors
/// As [`start_table`], for the shards of all processes if each had as many; also if there is no such process.
pub fn start_shards(host: &Host, config: TableConfig, route: Route) -> Result<TableClient, Fault> {
    config.check()?;
    let (name, shards, held) = (&config.name, route.shards(), route.held());
    if shards == 0 || shards > MAX_SHARDS {
        return Err(Fault::user(format!("table `{name}` was asked for {shards} shards; expected 1 to {MAX_SHARDS}")));
    }
    if held.end > shards {
        let (rank, processes) = route.process();
        return Err(Fault::user(format!(
            "table `{name}` was asked for the shards of process {rank}; expected a number below {processes}"
        )));
    }
    let layout = Arc::new(Layout::new(&config));
    let endpoints = held.clone().map(|number| {
        let (name, config) = (format!("ps{}-{}", route.name(number, 1), config.name), config.clone());
        Endpoint::Shard(host.serve(&name, Place::Own, CAPACITY, move || Shard::new(config, number)))
    });
    Ok(TableClient::new(endpoints.collect(), route, held, layout, config))
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;
    use crate::{Admission, Eviction, GroupConfig, Init, Lifetime, Optimizer, PartConfig, Storage};

    /// Rows of 4 weights, and in the group `wide` of 16, with twice as many floats of state.
    fn config() -> TableConfig {
        let adam = Optimizer::Adam { lr: 0.1.into(), beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 };
        let parts = |dim| vec![PartConfig::new("p", dim, adam, Init::Zeros)];
        let lifetime = Lifetime { admission: Some(Admission::Count(2)), eviction: None };
        let group = GroupConfig { name: "wide".into(), parts: parts(16), storage: Storage::F32, lifetime };
        TableConfig { groups: vec![group], ..TableConfig::new("t", 1, parts(4)) }
    }

    #[test]
    fn a_table_that_is_only_read_has_no_state_and_takes_no_pushes_and_no_pulls() {
        let host = Host::start("ps").unwrap();
        for config in [TableConfig { groups: Vec::new(), ..config() }, config()] {
            let table = start_read_only(&host, config.clone(), 2).unwrap();
            assert_eq!((table.config(), table.state_dim()), (&config, 0));
            let (dim, mut rows) = (table.row_dim(), Vec::new());
            block_on(table.import(&[7, 8], &vec![0.5; 2 * dim], None)).unwrap();
            block_on(table.peek(&[8, 9], &mut rows)).unwrap();
            assert_eq!((rows[0], &rows[dim..]), (0.5, &vec![0.0; dim][..]));
            for refused in [
                block_on(table.push(&[7], &vec![1.0; dim], 1)),
                block_on(table.push(&[], &[], 1)),
                block_on(table.pull(&[7], &mut rows)),
            ] {
                let said = refused.unwrap_err().to_string();
                assert!(said.contains("table `t` takes no pu") && said.contains("without the state"), "{said}");
            }
            assert_eq!(block_on(table.stats()).unwrap().rows(), 2);
        }
    }

    #[test]
    fn a_row_of_a_table_that_is_only_read_can_be_removed_if_rows_of_the_table_are_removed() {
        let host = Host::start("ps").unwrap();
        let eviction = Some(Eviction { unseen_steps: Some(1), ..Eviction::default() });
        let lifetime = Lifetime { admission: Some(Admission::Count(2)), eviction };
        let config = TableConfig { groups: Vec::new(), lifetime, ..config() };
        let table = start_read_only(&host, config, 1).unwrap();
        block_on(table.import(&[7, 8], &[0.5; 8], None)).unwrap();
        let absent = |key, count| crate::Absent { key, count, seen: 1 };
        block_on(table.import_absent_held(&[absent(8, 0), absent(9, 1)])).unwrap();
        let stats = block_on(table.stats()).unwrap();
        assert_eq!((stats.rows(), stats.shards[0].waiting), (1, 0), "no key waits");
    }
}
