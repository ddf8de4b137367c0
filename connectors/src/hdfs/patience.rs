//! Calls to a NameNode: one that restarts, fails over or hangs is waited for, with growing pauses and a word about it.
//!
//! Comes in: an operation. Goes out: its result, or what went wrong when the patience was used up. Awaits.

use std::future::Future;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use hdfs_native::HdfsError;
use object_store::{Error, Result};
use tokio::time::Instant;

use super::connect::{Cluster, Link};
use super::trouble;

/// A NameNode that has not answered for so long hangs: its calls take milliseconds, under load seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// When a call may be made once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It changes nothing.
    Always,
    /// Only if the NameNode surely did nothing.
    IfUntouched,
}

impl Cluster {
    /// Makes a call, and makes it again while the NameNode is away. `path` is for messages.
    pub(super) async fn call<T, F>(&self, path: &str, repeat: Repeat, call: impl Fn(Arc<Link>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let since = Instant::now();
        let mut pause = Pauses::new(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            let patience = self.patience();
            // What changes something is not cut short: nobody would know whether it was done.
            let within = if repeat == Repeat::Always { ANSWER_WITHIN.min(patience) } else { Duration::MAX };
            let error = match tokio::time::timeout(within, call(self.link())).await {
                Ok(Ok(value)) => {
                    self.met();
                    return Ok(value);
                }
                Ok(Err(error)) => error,
                Err(_) => {
                    self.reconnect();
                    let silent = std::io::Error::new(ErrorKind::TimedOut, format!("no answer within {within:?}"));
                    from_hdfs(HdfsError::IOError(silent))
                }
            };
            let again = hdfs_error(&error).is_some_and(|e| may_pass(e, repeat));
            let wait = pause.next();
            if !again || since.elapsed() + wait > patience {
                return Err(trouble::explain(self.root(), path, error));
            }
            tracing::warn!(store = self.root(), path, waited = ?since.elapsed(), %error, "the NameNode is away, waiting for it");
            tokio::time::sleep(wait).await;
        }
    }
}

/// Pauses that double up to a limit, each shortened at random by up to a half, so that many readers do not come at once.
pub(super) struct Pauses {
    next: Duration,
    most: Duration,
}

impl Pauses {
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, most }
    }

    pub(super) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause.mul_f64(0.5 + 0.5 * random())
    }
}

/// A number in [0, 1) that differs between processes and calls.
fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(0) >> 11) as f64 / (1u64 << 53) as f64
}

/// Whether the call can succeed later.
fn may_pass(error: &HdfsError, repeat: Repeat) -> bool {
    match error {
        HdfsError::IOError(e) => {
            repeat == Repeat::Always || matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable)
        }
        HdfsError::InvalidRPCResponse(_) => repeat == Repeat::Always,
        HdfsError::RPCError(exception, text) | HdfsError::FatalRPCError(exception, text) => {
            [exception, text].iter().any(|said| {
                ["StandbyException", "RetriableException", "SafeModeException", "ObserverRetryOnActiveException"]
                    .iter()
                    .any(|name| said.contains(name))
            })
        }
        _ => false,
    }
}

/// The error of hdfs-native inside a store's error.
pub(super) fn hdfs_error(error: &Error) -> Option<&HdfsError> {
    match error {
        Error::Generic { source, .. } => source.downcast_ref(),
        _ => None,
    }
}

/// An error of hdfs-native as a store's error.
pub(super) fn from_hdfs(error: HdfsError) -> Error {
    match error {
        HdfsError::FileNotFound(ref path) => Error::NotFound { path: path.clone(), source: Box::new(error) },
        HdfsError::RPCError(ref exception, ref said) if exception.ends_with(".FileNotFoundException") => {
            Error::NotFound { path: said.lines().next().unwrap_or_default().to_owned(), source: Box::new(error) }
        }
        HdfsError::AlreadyExists(ref path) => Error::AlreadyExists { path: path.clone(), source: Box::new(error) },
        error => Error::Generic { store: "hdfs", source: Box::new(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_limit() {
        let mut pauses = Pauses::new(Duration::from_millis(100), Duration::from_millis(350));
        for full in [100, 200, 350, 350] {
            let (pause, full) = (pauses.next(), Duration::from_millis(full));
            assert!(pause <= full && pause >= full / 2, "{pause:?} of {full:?}");
        }
    }

    #[test]
    fn what_may_have_been_done_is_not_done_again() {
        let broken = || HdfsError::IOError(ErrorKind::ConnectionReset.into());
        let refused = || HdfsError::IOError(ErrorKind::ConnectionRefused.into());
        let rpc = |name: &str| HdfsError::RPCError(format!("org.apache.hadoop.{name}"), String::new());
        assert!(may_pass(&broken(), Repeat::Always) && !may_pass(&broken(), Repeat::IfUntouched));
        assert!(may_pass(&refused(), Repeat::IfUntouched));
        assert!(may_pass(&rpc("hdfs.server.namenode.SafeModeException"), Repeat::IfUntouched));
        assert!(!may_pass(&rpc("security.AccessControlException"), Repeat::Always));
    }
}
