//! Writes the rows of any source into a folder of files, Parquet or Criteo text, in any store; and record batches as CSV. The folder
//! appears whole or not at all. The functions await the source and block on the store: call them on a thread of your own (or in
//! [`block_on`]), not on an arbiter.

mod csv;
mod encode;
mod encode_column;
mod infer;
mod options;
mod parquet;
mod parquet_types;
mod progress;
mod text;

pub use self::csv::to_csv;
pub use self::infer::{InferredColumn, infer_columns};
pub use self::options::{Encoding, ParquetOptions};
pub use self::parquet::{ParquetWriter, to_parquet};
pub use self::progress::{ConvertProgress, Written, block_on};
pub use self::text::{TextOptions, to_criteo_text};
