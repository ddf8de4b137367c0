//! What went wrong with HDFS, in a user's words, and what to do about it: errors of hdfs-native become [`Explained`].

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::Range;
use std::time::Duration;

use forebay_actors::FaultKind;
use hdfs_native::HdfsError;
use object_store::{Error, ObjectMeta};

use super::errors::{hdfs_error, without_trace};
use crate::store_error::Explained;

/// A call to a NameNode that has failed.
pub(super) struct Asked<'a> {
    pub(super) root: &'a str,
    /// The NameNodes behind a name service.
    pub(super) namenodes: &'a [String],
    pub(super) path: &'a str,
    /// Whether one of them has answered before.
    pub(super) answered: bool,
    /// Whether the call was repeated until the timeout.
    pub(super) waited: bool,
}

impl Asked<'_> {
    /// The root, and the NameNodes that were tried.
    fn tried(&self) -> String {
        match self.namenodes {
            [] => self.root.to_owned(),
            several => format!("{} ({})", self.root, several.join(", ")),
        }
    }
}

/// Explains the error of a call to a NameNode.
pub(super) fn explain(asked: &Asked<'_>, error: Error) -> Error {
    let known = hdfs_error(&error);
    let Some((users, text)) = known.and_then(|known| explanation(asked, known)) else {
        return without_trace(error);
    };
    let kind = match known {
        Some(HdfsError::RPCError(exception, said)) if is_quota(exception, said) => FaultKind::NoSpace,
        _ => FaultKind::Other,
    };
    match without_trace(error) {
        Error::Generic { source, .. } => {
            let explained = Explained { text, users, kind, waited: asked.waited, source: Some(source) };
            Error::Generic { store: "hdfs", source: Box::new(explained) }
        }
        other => other,
    }
}

/// Whether a quota is used up.
fn is_quota(exception: &str, said: &str) -> bool {
    let names = ["QuotaExceededException", "DSQuotaExceededException", "NSQuotaExceededException"];
    names.into_iter().any(|name| exception.contains(name) || said.starts_with(name))
}

fn explanation(asked: &Asked<'_>, error: &HdfsError) -> Option<(bool, String)> {
    let (Asked { root, path, answered, waited, .. }, tried) = (asked, asked.tried());
    let text = match error {
        HdfsError::IOError(_) | HdfsError::InvalidRPCResponse(_) if *answered => {
            let waited = match *waited {
                true => " (FOREBAY_HDFS_TIMEOUT says for how many seconds it is waited for)",
                false => "",
            };
            format!(
                "the NameNode at {tried} has answered before, and does not now: check that it runs and that the network to it works{waited}"
            )
        }
        HdfsError::IOError(e) => match e.kind() {
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::InvalidData => {
                format!(
                    "the server at {tried} does not answer as a NameNode would, or breaks the connection: name the \
                     NameNode's RPC port (usually 8020 or 9000), not its web port (9870) nor a DataNode's (9866)"
                )
            }
            ErrorKind::TimedOut => format!(
                "nothing at {tried} answers as a NameNode would ({e}): check that it runs, that the port is its RPC port \
                 (8020 or 9000, as a rule) and not its web port (9870) nor a DataNode's (9866), and that no firewall is in \
                 between"
            ),
            _ => format!(
                "no NameNode answers at {tried}: check that it runs, that the host and the port are those of \
                 fs.defaultFS, and that no firewall is in between"
            ),
        },
        HdfsError::InvalidRPCResponse(_) => format!(
            "the server at {tried} does not answer as a NameNode would: name the NameNode's RPC port (usually \
             8020 or 9000), not its web port (9870) nor a DataNode's (9866)"
        ),
        HdfsError::RPCError(exception, said) | HdfsError::FatalRPCError(exception, said) => {
            return rpc_explanation(asked, exception, said);
        }
        HdfsError::GSSAPIError(..) | HdfsError::SASLError(_) | HdfsError::NoSASLMechanism => {
            return Some((true, kerberos(root)));
        }
        HdfsError::OperationFailed(text) if text.contains("libgssapi") => {
            return Some((
                true,
                format!(
                    "{root} wants Kerberos, whose library is not installed: install libgssapi-krb5-2 (Debian) or krb5-libs (Red Hat)"
                ),
            ));
        }
        HdfsError::UnsupportedFeature(_) | HdfsError::UnsupportedErasureCodingPolicy(_) => {
            return Some((true, format!("`{path}` uses a feature of HDFS that cannot be read or written here")));
        }
        _ => return None,
    };
    Some((false, text))
}

fn rpc_explanation(asked: &Asked<'_>, exception: &str, said: &str) -> Option<(bool, String)> {
    let Asked { root, path, .. } = asked;
    let is = |name: &str| exception.contains(name) || said.starts_with(name);
    let first_line = said.lines().next().unwrap_or_default();
    Some(
        if is("SaslException")
            || is("GSSException")
            || is("AccessControlException")
                && (said.contains("SIMPLE authentication is not enabled") || said.contains("TOKEN"))
        {
            (true, kerberos(root))
        } else if is("SnapshotAccessControlException") {
            (true, format!("`{path}` is in a snapshot of {root}, and snapshots cannot be changed: name another folder"))
        } else if first_line.contains("(is not a directory)") || is("ParentNotDirectoryException") {
            (true, format!("a folder above `{path}` is a file of {root} ({first_line}): name another folder"))
        } else if is("AccessControlException") {
            (
                true,
                format!(
                    "permission denied by {root}: {first_line}; ask the owner for permission, or use another user \
                     (with a Kerberos ticket, or HADOOP_USER_NAME if the cluster has no Kerberos)"
                ),
            )
        } else if is("SafeModeException") || said.contains("safe mode") {
            (
                false,
                format!(
                    "{root} is in safe mode, in which nothing can be written and some files cannot be read: wait until \
                     enough DataNodes have reported, or run `hdfs dfsadmin -safemode leave`"
                ),
            )
        } else if is("StandbyException") {
            (
                false,
                format!(
                    "all NameNodes of {} are on standby, none is active: see `hdfs haadmin -getAllServiceState`; with high \
                     availability, name the name service, not a single NameNode",
                    asked.tried()
                ),
            )
        } else if is_quota(exception, said) {
            let option = if is("NSQuotaExceededException") { "-setQuota" } else { "-setSpaceQuota" };
            (
                true,
                format!(
                    "a quota of {root} is used up: {first_line}; remove files there, or let an administrator raise it with \
                     `hdfs dfsadmin {option}`"
                ),
            )
        } else if is("PathComponentTooLongException") {
            (
                true,
                format!(
                    "a name in `{path}` is too long for {root}: {first_line}; until it is complete, a file or folder has a hidden name, which \
                     is about 40 characters longer"
                ),
            )
        } else if is("InvalidPathException") && path.contains(':') {
            (
                true,
                format!(
                    "`{path}` is not a path that {root} takes, because HDFS allows no colon in a name: {first_line}"
                ),
            )
        } else if is("InvalidPathException") || is("UnresolvedPathException") {
            (true, format!("`{path}` is not a path that {root} takes: {first_line}"))
        } else {
            (false, format!("{root} refused: {}: {first_line}", exception.rsplit('.').next().unwrap_or(exception)))
        },
    )
}

fn kerberos(root: &str) -> String {
    format!(
        "{root} wants Kerberos, and there is no ticket it accepts: run `kinit` (KRB5CCNAME names the ticket cache, \
         `klist` shows what is in it), or set FOREBAY_KERBEROS_PRINCIPAL and FOREBAY_KERBEROS_KEYTAB"
    )
}

/// The error of a write that was broken off, and did not go on for that long.
pub(super) fn not_written(root: &str, path: &str, waited: Duration, error: &HdfsError) -> Error {
    let text = format!(
        "`{}` could not be written within {:.0} s, because a DataNode or the NameNode is down or does not answer ({}): \
         `hdfs dfsadmin -report` lists the DataNodes (FOREBAY_HDFS_TIMEOUT says for how many seconds Forebay tries)",
        format_args!("{}{path}", root.trim_end_matches('/')),
        waited.as_secs_f64(),
        short(error)
    );
    Error::Generic {
        store: "hdfs",
        source: Box::new(Explained { text, users: false, kind: FaultKind::Other, waited: true, source: None }),
    }
}

/// The error of a read whose replicas all failed, several times over, on the DataNodes that were `tried`.
pub(super) fn lost(
    root: &str,
    meta: &ObjectMeta,
    range: &Range<u64>,
    tried: &BTreeSet<String>,
    error: HdfsError,
) -> Error {
    let path = &meta.location;
    let Range { start, end } = range;
    let nodes = if tried.is_empty() {
        "no DataNode that is alive holds a replica".to_owned()
    } else {
        format!("tried the DataNodes {} several times", tried.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
    };
    let shows = format!("`hdfs fsck /{path} -files -blocks -locations` shows which block it is and where it should be");
    let text = match error {
        HdfsError::UnsupportedErasureCodingPolicy(policy) => format!(
            "bytes {start} to {end} of `{root}{path}` lie on a DataNode that does not answer, and Forebay cannot reconstruct them with its \
             erasure coding policy ({policy}), only with those of the codec rs: start the DataNode; {shows}"
        ),
        error => format!(
            "no replica of the block that holds bytes {start} to {end} of `{root}{path}` can be read, {nodes} ({}); {shows}",
            short(&error)
        ),
    };
    Error::Generic {
        store: "hdfs",
        source: Box::new(Explained { text, users: false, kind: FaultKind::Other, waited: true, source: None }),
    }
}

/// The addresses in hdfs-native's text about the replicas that it tried.
pub(super) fn nodes(error: &HdfsError) -> Vec<String> {
    let HdfsError::DataTransferError(text) = error else {
        return Vec::new();
    };
    let after = |text: &str, name: &str| -> Option<String> {
        let rest = &text[text.find(name)? + name.len()..];
        Some(rest.chars().take_while(|c| !matches!(c, ',' | '"' | ' ' | '}')).collect())
    };
    text.split("DatanodeIdProto")
        .skip(1)
        .filter_map(|node| Some(format!("{}:{}", after(node, "ip_addr: \"")?, after(node, "xfer_port: ")?)))
        .collect()
}

/// An error without the pages of detail.
pub(super) fn short(error: &HdfsError) -> String {
    let text = error.to_string().lines().next().unwrap_or_default().to_owned();
    match text.find('[') {
        Some(at) if text.contains("DatanodeIdProto") => text[..at].trim_end_matches([':', ' ']).to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(error: HdfsError) -> (bool, String) {
        said_of(
            &Asked { root: "hdfs://nn:8020/", namenodes: &[], path: "/data/a", answered: false, waited: true },
            error,
        )
    }

    fn said_of(asked: &Asked<'_>, error: HdfsError) -> (bool, String) {
        match explain(asked, Error::Generic { store: "hdfs", source: Box::new(error) }) {
            Error::Generic { source, .. } => {
                let explained = source.downcast::<Explained>().unwrap();
                let no_space = explained.text.contains("a quota of");
                assert_eq!(explained.kind == FaultKind::NoSpace, no_space, "{explained}");
                assert_eq!(explained.waited, asked.waited);
                (explained.users, explained.to_string())
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn each_error_says_what_to_do() {
        let rpc = |exception: &str, text: &str| HdfsError::RPCError(exception.into(), text.into());
        let io = |kind: ErrorKind| HdfsError::IOError(kind.into());
        for (error, users, hint) in [
            (io(ErrorKind::ConnectionRefused), false, "check that it runs"),
            (io(ErrorKind::UnexpectedEof), false, "RPC port"),
            (
                rpc(
                    "org.apache.hadoop.security.AccessControlException",
                    "Permission denied: user=eve, access=READ\n\tat x",
                ),
                true,
                "user=eve",
            ),
            (
                rpc("org.apache.hadoop.security.AccessControlException", "/data (is not a directory)"),
                true,
                "is a file of",
            ),
            (
                rpc(
                    "org.apache.hadoop.hdfs.protocol.SnapshotAccessControlException",
                    "Modification on a read-only snapshot is disallowed",
                ),
                true,
                "snapshots cannot be changed",
            ),
            (
                rpc("org.apache.hadoop.security.AccessControlException", "SIMPLE authentication is not enabled."),
                true,
                "kinit",
            ),
            (
                rpc("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create file"),
                false,
                "-safemode leave",
            ),
            (
                rpc(
                    "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException",
                    "The DiskSpace quota of /q is exceeded",
                ),
                true,
                "dfsadmin -setSpaceQuota",
            ),
            (
                rpc(
                    "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException",
                    "The NameSpace quota of /q is exceeded",
                ),
                true,
                "dfsadmin -setQuota",
            ),
            (HdfsError::NoSASLMechanism, true, "FOREBAY_KERBEROS_KEYTAB"),
            (rpc("javax.security.sasl.SaslException", "GSS initiate failed"), true, "kinit"),
            (rpc("org.apache.hadoop.ipc.StandbyException", "Operation category READ"), false, "name the name service"),
        ] {
            let (found, text) = said(error);
            assert!(found == users && text.contains(hint) && text.contains("hdfs://nn:8020/"), "{text}");
        }
    }

    #[test]
    fn the_namenodes_that_were_tried_are_named_and_one_that_answered_before_has_the_right_port() {
        let namenodes = ["nn0 at a:8020".to_owned(), "nn1 at b:8020".to_owned()];
        for (answered, waited) in [(false, true), (true, true), (true, false)] {
            for kind in [ErrorKind::ConnectionRefused, ErrorKind::ConnectionAborted] {
                let asked = Asked { root: "hdfs://ns/", namenodes: &namenodes, path: "/data/a", answered, waited };
                let (users, text) = said_of(&asked, HdfsError::IOError(kind.into()));
                assert!(!users && text.contains("hdfs://ns/ (nn0 at a:8020, nn1 at b:8020)"), "{text}");
                assert_eq!(text.contains("has answered before"), answered, "{text}");
                assert_ne!(text.contains("port"), answered, "{text}");
                assert_eq!(text.contains("FOREBAY_HDFS_TIMEOUT"), answered && waited, "{text}");
            }
        }
    }

    #[test]
    fn lost_replicas_are_named_and_so_is_a_policy_that_cannot_be_reconstructed() {
        let error = HdfsError::DataTransferError(
            "All DataNodes failed: [DatanodeInfoProto { id: DatanodeIdProto { ip_addr: \"10.0.0.7\", host_name: \"a\", \
             datanode_uuid: \"u\", xfer_port: 9866, info_port: 9864 } }, DatanodeInfoProto { id: DatanodeIdProto { ip_addr: \
             \"10.0.0.8\", host_name: \"b\", xfer_port: 9867 } }]"
                .into(),
        );
        assert_eq!(nodes(&error), ["10.0.0.7:9866", "10.0.0.8:9867"]);
        let meta = ObjectMeta {
            location: "data/a".into(),
            last_modified: Default::default(),
            size: 100,
            e_tag: None,
            version: None,
        };
        let text = lost("hdfs://nn:8020/", &meta, &(10..20), &nodes(&error).into_iter().collect(), error).to_string();
        for part in ["hdfs://nn:8020/data/a", "bytes 10 to 20", "10.0.0.7:9866, 10.0.0.8:9867", "hdfs fsck /data/a"] {
            assert!(text.contains(part), "{text}");
        }
        let error = HdfsError::UnsupportedErasureCodingPolicy("codec: xor".into());
        let text = lost("hdfs://nn:8020/", &meta, &(10..20), &BTreeSet::new(), error).to_string();
        for part in ["bytes 10 to 20 of `hdfs://nn:8020/data/a`", "cannot reconstruct", "(codec: xor)", "hdfs fsck"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
