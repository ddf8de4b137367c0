//! How a running trainer makes its checkpoints: the cut, and the thread that writes it.
//!
//! Read in this order: `cut.rs` (what the stages do at a barrier), `checkpoint_thread.rs`, `writer.rs`, `drain.rs` and `drained_to.rs` (a
//! run that is drained), `last.rs` (the last checkpoint). With several trainers: `cluster_run.rs`, `cut_client.rs` (orders of the
//! coordinator), `shared_cut.rs`, `kept_file.rs`.

pub(crate) mod checkpoint_thread;
pub(crate) mod cluster_run;
pub(crate) mod cut;
pub(crate) mod cut_client;
pub(crate) mod drain;
pub(crate) mod drained_to;
pub(crate) mod kept_file;
pub(crate) mod last;
pub(crate) mod shared_cut;
pub(crate) mod writer;

pub(crate) use cluster_run::{follow_cuts, watch_run};
