//! Calls to a NameNode. A call waits for a NameNode that restarts, fails over or hangs, with growing pauses, until the timeout. The log
//! says once for all calls that the NameNode cannot be reached, and that it is back.

use std::future::Future;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::Backoff;
use hdfs_native::HdfsError;
use object_store::{Error, Result};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::connection::Connection;
use super::errors::{from_hdfs, hdfs_error, without_trace};
use super::silence::{Heard, timeout_unless_heard, warn_while_silent};

/// When a call may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The call changes nothing.
    Always,
    /// The call changes something, and a second call changes nothing more. No call is given up, because it may be done late.
    UntilAnswered,
    /// The call changes something: only if the NameNode surely did nothing.
    IfUntouched,
}

impl Cluster {
    /// Makes a call, and makes it again while the NameNode cannot be reached. `path` is for messages.
    pub(super) async fn call<T, F>(&self, path: &str, repeat: Repeat, call: impl Fn(Arc<Connection>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.call_with_answers(path, repeat, &Heard::default(), call).await
    }

    /// As [`call`](Self::call), for a call with several answers, which it counts: the call may take long, if answers come.
    pub(super) async fn call_with_answers<T, F>(
        &self,
        path: &str,
        repeat: Repeat,
        heard: &Heard,
        call: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let since = Instant::now();
        let mut backoff = Backoff::equal_jitter(Duration::from_millis(100), Duration::from_secs(5));
        let mut refusals = 0;
        loop {
            let within = self.answer_within();
            let answer = match repeat {
                Repeat::Always => timeout_unless_heard(within, heard, call(self.connection())).await,
                // These calls have no deadline: after one, nothing would tell whether the call was done.
                Repeat::UntilAnswered | Repeat::IfUntouched => {
                    Some(warn_while_silent(self.root(), path, heard, call(self.connection())).await)
                }
            };
            let error = match answer {
                Some(Ok(value)) => {
                    self.set_answered();
                    return Ok(value);
                }
                Some(Err(error)) => error,
                None => {
                    self.reconnect();
                    let silent = std::io::Error::new(ErrorKind::TimedOut, format!("no answer within {within:?}"));
                    from_hdfs(HdfsError::IOError(silent))
                }
            };
            let refused = is_answer(&error);
            if refused {
                self.set_answered();
            }
            let known = hdfs_error(&error);
            // The process had a ticket before: an expired one may be renewed soon.
            let no_ticket = self.has_answered() && known.is_some_and(lacks_ticket);
            let again = no_ticket || known.is_some_and(|e| may_pass(e, repeat));
            let (wait, waited) = (backoff.next_wait(), since.elapsed());
            if !again || waited + wait > self.timeout() {
                return Err(self.explain(path, error, again));
            }
            match refused || no_ticket {
                true => {
                    let error = self.explain(path, error, again);
                    refusals += 1;
                    match refusals {
                        1 => {
                            tracing::warn!(store = self.root(), path, %error, "the NameNode refuses for now, asking it again")
                        }
                        _ => tracing::debug!(store = self.root(), path, ?waited, %error, "the NameNode still refuses"),
                    }
                }
                false => {
                    let error = without_trace(error);
                    match self.set_away() {
                        true => {
                            tracing::warn!(store = self.root(), path, %error, "the NameNode cannot be reached, waiting for it")
                        }
                        false => {
                            tracing::debug!(store = self.root(), path, ?waited, %error, "the NameNode still cannot be reached")
                        }
                    }
                }
            }
            tokio::time::sleep(wait).await;
        }
    }
}

/// Whether the error is the answer of a NameNode.
fn is_answer(error: &Error) -> bool {
    match hdfs_error(error) {
        Some(error) => matches!(error, HdfsError::RPCError(..) | HdfsError::FatalRPCError(..)) && !lacks_ticket(error),
        None => matches!(error, Error::NotFound { .. } | Error::AlreadyExists { .. } | Error::Precondition { .. }),
    }
}

/// Whether a new connection was refused because there is no valid Kerberos ticket. The call was not made.
pub(super) fn lacks_ticket(error: &HdfsError) -> bool {
    match error {
        HdfsError::GSSAPIError(..) | HdfsError::SASLError(_) | HdfsError::NoSASLMechanism => true,
        HdfsError::RPCError(exception, _) | HdfsError::FatalRPCError(exception, _) => {
            ["SaslException", "GSSException"].iter().any(|name| exception.ends_with(name))
        }
        _ => false,
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
    fn a_namenode_that_refuses_has_answered() {
        let rpc = |name: &str| HdfsError::RPCError(format!("org.apache.hadoop.{name}"), String::new());
        for error in [
            rpc("ipc.StandbyException"),
            rpc("hdfs.server.namenode.SafeModeException"),
            rpc("security.AccessControlException"),
            HdfsError::FileNotFound("/a".into()),
            HdfsError::AlreadyExists("/a".into()),
            HdfsError::RPCError("java.io.FileNotFoundException".into(), "/a".into()),
        ] {
            let error = from_hdfs(error);
            assert!(is_answer(&error), "{error}");
        }
        for error in [
            HdfsError::IOError(ErrorKind::ConnectionRefused.into()),
            HdfsError::IOError(ErrorKind::TimedOut.into()),
            HdfsError::NoSASLMechanism,
            HdfsError::FatalRPCError("javax.security.sasl.SaslException".into(), "GSS initiate failed".into()),
        ] {
            let error = from_hdfs(error);
            assert!(!is_answer(&error), "{error}");
        }
    }

    #[test]
    fn a_ticket_is_missing_only_where_a_login_failed() {
        let rpc = |name: &str| HdfsError::FatalRPCError(name.into(), String::new());
        let logins =
            [HdfsError::NoSASLMechanism, HdfsError::SASLError("expired".into()), rpc("org.ietf.jgss.GSSException")];
        assert!(logins.iter().all(lacks_ticket));
        let others = [rpc("org.apache.hadoop.security.AccessControlException"), HdfsError::FileNotFound("/a".into())];
        assert!(!others.iter().any(lacks_ticket));
    }

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
