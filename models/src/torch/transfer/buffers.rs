//! The memory of one batch in flight, on the host and on the device, and the copies between them.

use std::time::Duration;

use tch::Tensor;

use crate::ModelError;

/// Makes buffers.
pub(super) trait BufferAllocator: Send {
    /// Empty buffers.
    fn allocate(&self) -> Result<Box<dyn TransferBuffers>, ModelError>;
}

/// Host and device memory for one batch. All numbers are words of 32 bits, as `i32`.
///
/// For each batch the methods are called in the order of this list, possibly from several threads in turn.
pub(super) trait TransferBuffers: Send {
    /// Makes room for the words to upload and to download. Returns the host memory to fill, `[upload_words]`, with unspecified
    /// content. Waits for the device only if the memory has to grow.
    fn reserve(&mut self, upload_words: usize, download_words: usize) -> Result<&mut [i32], ModelError>;

    /// Starts the copy to the device.
    fn start_upload(&mut self) -> Result<(), ModelError>;

    /// The uploaded words on the device, and the memory for the results; both may be longer than needed. Kernels that are launched after
    /// this call run after the upload.
    fn tensors(&mut self) -> Result<(Tensor, Tensor), ModelError>;

    /// Starts the copy of the results to the host. It runs after every kernel that was launched so far.
    fn start_download(&mut self) -> Result<(), ModelError>;

    /// Waits for the results, `[download_words]`, and measures how long the device worked between the last two calls. After that the device
    /// does not use the buffers.
    fn wait(&mut self) -> Result<(&[i32], Duration), ModelError>;
}

/// Words to make room for when `wanted` do not fit: a quarter more, so that batches of slowly growing size seldom allocate.
pub(super) fn with_headroom(wanted: usize) -> usize {
    (wanted + wanted / 4).next_multiple_of(super::layout::ALIGN).max(super::layout::ALIGN)
}
