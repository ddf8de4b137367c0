//! HDFS, read and written by `hdfs-native` without a JVM, as one `object_store`.
//!
//! `hdfs-native-object-store` renames and copies. A training run over a large cluster needs more. Read in this order:
//!
//! - `settings`, `hadoop_conf`, `connection`: clients by URL, `$HADOOP_CONF_DIR`, Kerberos from a ticket cache or a keytab.
//! - `cluster`: the state of a cluster in this process, and the state that all clusters share.
//! - `retry`, `silence`: waits for a NameNode that restarts, fails over or hangs.
//! - `read`, `pace`, `buffers`: asks for block locations once a file, overtakes a DataNode that stalls, reads around one
//!   that is lost.
//! - `explain`, `errors`: what went wrong, and what to do about it.
//! - `store`, `upload`, `growing_file`: all of it as an `ObjectStore`. It works on the threads of an IO runtime, so that the callers'
//!   threads only wait.

mod buffers;
mod cluster;
mod connection;
mod errors;
mod explain;
mod growing_file;
mod hadoop_conf;
mod pace;
mod read;
mod retry;
mod settings;
mod silence;
mod store;
mod upload;

pub(crate) use self::cluster::Shared;
pub(crate) use self::hadoop_conf::{holds_mount_link, one_name};
pub(crate) use self::store::HdfsStore;
