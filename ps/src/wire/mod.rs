//! What a client and the server of a ps process send each other, and the client's connection.
//!
//! Read in this order: `messages.rs` (values and pushes), `metadata.rs`, `row_columns.rs`, `own_widths.rs` (groups of other widths),
//! `requests.rs`, `remote_ps.rs` and `process.rs` (the client's connection to a process), `reply_times.rs`.

pub(crate) mod messages;
pub(crate) mod metadata;
pub(crate) mod own_widths;
pub(crate) mod process;
pub(crate) mod remote_ps;
pub(crate) mod reply_times;
pub(crate) mod requests;
pub(crate) mod row_columns;
