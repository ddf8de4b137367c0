//! The program as a library: `forebay` is [`main`] with an empty [`Registry`], and a program of your own is [`main`] with
//! your stages, sources and models.
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     forebay::cli::main(forebay::Registry::default())
//! }
//! ```
//!
//! `launch` starts the program that it runs in, so every process of a cluster has the same registry.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};

use crate::commands::{self, Command};
use crate::pipelines::{Context, Registry};
use crate::{exit, file_limit, heap, logs, out};

/// The allocator of the program, for a program of your own:
/// `#[global_allocator] static ALLOCATOR: forebay::cli::MiMalloc = forebay::cli::MiMalloc;`
///
/// The system's allocator returns the memory of batches to the kernel and fetches it again page by page; this one keeps it.
pub use mimalloc::MiMalloc;

/// Trains click models on more rows than fit in memory, and reads the rows while it computes
#[derive(Parser)]
#[command(name = "forebay", version, propagate_version = true, after_help = exit::HELP)]
struct Program {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    logs: logs::Logs,
}

/// Runs the program on the arguments of this process; jobs find the stages, sources and models of `registry` by name.
pub fn main(registry: Registry) -> ExitCode {
    // Before any other question about CUDA: if libtorch is asked earlier, it caches the answer "none" for the whole process.
    #[cfg(feature = "torch")]
    crate::models::init_cuda();

    file_limit::report_as_errors();
    heap::keep_freed_memory();
    let program = Program::parse();
    if let Err(message) = program.logs.start() {
        out::eprint_or_drop(format_args!("error: {message}"));
        return ExitCode::from(exit::USER);
    }
    match commands::run(program.command, &program.logs, &Context::new(registry), Program::command) {
        Ok(ended) => ended.into(),
        Err(fault) => exit::report(&fault, program.logs.log_format),
    }
}
