//! Starts the shards of a table: all of them, or one process's share.
//!
//! The shards open on their own threads.

use std::ops::Range;
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

/// Starts the shards of a table on `host`, each on a thread of its own, and returns the way to them.
///
/// # Errors
/// A user fault, when the configuration is wrong or `shards` is not 1 to [`MAX_SHARDS`].
pub fn start_table(host: &Host, config: TableConfig, shards: usize) -> Result<TableClient, Fault> {
    start_shards(host, config, shards, 0..shards)
}

/// Starts those shards of a table that one of several processes holds: `held` of `shards` in all. The client that comes
/// back reaches these alone, and refuses the keys of others.
///
/// # Errors
/// As [`start_table`]; also when `held` is empty or not within `shards`.
pub fn start_shards(host: &Host, config: TableConfig, shards: usize, held: Range<usize>) -> Result<TableClient, Fault> {
    config.check()?;
    let name = &config.name;
    if shards == 0 || shards > MAX_SHARDS {
        return Err(Fault::user(format!("table `{name}` was asked for {shards} shards; expected 1 to {MAX_SHARDS}")));
    }
    if held.is_empty() || held.end > shards {
        return Err(Fault::user(format!(
            "table `{name}` was asked for the shards {held:?} of {shards}; expected at least one, below {shards}"
        )));
    }
    let layout = Arc::new(Layout::new(&config));
    let endpoints = held.clone().map(|number| {
        let (name, config) = (format!("ps{number}-{}", config.name), config.clone());
        Endpoint::Shard(host.serve(&name, Place::Own, CAPACITY, move || Shard::new(config, number)))
    });
    let route = Route::new(shards).part(held.start, held.len());
    Ok(TableClient::new(endpoints.collect(), route, held, layout, config))
}
