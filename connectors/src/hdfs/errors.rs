//! Errors of hdfs-native as errors of a store, and back.

use hdfs_native::HdfsError;
use object_store::Error;

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

/// A store's error as an error of hdfs-native.
pub(super) fn into_hdfs(error: Error) -> HdfsError {
    match error {
        Error::Generic { source, .. } => match source.downcast() {
            Ok(error) => *error,
            Err(source) => HdfsError::OperationFailed(source.to_string()),
        },
        error => HdfsError::OperationFailed(error.to_string()),
    }
}
