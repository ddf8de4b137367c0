//! A disk that fails with EIO while the program opens, reads, writes, syncs, renames or stats a file. After every failure the old output
//! stays or the new one is whole, the error names the file, and no row is left out. And a disk that hangs, and one that knows only the
//! plain rename.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

#[path = "../common/mod.rs"]
mod common;
mod failing_disk;
mod hangs;
mod plain_renames;
mod reads;
mod sweep;
mod writes;
