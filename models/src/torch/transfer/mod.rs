//! The step in three parts: copies to and from the device overlap with compute. Only `download.rs` waits for the device.
//!
//! ```text
//!  thread of upload        thread of train                    thread of download
//!  check, pack ─ copy up → step (kernels queued) ─ copy down → wait, unpack, check ─┐
//!       ↑                                                                           │
//!       └──────────────── the buffers, free again ─────────────────────────────────────┘
//! ```
//!
//! A batch travels in [`TransferBuffers`](buffers::TransferBuffers): host and device memory for one batch, which is reused. The buffers
//! move from part to part by value, so two parts never use them at once. They are free when the results are on the host: then the device
//! does not use them. There are as many buffers as batches in flight; tickets and links bound the number of batches, and so the memory.
//!
//! Read in this order: `layout.rs` (where each number is), `buffers.rs` (the trait), `host.rs` and `cuda.rs` (its two
//! implementations; all calls of CUDA are in the second), then the three parts: `upload.rs`, `launch.rs`, `download.rs`.

mod buffers;
mod cuda;
mod download;
mod host;
mod launch;
mod layout;
mod upload;

pub(super) use launch::launch;
pub(super) use upload::Uploader;

use std::sync::mpsc::Sender;

use buffers::TransferBuffers;
use layout::{DownloadLayout, UploadLayout};

/// A batch on the device, or on its way there.
struct BatchInFlight {
    /// The number of the batch.
    id: u64,
    buffers: Box<dyn TransferBuffers>,
    upload: UploadLayout,
    download: DownloadLayout,
    /// Takes the buffers back when they are free.
    return_to: Sender<Box<dyn TransferBuffers>>,
}
