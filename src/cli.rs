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

use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use crate::Fault;
use crate::commands::{self, Command};
use crate::pipelines::{Context, Registry};
use crate::{exit, file_limit, heap, logs, out};

/// The allocator of the program, for a program of your own:
/// `#[global_allocator] static ALLOCATOR: forebay::cli::MiMalloc = forebay::cli::MiMalloc;`
///
/// The system's allocator returns the memory of batches to the kernel and fetches it again page by page; MiMalloc keeps it.
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

/// Runs the program on the arguments of this process; jobs find the stages, sources and models of `registry` by name. Blocks, and starts
/// threads with runtimes of their own: call it outside of a runtime, so not from a function with `#[tokio::main]`.
pub fn main(registry: Registry) -> ExitCode {
    if tokio::runtime::Handle::try_current().is_ok() {
        out::eprint_or_drop(
            "error: forebay::cli::main was called inside a runtime of tokio, which it would block: call it from a `main` without \
             #[tokio::main]",
        );
        return ExitCode::from(exit::USER);
    }
    // Before any other question about CUDA: an earlier question makes libtorch cache the answer "none" for the whole process.
    #[cfg(feature = "torch")]
    crate::models::init_cuda();

    file_limit::report_as_errors();
    heap::keep_freed_memory();
    let parsed = without_empty_variables(Program::command()).try_get_matches();
    let Program { command, logs } = match parsed.and_then(|matches| Program::from_arg_matches(&matches)) {
        Ok(program) => program,
        Err(asked) if !asked.use_stderr() => return print_help(&asked),
        Err(wrong) => wrong.exit(),
    };
    if let Err(message) = logs.start() {
        out::eprint_or_drop(format_args!("error: {message}"));
        return ExitCode::from(exit::USER);
    }
    let ended = fault_of_panic(|| commands::run(command, &logs, &Context::new(registry), Program::command));
    match ended {
        Ok(ended) => ended.into(),
        Err(fault) => exit::report(&fault, logs.log_format),
    }
}

/// An environment variable without a value counts as one that is not set: templates of compose and Kubernetes write such variables.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    command
        .mut_args(|arg| match arg.get_env().is_some_and(is_empty) {
            true => arg.env(Resettable::Reset),
            false => arg,
        })
        .mut_subcommands(without_empty_variables)
}

/// Prints the help or the version that was asked for.
fn print_help(asked: &clap::Error) -> ExitCode {
    match out::print(asked.render().to_string().trim_end()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => exit::report(&fault, logs::Format::default()),
    }
}

/// Runs a command. A panic becomes a fault: an uncaught panic would end the program with code 101, which is no exit code of the program.
fn fault_of_panic<T>(run: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(Fault::of_panic("the command panicked", &*panic)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::Domain;

    /// The long names of the options of a command, in the order of its help.
    fn options_in_help(command: &mut clap::Command) -> Vec<String> {
        let help = command.render_long_help().to_string();
        let name = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        // `      --log <FILTER>`, `  -q, --quiet`; an example may begin with `  --set`.
        let lines = help
            .lines()
            .filter_map(|line| line.strip_prefix("      --").or_else(|| line.get(4..)?.strip_prefix(", --")));
        lines.map(name).collect()
    }

    #[test]
    fn options_of_every_command_are_last_in_the_help_of_each() {
        let mut program = Program::command();
        program.build();
        let mut left = vec![program];
        while let Some(mut command) = left.pop() {
            left.extend(command.get_subcommands().filter(|command| command.get_name() != "help").cloned());
            let options = options_in_help(&mut command);
            let last = &options[options.len().saturating_sub(5)..];
            assert_eq!(last, ["log-format", "log", "quiet", "help", "version"], "{}: {options:?}", command.get_name());
        }
    }

    #[test]
    fn a_panic_of_a_command_is_a_fault_with_an_exit_code_of_the_program() {
        assert_eq!(fault_of_panic(|| Ok(7)).unwrap(), 7);
        let fault = fault_of_panic::<()>(|| panic!("planted")).unwrap_err();
        assert_eq!((fault.to_string().as_str(), fault.domain), ("the command panicked: planted", Domain::Internal));
        let fault = fault_of_panic::<()>(|| panic!("failed to spawn thread: no more")).unwrap_err();
        assert_eq!(fault.domain, Domain::External, "{fault}");
    }
}
