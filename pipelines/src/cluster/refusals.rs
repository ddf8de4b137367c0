//! Decides whether the process of the coordinator has ended: its host refuses connections for long.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_job::Job;
use forebay_net::Peer;
use tokio::time::Instant;

use super::members::Role;

/// A host that refuses connections does so within this time.
const REFUSED_WITHIN: Duration = Duration::from_millis(500);

/// Tells a coordinator that has ended from one that cannot be reached for a moment: its host refuses connections for long.
pub(super) struct Refusals {
    /// A coordinator whose host refuses connections for this long has ended. `None`: the process waits until the coordinator is started
    /// again.
    most: Option<Duration>,
    /// The host has refused all connections since then.
    since: Mutex<Option<Instant>>,
}

impl Refusals {
    /// For a coordinator that may not have been started yet.
    pub(super) fn never() -> Self {
        Self { most: None, since: Mutex::default() }
    }

    /// For a process that the coordinator has answered. A reader without a heartbeat for `placement.lease_seconds` has lost its leases: it
    /// may end, because the coordinator leases its windows to other readers.
    pub(super) fn seen_by(role: Role, job: &Job) -> Self {
        let lease = Duration::from_secs_f64(job.placement.lease_seconds);
        Self { most: (role == Role::Reader).then_some(lease), ..Self::never() }
    }

    /// Call it after each request. `is_away`: the request failed because the coordinator could not be reached. Returns whether the process
    /// of the coordinator has ended.
    pub(super) async fn coordinator_has_ended(&self, peer: &Peer, is_away: bool) -> bool {
        let Some(most) = self.most else { return false };
        let now = Instant::now();
        let refused = is_away && peer.refuses(REFUSED_WITHIN).await;
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = refused.then(|| since.unwrap_or(now));
        since.is_some_and(|since| now - since >= most)
    }
}
