//! Tables whose shards stand in other processes: [`connect`] gives the same [`TableClient`] as
//! [`start_table`](crate::start_table), and [`TableService`] is the server's side.
//!
//! ```text
//!   TableClient ── route ──┬─ one request per process ─→ TableService ─→ its shards
//!                          └─ ...                        on request streams: pull, peek, push
//! ```
//!
//! Two processes of two and three shards (in one here), and a trainer:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use forebay_actors::{Host, IoRuntime};
//! use forebay_net::{Dialer, Health, Identity, Limits, Retry, Security, Server};
//! use forebay_ps::remote::{TableService, Wire, connect};
//! use forebay_ps::{Init, Optimizer, PartConfig, PushId, PushOutcome, Route, TableConfig, start_shards};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let part = PartConfig::new("w", 2, Optimizer::Sgd { lr: 0.5.into(), l2: 0.0 }, Init::Zeros);
//! let config = TableConfig::new("ads", 1, vec![part]);
//! let (io, host) = (IoRuntime::new("net", 1), Host::start("ps")?);
//! let (security, limits) = (Security::none(), Limits::default());
//! let identity = |role: &str| Identity { run: "monday".into(), role: role.into(), incarnation: 0, attempt: 1 };
//! let listen = "127.0.0.1:0".parse().expect("an address");
//! let mut servers = Vec::new();
//! for route in [Route::of_process(0, 2, 2), Route::of_process(1, 2, 3)] {
//!     let service = Arc::new(TableService::new(vec![start_shards(&host, config.clone(), route)?]));
//!     let handlers: Vec<Arc<dyn forebay_net::Handler>> = vec![service];
//!     servers.push(Server::start(&io, listen, &security, identity("ps"), &limits, handlers, Health::new()).await?);
//! }
//!
//! let dialer = Dialer::new(&io, &security, &identity("trainer 0"), &limits)?;
//! let peers = servers.iter().map(|server| dialer.peer(&server.address().to_string()));
//! let peers = peers.collect::<Result<Vec<_>, _>>()?;
//! let table = connect(&peers, &config, Wire::F32, Retry::within(Duration::from_secs(10))).await?;
//! let (keys, mut rows) = ([7, 8, 9], Vec::new());
//! table.pull(&keys, &mut rows).await?;
//! let id = PushId { series: 0, index: 0 };
//! assert_eq!(table.push_once(id, &keys, &[1.0; 6], 1).await?, PushOutcome::Applied);
//! assert_eq!(table.push_once(id, &keys, &[1.0; 6], 1).await?, PushOutcome::Already);
//! table.peek(&keys, &mut rows).await?;
//! assert_eq!(rows, [-0.5; 6]);
//! # drop((table, peers, dialer, servers));
//! # host.stop()
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod request_handler;
mod service;

use std::sync::Arc;

use forebay_actors::Fault;
use forebay_net::{Peer, Retry};
use futures::future::try_join_all;
use serde_json::Value;
pub use service::TableService;
pub(crate) use service::{REDUCES, check_acknowledge, check_member, check_trainer, sender};

use crate::client::TableClient;
use crate::config::TableConfig;
use crate::endpoint::Endpoint;
use crate::route::Route;
use crate::start::MAX_SHARDS;
use crate::table::Layout;
pub use crate::wire::messages::Wire;
use crate::wire::process::Process;
use crate::wire::remote_ps::RemotePs;
pub use crate::wire::reply_times::PsReplies;
use crate::wire::requests::{HeldShards, TableName};

/// Connects to the processes that hold a table: `peers` by their numbers. Each has an equal part of the keys, in any number of shards.
///
/// After a lost connection, pulls, peeks, imports and pushes with an id are sent again for as long as `retry` says. A push
/// without an id gets an external fault, since it may have been applied or not.
///
/// # Errors
/// External: a peer could not be reached within `retry`'s time. User: a peer refuses us, or it holds another table
/// than `config` says (the message names the difference), or the part of another process.
pub async fn connect(peers: &[Peer], config: &TableConfig, wire: Wire, retry: Retry) -> Result<TableClient, Fault> {
    config.check()?;
    let name = &config.name;
    let remotes = peers.iter().enumerate();
    let remotes: Vec<_> =
        remotes.map(|(rank, peer)| RemotePs::new(rank, peer, format!("table `{name}`"), &retry)).collect();
    let body = TableName { table: name.clone() };
    let all: Vec<HeldShards> = try_join_all(remotes.iter().map(|ps| ps.act("table.config", &body))).await?;
    if all.is_empty() {
        return Err(Fault::user(format!("table `{name}` has no processes to connect to; expected at least one")));
    }
    for (rank, (ps, held)) in remotes.iter().zip(&all).enumerate() {
        let at = &ps.name;
        if let Some(difference) = difference(config, &held.config) {
            return Err(Fault::user(format!(
                "table `{name}` on {at} is not the one of this job: {difference}; start all processes with one job file"
            )));
        }
        let (there, here) = ((held.rank, held.processes), (rank, peers.len()));
        if there != here {
            return Err(Fault::user(format!(
                "{at} says that it is process {} of {} that hold table `{name}`; expected process {} of {}",
                there.0, there.1, here.0, here.1
            )));
        }
        if !(1..=MAX_SHARDS).contains(&held.shards) {
            return Err(Fault::user(format!(
                "table `{name}` on {at} has {} shards; expected 1 to {MAX_SHARDS}",
                held.shards
            )));
        }
    }
    let layout = Arc::new(Layout::new(config));
    let process = |(ps, held): (_, &HeldShards)| Process::new(ps, held.shards, layout.clone(), wire);
    let endpoints = remotes.into_iter().zip(&all).map(process).map(|process| Endpoint::Process(Box::new(process)));
    let shards = all.iter().map(|held| held.shards).sum();
    Ok(TableClient::new(endpoints.collect(), Route::new(peers.len()), 0..shards, layout, config.clone()))
}

/// The first field in which two configurations differ, with both values.
fn difference(here: &TableConfig, there: &TableConfig) -> Option<String> {
    if here == there {
        return None;
    }
    let value = |config| serde_json::to_value(config).unwrap_or_default();
    Some(differ("", &value(here), &value(there)).unwrap_or_else(|| "they differ".to_owned()))
}

fn differ(path: &str, here: &Value, there: &Value) -> Option<String> {
    match (here, there) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys());
            let get = |map: &serde_json::Map<String, Value>, key| map.get(key).cloned().unwrap_or_default();
            let dot = if path.is_empty() { "" } else { "." };
            keys.into_iter().find_map(|key| differ(&format!("{path}{dot}{key}"), &get(a, key), &get(b, key)))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(i, (a, b))| differ(&format!("{path}[{i}]"), a, b))
        }
        _ if here == there => None,
        _ => Some(format!("`{path}` is {there} there and {here} here")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Init, Optimizer, PartConfig};

    #[test]
    fn a_difference_is_named() {
        let sgd = |lr| Optimizer::Sgd { lr: crate::LearningRate::constant(lr), l2: 0.0 };
        let part = |lr| PartConfig::new("a", 2, sgd(lr), Init::Zeros);
        let config = TableConfig::new("t", 1, vec![part(0.5)]);
        assert_eq!(difference(&config, &config.clone()), None);
        let said = |there: TableConfig| difference(&config, &there).unwrap();
        let other = TableConfig { parts: vec![part(0.25)], ..config.clone() };
        assert_eq!(said(other), "`parts[0].optimizer.lr` is 0.25 there and 0.5 here");
        assert_eq!(said(TableConfig { seed: 2, ..config.clone() }), "`seed` is 2 there and 1 here");
        let other = TableConfig { parts: vec![part(0.5), part(0.5)], ..config.clone() };
        assert!(said(other).starts_with("`parts` is ["));
    }
}
