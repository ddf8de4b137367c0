//! A slot: the memory of one batch under way, on both sides, and the copies between them.
//!
//! The calls come in the order in which they stand here, round after round, from one thread after the other.

use std::time::Duration;

use tch::Tensor;

use crate::ModelError;

/// Makes slots.
pub(super) trait Engine: Send {
    /// An empty one.
    fn slot(&self) -> Result<Box<dyn Slot>, ModelError>;
}

/// Host and device memory for one batch. All numbers are words of 32 bits, as `i32`.
pub(super) trait Slot: Send {
    /// Makes room for `up` words there and `down` words back; gives the `up` words to fill on the host, with whatever was in
    /// them. Waits for the device only if it has to grow.
    fn stage(&mut self, up: usize, down: usize) -> Result<&mut [i32], ModelError>;

    /// Starts the copy to the device.
    fn upload(&mut self) -> Result<(), ModelError>;

    /// The words on the device, at least `up`, and room for at least `down` results. Kernels that are launched from now on
    /// run after the copy.
    fn arrived(&mut self) -> Result<(Tensor, Tensor), ModelError>;

    /// Starts the copy of the results to the host: after every kernel that was launched so far.
    fn download(&mut self) -> Result<(), ModelError>;

    /// Waits for the results: the `down` words, and how long the device worked between the last two calls. After that nothing
    /// on the device uses the slot.
    fn wait(&mut self) -> Result<(&[i32], Duration), ModelError>;
}

/// Words to make room for when `wanted` do not fit: a quarter more, so that batches of slowly growing size seldom pay.
pub(super) fn grown(wanted: usize) -> usize {
    (wanted + wanted / 4).next_multiple_of(super::layout::ALIGN).max(super::layout::ALIGN)
}
