//! The backend on libtorch, through tch and its autograd: on the CPU or a CUDA device, also for modules of a user's own.
//!
//! It computes the same numbers as the native backend, up to rounding. Both share the parameters' names, shapes and first values, and the
//! optimizers' formulas.
//!
//! Read in this order: `batch.rs` (the input of a module), `module.rs` (modules: the spec's and the user's), `dropout.rs`, `params.rs` (one
//! flat tensor of parameters), `graph.rs` (forward and autograd), `non_finite.rs` (errors), `dense_optimizer.rs`, `model.rs` (the step in
//! one call), `transfer/` (the step in three parts).
//!
//! # Threads
//! libtorch has one number of threads for the whole process: the model that is made last sets it. With two threads or more
//! on a busy machine set the environment variable `OMP_WAIT_POLICY=passive` before the program starts: libgomp's
//! spinning costs up to 17 times the step (measured: 650 ms instead of 38), waiting passively 5%.
//!
//! # CUDA
//! A program built against the CPU libraries runs on CUDA where torch of the same version ([`LIBTORCH`]) is installed: call
//! [`init_cuda`] first thing in `main`, and start it with `LD_LIBRARY_PATH=<site-packages>/torch/lib`.

mod attention;
mod bags;
mod batch;
mod dense_optimizer;
mod device;
mod dropout;
mod final_mlp;
mod graph;
mod layer;
mod model;
mod module;
mod non_finite;
mod params;
mod transfer;
mod two_towers;

pub use batch::TorchBatch;
pub use device::Device;
pub use model::TorchModel;
pub use module::{ModuleShape, TorchModule};
/// The tch that this crate is built with. A module of a user's own has to use this version.
pub use tch;

use crate::ModelError;

/// The version of libtorch that this crate is built with.
pub const LIBTORCH: &str = "2.11.0";

/// Loads libtorch's CUDA part if it is on the library path. Returns whether it was loaded.
///
/// Call it **first thing in `main`**: if libtorch is asked about CUDA earlier, it keeps the answer that there is no CUDA. Without the call
/// the linker leaves that library out, because nothing in the program refers to it.
pub fn init_cuda() -> bool {
    // SAFETY: the name is a NUL-terminated literal. Loading runs the library's initialisers: libtorch's own, made for that.
    // The handle is kept open for good on purpose.
    let handle = unsafe { libc::dlopen(c"libtorch_cuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    !handle.is_null()
}

impl From<tch::TchError> for ModelError {
    /// Keeps the first line: a C++ stack trace follows it. libtorch has one type for all errors, so the text tells an
    /// error of the device from a wrong call of a module.
    fn from(error: tch::TchError) -> ModelError {
        const DEVICE: [&str; 6] =
            ["out of memory", "not enough memory", "can't allocate memory", "CUDA", "cuDNN", "CUBLAS"];
        let text = error.to_string();
        let line = text.lines().next().unwrap_or("libtorch failed without a message").to_string();
        if DEVICE.iter().any(|word| line.contains(word)) { ModelError::Device(line) } else { ModelError::Module(line) }
    }
}
