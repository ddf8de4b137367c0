//! Exit codes, and printing a fault.

use std::process::ExitCode;

use crate::Fault;
use crate::actors::{Domain, FaultKind};

use crate::logs::Format;

/// A fault of the job, its data or the command line.
pub(crate) const USER: u8 = 2;
/// A fault of a disk, a network or another process.
pub(crate) const EXTERNAL: u8 = 3;
/// A defect of Forebay.
pub(crate) const INTERNAL: u8 = 4;
/// Stopped by a signal before the last row; what was trained on is kept.
pub(crate) const DRAINED: u8 = 5;
/// Stopped by a second Ctrl-C or SIGTERM.
pub(crate) const INTERRUPTED: i32 = 130;

pub(crate) const HELP: &str = "Exit codes:
  0    done, also after a drain
  2    fault of the job, its data or the command line
  3    fault of a disk, a network or another process; trying again may help
  4    defect of Forebay
  5    stopped by a signal before the last row; what was trained on is kept
  130  stopped at once by a second Ctrl-C or SIGTERM";

/// Prints the fault and returns its exit code.
pub(crate) fn report(fault: &Fault, format: Format) -> ExitCode {
    match format {
        Format::Text => eprintln!("error: {fault}"),
        Format::Json => {
            tracing::error!(domain = ?fault.domain, retryable = fault.retryable, stage = fault.stage, "{fault}")
        }
    }
    if fault.kind == FaultKind::Drained {
        return ExitCode::from(DRAINED);
    }
    ExitCode::from(match fault.domain {
        Domain::User => USER,
        Domain::External => EXTERNAL,
        Domain::Internal => INTERNAL,
    })
}
