//! The program `forebay`: see `forebay --help`.

mod commands;
mod exit;
mod logs;
mod progress;
mod stop;
mod usage;

use std::process::ExitCode;

use clap::Parser;
use commands::Command;

/// Rows make garbage of a size that the system's allocator returns and fetches again page by page; this one keeps it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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

fn main() -> ExitCode {
    // Before anything asks libtorch about CUDA: one early question caches "none" for good.
    #[cfg(feature = "torch")]
    forebay::models::init_cuda();

    let program = Program::parse();
    if let Err(message) = logs::start(program.log_format, &program.log) {
        eprintln!("error: {message}");
        return ExitCode::from(exit::USER);
    }
    match commands::run(program.command, program.log_format, &program.log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => exit::report(&fault, program.log_format),
    }
}
