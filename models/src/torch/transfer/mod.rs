//! Batches to the device and results back, beside compute.
//!
//! Comes in: batches on the host. Goes out: logits and gradients on the host. Only `download.rs` waits for the device.
//!
//! ```text
//!  thread of upload        thread of train                    thread of download
//!  check, pack ─ copy up → step (kernels queued) ─ copy down → wait, unpack, check ─┐
//!       ↑                                                                           │
//!       └──────────────── the slot, free again ─────────────────────────────────────┘
//! ```
//!
//! A batch travels in a [`Slot`](slot::Slot): host and device memory for one batch, used again and again. It is moved from
//! part to part, so two of them never touch one slot, and it is free when its results are on the host: by then everything
//! that read or wrote it on the device is done. There are as many slots as batches under way; what bounds those (tickets,
//! links) bounds the memory.
//!
//! Read in this order: `layout.rs` (which number lies where), `slot.rs` (what a slot does), `host.rs` and `cuda.rs` (the two
//! kinds; the second is all there is of CUDA), then the three parts: `upload.rs`, `launch.rs`, `download.rs`.

mod cuda;
mod download;
mod host;
mod launch;
mod layout;
mod slot;
mod upload;

pub(super) use download::Facts;
pub(super) use launch::launch;
pub(super) use upload::Uploader;

use std::sync::mpsc::Sender;

use layout::{Down, Up};
use slot::Slot;

/// A batch that is on the device, or on its way there.
struct OnDevice {
    slot: Box<dyn Slot>,
    up: Up,
    down: Down,
    /// Where the slot goes when it is free.
    home: Sender<Box<dyn Slot>>,
}
