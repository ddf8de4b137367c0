//! Bytes in and out of Forebay: Parquet, Criteo text, synthetic rows, streams of record batches.
//!
//! Every source yields [`Rows`]: an Arrow `RecordBatch` with the place it came from. What the columns mean is not
//! decided here.
//!
//! ```text
//!  store ──list──► files ──► splits ──shuffle (seed, epoch)──► turns
//!                                                              │ fetch ahead, `read_ahead_bytes`
//!                                                              ▼
//!                          next() ◄──in order of turns── decode threads, `decode_ahead_bytes`
//! ```
//! Read these files in this order: `store` (what lies where), `input` (what there is to read), `partition` (folders
//! that are columns), `split` (what comes
//! when), `feed` (fetching ahead), `pool` (decode threads), `parquet/source`, `criteo/source`.
mod decode_pool;
mod file;
mod hdfs;
mod lease;
mod names;
mod options;
mod prefetch;
mod rows;
#[cfg(feature = "s3")]
mod s3;
mod split;
mod store_error;
mod stores;
mod window;

pub mod convert;
pub mod criteo;
pub mod input;
pub mod inspect;
pub mod parquet;
pub mod partition;
pub mod staged;
pub mod stream;
pub mod synthetic;
pub mod throttle;

pub use criteo::{Categories, CriteoSource, OnBadRow};
pub use file::DataFile;
pub use input::Input;
pub use lease::{DataPlan, Lease, Leases, LocalLeases};
pub use options::{Position, ReadOptions};
pub use parquet::ParquetSource;
pub use partition::Predicate;
pub use rows::{Rows, WindowMark};
pub use split::SplitOrder;
pub use stores::Stores;
pub use stream::{BatchSender, StreamSource, channel};
pub use synthetic::{Synthetic, SyntheticSource};
