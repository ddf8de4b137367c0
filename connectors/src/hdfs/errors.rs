//! Errors of hdfs-native as errors of a store, and back.

use std::error::Error as StdError;

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

/// Leaves out the stack trace of Java that a NameNode sends with its errors, and the numbers of an error of Kerberos.
pub(super) fn without_trace(error: Error) -> Error {
    match error {
        Error::Generic { store, source } => Error::Generic { store, source: first_line(source) },
        Error::NotFound { path, source } => Error::NotFound { path, source: first_line(source) },
        other => other,
    }
}

fn first_line(source: Box<dyn StdError + Send + Sync>) -> Box<dyn StdError + Send + Sync> {
    let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
    match source.downcast::<HdfsError>().map(|error| *error) {
        Ok(HdfsError::RPCError(exception, said)) => Box::new(HdfsError::RPCError(exception, first(said))),
        Ok(HdfsError::FatalRPCError(exception, said)) => Box::new(HdfsError::FatalRPCError(exception, first(said))),
        Ok(HdfsError::GSSAPIError(_, _, said)) => Box::new(HdfsError::SASLError(said)),
        Ok(other) => Box::new(other),
        Err(source) => source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_trace_of_the_namenode_is_left_out() {
        let said = "Cannot create file/x. Name node is in safe mode.\n\tat org.apache.hadoop.hdfs.A.b(A.java:7)";
        for exception in ["hdfs.server.namenode.SafeModeException", "java.io.FileNotFoundException"] {
            let error = without_trace(from_hdfs(HdfsError::RPCError(exception.into(), said.into())));
            let text = error.to_string();
            assert!(text.contains("is in safe mode.") && !text.contains("A.java"), "{text}");
        }
    }
}
