//! The program `forebay`: see `forebay --help`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: forebay::cli::MiMalloc = forebay::cli::MiMalloc;

fn main() -> ExitCode {
    forebay::cli::main(forebay::Registry::default())
}
