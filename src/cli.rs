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

use clap::Parser;

use crate::commands::{self, Command};
use crate::pipelines::{Context, Registry};
use crate::{exit, logs};

/// The allocator of the program, for a program of your own:
/// `#[global_allocator] static ALLOCATOR: forebay::cli::MiMalloc = forebay::cli::MiMalloc;`
///
/// The system's allocator returns the memory of batches to the kernel and fetches it again page by page; this one keeps it.
pub use mimalloc::MiMalloc;

/// IO-bound recommendation training: rows in, a trained click model out, IO hidden behind compute.
#[derive(Parser)]
#[command(version, propagate_version = true, after_help = exit::HELP)]
struct Program {
    #[command(subcommand)]
    command: Command,

    /// Logs on standard error, as text for people or as JSON for machines (progress included).
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: logs::Format,

    /// What is logged, for instance `debug` or `info,forebay_connectors=debug`.
    #[arg(long, global = true, default_value = "info", env = "FOREBAY_LOG", value_name = "FILTER")]
    log: String,
}

/// Runs the program on the arguments of this process; jobs find the stages, sources and models of `registry` by name.
pub fn main(registry: Registry) -> ExitCode {
    // Before anything asks libtorch about CUDA: one early question caches "none" for good.
    #[cfg(feature = "torch")]
    crate::models::init_cuda();

    let program = Program::parse();
    if let Err(message) = logs::start(program.log_format, &program.log) {
        eprintln!("error: {message}");
        return ExitCode::from(exit::USER);
    }
    match commands::run(program.command, program.log_format, &program.log, &Context::new(registry)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => exit::report(&fault, program.log_format),
    }
}
