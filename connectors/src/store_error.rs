//! A store's error as a fault: whose it is, and whether a retry can help.

use std::error::Error;
use std::io::ErrorKind;

use forebay_actors::{Fault, FaultKind};
use object_store::Error as StoreError;
use object_store::path::Error as PathError;

/// An explanation that a store adds to an error, as the source of a `Generic` one.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Explained {
    pub(crate) text: String,
    /// Whether the user must correct it.
    pub(crate) users: bool,
    pub(crate) kind: FaultKind,
    /// The store has repeated the call until its timeout: another call would wait as long.
    pub(crate) waited: bool,
    #[source]
    pub(crate) source: Option<Box<dyn Error + Send + Sync>>,
}

impl Explained {
    fn into_fault(self, what: &str) -> Fault {
        let text = format!("{what}: {}", self.text);
        let fault = if self.users { Fault::user(text) } else { Fault::external(text).retryable() };
        let fault = fault.kind(self.kind);
        match self.source {
            Some(source) => fault.because(source),
            None => fault,
        }
    }
}

/// The fault of an operation that `what` names. A missing, changed or forbidden file is the user's, the rest may pass.
pub(crate) fn store_fault(what: &str, error: StoreError) -> Fault {
    match error {
        StoreError::NotFound { path, source } => {
            let fault = Fault::user(format!("{what}: it is not there (any more)")).kind(FaultKind::NotFound);
            // The source says no more than the path, as a rule.
            if what.contains(&path) { fault } else { fault.because(source) }
        }
        StoreError::Precondition { .. } => Fault::user(format!(
            "{what}: the file was replaced or changed after it was listed; start again, and write new data to new files"
        ))
        .because(error),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => Fault::user(what).because(error),
        StoreError::InvalidPath { source } => Fault::user(format!("{what}: {}", unreadable(&source))),
        StoreError::Generic { source, .. } if source.is::<Explained>() => match source.downcast::<Explained>() {
            Ok(explained) => explained.into_fault(what),
            Err(source) => Fault::external(what).because(source),
        },
        other if other.to_string().contains(NUMBERED) => {
            Fault::user(format!("{what}: the name of a file must not end in `#` and digits on a local disk: rename it"))
        }
        other if may_not(&other) => Fault::user(what).because(other),
        other => {
            let kind = if no_space(&other) { FaultKind::NoSpace } else { FaultKind::Other };
            Fault::external(what).kind(kind).retryable().because(other)
        }
    }
}

/// Whether a disk is full, or a quota of it is used up.
fn no_space(error: &(dyn Error + 'static)) -> bool {
    let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
    first_of(error, |error| error.downcast_ref::<std::io::Error>().map(|e| full.contains(&e.kind())))
}

/// What is wrong with a path that no store takes, and what to do. In one line, also for a path with newlines.
pub(crate) fn unreadable(error: &PathError) -> String {
    match error {
        PathError::BadSegment { path, .. } if path.contains(|letter: char| letter.is_ascii_control()) => {
            format!("the name {path:?} has a control character, such as a tab or a newline: rename or remove it")
        }
        PathError::NonUnicode { path, .. } => {
            format!("the name {path:?}, with the bytes after `%` in hexadecimal, is not UTF-8: rename or remove it")
        }
        other => one_line(&other.to_string()),
    }
}

/// A path as a message names it: `\n` for a newline, and so on.
pub(crate) fn one_line(path: &str) -> String {
    path.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// The fault of a call on a local file that no store made.
pub(crate) fn io_fault(what: &str, error: std::io::Error) -> Fault {
    let fault = if may_not(&error) { Fault::user(what) } else { Fault::external(what).retryable() };
    fault.because(error)
}

/// How the local store begins the text of a general error about a name that ends in `#` and digits, which it keeps for itself.
const NUMBERED: &str = "Filenames containing trailing";

/// Whether the system refuses the operation forever; the local store and HDFS report this as a general error.
pub(crate) fn may_not(error: &(dyn Error + 'static)) -> bool {
    let for_ever = [ErrorKind::PermissionDenied, ErrorKind::NotADirectory, ErrorKind::InvalidFilename];
    first_of(error, |error| match error.downcast_ref::<std::io::Error>() {
        Some(e) => Some(for_ever.contains(&e.kind())),
        None => error.downcast_ref::<Explained>().map(|explained| explained.users),
    })
}

/// Whether the store has waited until its timeout before it gave the operation up: see [`Explained::waited`].
pub(crate) fn has_waited(error: &(dyn Error + 'static)) -> bool {
    first_of(error, |error| error.downcast_ref::<Explained>().map(|explained| explained.waited))
}

/// Asks `says` about an error and the chain of its causes. Returns the first answer; false if there is none.
fn first_of(error: &(dyn Error + 'static), says: impl Fn(&(dyn Error + 'static)) -> Option<bool>) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(said) = says(error) {
            return said;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use forebay_actors::Domain;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn an_error_of_a_disk_may_pass_and_a_file_that_may_not_be_read_is_the_users() {
        let of = |errno: Errno| {
            let source = Box::new(std::io::Error::from(errno));
            let of_store = store_fault("cannot read `a`", StoreError::Generic { store: "LocalFileSystem", source });
            [of_store, io_fault("cannot read `a`", errno.into())]
        };
        for fault in [Errno::IO, Errno::STALE, Errno::MFILE].into_iter().flat_map(of) {
            assert!(fault.domain == Domain::External && fault.retryable, "{fault}");
            assert_eq!(fault.kind, FaultKind::Other, "{fault}");
        }
        let [full, _] = of(Errno::NOSPC);
        assert_eq!((full.domain, full.kind, full.retryable), (Domain::External, FaultKind::NoSpace, true), "{full}");
        for fault in [Errno::ACCESS, Errno::NOTDIR, Errno::NAMETOOLONG].into_iter().flat_map(of) {
            assert_eq!(fault.domain, Domain::User);
        }
    }

    #[test]
    fn a_file_that_was_replaced_is_the_users() {
        let error = StoreError::Precondition { path: "a".into(), source: "another e-tag".into() };
        let fault = store_fault("cannot read `a`", error);
        assert!(fault.domain == Domain::User && fault.to_string().contains("was replaced"), "{fault}");
    }

    #[test]
    fn a_missing_file_is_said_to_be_missing_once() {
        let of = |what: &str| {
            let source = "file not found: /a/b".into();
            store_fault(what, StoreError::NotFound { path: "/a/b".into(), source }).to_string()
        };
        assert_eq!(of("cannot read `hdfs://ns/a/b`"), "cannot read `hdfs://ns/a/b`: it is not there (any more)");
        assert!(of("cannot finish `hdfs://ns/c`").contains("/a/b"));
    }

    #[tokio::test]
    async fn a_name_that_the_local_store_does_not_take_is_the_users() {
        use object_store::ObjectStoreExt;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("part#1"), "x").unwrap();
        let store = object_store::local::LocalFileSystem::new_with_prefix(dir.path()).unwrap();
        let fault = store_fault(
            "cannot read `part#1`",
            store.head(&object_store::path::Path::parse("part#1").unwrap()).await.unwrap_err(),
        );
        assert!(fault.domain == Domain::User && fault.to_string().contains("rename it"), "{fault}");
    }
}
