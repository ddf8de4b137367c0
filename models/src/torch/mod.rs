//! The backend on libtorch, through tch and its autograd: on the CPU or a CUDA device, and for modules of a user's own.
//!
//! Comes in: the batches of [`DenseModel`](crate::DenseModel). Goes out: the same numbers as from the native backend, up
//! to rounding: names, shapes and first values of the parameters are shared, and so are the optimizers' formulas.
//!
//! Read in this order: `batch.rs` (what a module sees), `module.rs` (modules: the spec's and the user's), `params.rs` (one
//! flat tensor of parameters), `optim.rs`, `model.rs` (the step in one piece), `transfer/` (in three, for a device).
//!
//! # Threads
//! The number of threads is libtorch's, one for the whole process: the last model made decides. With two threads or more
//! on a busy machine set the environment variable `OMP_WAIT_POLICY=passive` before the program starts: libgomp's
//! spinning costs up to 17 times the step (measured: 650 ms instead of 38), waiting passively 5%.
//!
//! # CUDA
//! A program built against the CPU libraries runs on CUDA where torch of the same version ([`LIBTORCH`]) is installed: call
//! [`init_cuda`] first thing in `main`, and start it with `LD_LIBRARY_PATH=<site-packages>/torch/lib`.

mod batch;
mod device;
mod model;
mod module;
mod optim;
mod params;
mod transfer;

pub use batch::TorchBatch;
pub use device::Device;
pub use model::TorchModel;
pub use module::{ModuleShape, TorchModule};
/// The very tch that this crate is built with: a module of a user's own has to use it, not another version.
pub use tch;

use crate::ModelError;

/// The version of libtorch that this crate is built with.
pub const LIBTORCH: &str = "2.11.0";

/// Loads libtorch's CUDA part if there is one on the library path, and says whether there was. Never fails otherwise.
///
/// Call it **first thing in `main`**: one question about CUDA before it, and libtorch remembers for good that there is
/// none. Needed because nothing in the program refers to that library, so the linker leaves it out.
pub fn init_cuda() -> bool {
    // SAFETY: the name is a NUL-terminated literal. Loading runs the library's initialisers: libtorch's own, made for that.
    // The handle is kept open for good on purpose.
    let handle = unsafe { libc::dlopen(c"libtorch_cuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    !handle.is_null()
}

impl From<tch::TchError> for ModelError {
    /// The first line: what follows is a C++ stack trace.
    fn from(error: tch::TchError) -> ModelError {
        let text = error.to_string();
        ModelError::Backend(text.lines().next().unwrap_or("libtorch failed without a message").to_string())
    }
}
