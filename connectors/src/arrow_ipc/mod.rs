//! Arrow IPC: the file format (Feather version 2) and the stream format, plain or compressed with LZ4 or zstd.
//!
//! Read in this order: `layout` (which messages a file has, and where), `blocks` (which buffers of a message are wanted), `unpack` (these
//! buffers as arrays), `types`, `dictionaries`, `open` (all files), `source`.
//!
//! A file may be damaged or hostile. Every place and length is checked against the size of the file before a read or an allocation. A
//! compressed buffer grows with its unpacked bytes, not with the length that it claims. A panic of Arrow's decoder becomes a fault that
//! names the file.

mod blocks;
mod dictionaries;
mod layout;
pub(crate) mod open;
mod source;
mod types;
mod unpack;

pub use source::ArrowSource;
