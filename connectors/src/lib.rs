//! Input and output of Forebay: Parquet, Arrow IPC, CSV, JSON lines, Criteo text, synthetic rows, streams of record batches; local disk,
//! HDFS, S3.
//!
//! Every source yields [`Rows`]: an Arrow `RecordBatch` with its lineage. `forebay-pipelines` decides what the columns
//! mean.
//!
//! ```text
//!  Input ──list──► DataFile ──► splits ──shuffle (seed, epoch), cut into windows──┐
//!                                                                                 ▼
//!  next() ◄── DecodePool, items in the order of the splits ◄── Prefetch, reads ranges ahead
//!             at most `decode_ahead_bytes` wait                at most `read_ahead_bytes` are in memory
//! ```
//!
//! A program makes one [`Stores`] and gives it to inputs and folders ([`Input::with_stores`],
//! [`staged::Folder::with_stores`]). It holds the IO threads, the open connections and the limits. Nothing is global but
//! what a process has once: the settings of Hadoop that its environment names (`hdfs/hadoop_conf.rs`), whether its log has said that a file
//! system cannot flush folders (`staged/sync.rs`), tables of constants, and the fail points of tests (`staged/fail_points.rs`).
//!
//! Read these files in this order:
//!
//! 1. `disks`, `fstab`, `stores`, `hdfs/`, `s3`, `local_files`, `store_error`: the stores, and faults from their errors. `throttle`: a
//!    slow store, for tests.
//! 2. `file`, `partition/`, `partition_columns`, `input/`, `around`: which files there are, and which folders a predicate selects.
//!    `identity`: whether they are the same files as before. `names`: names of columns in messages.
//! 3. `options`, `rows`, `row_places`, `split`, `lease`, `window`: the output of a source, and its order. `nested`: the fields in a type.
//! 4. `prefetch`, `read_ahead`, `read_ahead_growth`, `decode_pool`, `decode_growth`, `next_rows`: fetching ahead and decoding on several
//!    threads, the same for every source.
//! 5. `column_types`, `typed_columns`, `typed_splits`, `requests`: files whose columns have types, and which ranges are read.
//!    `parquet/`, `arrow_ipc/`, `text/` (all formats of one row per line), `criteo/`, `csv/`, `json_lines/`, `synthetic/`, `stream`: the
//!    sources. `format`, `format_of`, `file_source`: the source of files in a format.
//! 6. `staged/`, `convert/`: folders that appear whole or not at all, and rows written into them. `inspect/`: what data
//!    there is.
//!
//! No file imports one that comes after it in this list, except for `row_places`, which counts the lines of `text/`.

mod column_types;
mod decode_growth;
mod decode_pool;
mod disks;
mod file;
mod file_source;
mod format;
mod format_of;
mod fstab;
mod hdfs;
mod identity;
mod lease;
mod local_files;
mod names;
mod nested;
mod next_rows;
mod options;
mod partition_columns;
mod prefetch;
mod read_ahead;
mod read_ahead_growth;
mod requests;
mod row_places;
mod rows;
#[cfg(feature = "s3")]
mod s3;
mod split;
mod store_error;
mod stores;
mod text;
mod typed_columns;
mod typed_splits;
mod window;

mod around;
pub mod arrow_ipc;
pub mod convert;
pub mod criteo;
pub mod csv;
pub mod input;
pub mod inspect;
pub mod json_lines;
pub mod parquet;
pub mod partition;
pub mod staged;
pub mod stream;
pub mod synthetic;
pub mod throttle;

pub use arrow_ipc::ArrowSource;
pub use criteo::{Categories, CriteoSource};
pub use csv::{CsvOptions, CsvSource, header_to_add, number_among, other_delimiter};
pub use file::DataFile;
pub use file_source::{FileFormat, FileSource};
pub use format::{FileColumn, Format, Integers, ValueKind};
pub use format_of::format_of;
pub use input::Input;
pub use json_lines::JsonLinesSource;
pub use lease::{DataPlan, Lease, Leases, LocalLeases, PlanCheck};
pub use options::ReadOptions;
pub use parquet::ParquetSource;
pub use partition::Predicate;
pub use row_places::RowPlaces;
pub use rows::{Rows, WindowMark};
pub use split::SplitOrder;
pub use stores::Stores;
pub use stream::{BatchSender, StreamSource, channel};
pub use synthetic::{Synthetic, SyntheticSource};
pub use text::{BadRowsFile, MAX_LINE, OnBadRow, TextSource, is_hex_of_text, is_integer_of_text, is_number_of_text};
