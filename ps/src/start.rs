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

/// As [`start_table`], of a table whose rows are only set and read: to score them, or to write them elsewhere. A row takes the memory of its
/// weights alone. The client has the [`config`](TableClient::config) of the whole table. It refuses pushes and pulls, which would need the
/// state of optimizers; [`peek`](TableClient::peek) reads rows.
///
/// # Errors
/// As [`start_table`].
pub fn start_read_only(host: &Host, config: TableConfig, shards: usize) -> Result<TableClient, Fault> {
    config.check()?;
    // Rows that a checkpoint has removed must be removable here. No key waits for its admission.
    let mut stored = config.weights_only();
    stored.lifetime.eviction = config.lifetime.eviction;
    stored.groups.iter_mut().zip(&config.groups).for_each(|(own, group)| own.lifetime.eviction = group.lifetime.eviction);
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
