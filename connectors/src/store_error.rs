//! A store's error as a fault: whose it is, and whether a retry can help.

use std::error::Error;

use forebay_actors::{Fault, FaultKind};
use object_store::Error as StoreError;

/// An explanation that a store adds to an error, as the source of a `Generic` one.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Explained {
    pub(crate) text: String,
    /// Whether the user must mend it.
    pub(crate) users: bool,
    #[source]
    pub(crate) source: Option<Box<dyn Error + Send + Sync>>,
}

impl Explained {
    fn into_fault(self, what: &str) -> Fault {
        let text = format!("{what}: {}", self.text);
        let fault = if self.users { Fault::user(text) } else { Fault::external(text).retryable() };
        match self.source {
            Some(source) => fault.because(source),
            None => fault,
        }
    }
}

/// The fault of an operation that `what` names. A missing or forbidden file is the user's, the rest may pass.
pub(crate) fn store_fault(what: &str, error: StoreError) -> Fault {
    match error {
        StoreError::NotFound { .. } => {
            Fault::user(format!("{what}: it is not there (any more)")).because(error).kind(FaultKind::NotFound)
        }
        StoreError::Precondition { .. } => Fault::external(format!(
            "{what}: the file was replaced or changed after it was listed; start again, and write new data to new files"
        ))
        .because(error),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } | StoreError::InvalidPath { .. } => {
            Fault::user(what).because(error)
        }
        StoreError::Generic { source, .. } if source.is::<Explained>() => match source.downcast::<Explained>() {
            Ok(explained) => explained.into_fault(what),
            Err(source) => Fault::external(what).because(source),
        },
        other => Fault::external(what).retryable().because(other),
    }
}
