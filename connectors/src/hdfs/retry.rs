//! Calls to a NameNode. One that restarts, fails over or hangs is waited for, with growing pauses and a warning in the
//! log, until the timeout.

use std::future::Future;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::Backoff;
use hdfs_native::HdfsError;
use object_store::Result;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::connection::Connection;
use super::errors::{from_hdfs, hdfs_error, without_trace};
use super::silence::{ANSWER_WITHIN, warn_while_silent};

/// When a call may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It changes nothing.
    Always,
    /// It changes something, and done twice the same as done once. No call is given up, because it may be done late.
    UntilAnswered,
    /// It changes something: only if the NameNode surely did nothing.
    IfUntouched,
}

impl Cluster {
    /// Makes a call, and makes it again while the NameNode is away. `path` is for messages.
    pub(super) async fn call<T, F>(&self, path: &str, repeat: Repeat, call: impl Fn(Arc<Connection>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let since = Instant::now();
        let mut backoff = Backoff::equal_jitter(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            let timeout = self.timeout();
            let within = ANSWER_WITHIN.min(timeout);
            let answer = match repeat {
                Repeat::Always => tokio::time::timeout(within, call(self.connection())).await,
                // They have no deadline: after one, nothing would tell whether it was done.
                Repeat::UntilAnswered | Repeat::IfUntouched => {
                    Ok(warn_while_silent(self.root(), path, call(self.connection())).await)
                }
            };
            let error = match answer {
                Ok(Ok(value)) => {
                    self.set_answered();
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
            let wait = backoff.next_wait();
            if !again || since.elapsed() + wait > timeout {
                return Err(self.explain(path, error));
            }
            let error = without_trace(error);
            tracing::warn!(store = self.root(), path, waited = ?since.elapsed(), %error, "the NameNode is away, waiting for it");
            tokio::time::sleep(wait).await;
        }
    }
}

/// Whether the call can succeed later.
pub(super) fn may_pass(error: &HdfsError, repeat: Repeat) -> bool {
    match error {
        HdfsError::IOError(e) => {
            repeat != Repeat::IfUntouched
                || matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable)
        }
        HdfsError::InvalidRPCResponse(_) => repeat != Repeat::IfUntouched,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_done_is_not_done_again() {
        let broken = || HdfsError::IOError(ErrorKind::ConnectionReset.into());
        let refused = || HdfsError::IOError(ErrorKind::ConnectionRefused.into());
        let rpc = |name: &str| HdfsError::RPCError(format!("org.apache.hadoop.{name}"), String::new());
        assert!(may_pass(&broken(), Repeat::Always) && may_pass(&broken(), Repeat::UntilAnswered));
        assert!(!may_pass(&broken(), Repeat::IfUntouched));
        assert!(may_pass(&refused(), Repeat::IfUntouched));
        assert!(may_pass(&rpc("hdfs.server.namenode.SafeModeException"), Repeat::IfUntouched));
        assert!(!may_pass(&rpc("security.AccessControlException"), Repeat::Always));
    }
}
