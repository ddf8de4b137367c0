//! Exit codes, and printing a fault.

use std::process::ExitCode;

use crate::Fault;
use crate::actors::{Domain, FaultKind};

use crate::logs::Format;
use crate::out;

/// The command did its work.
pub(crate) const DONE: u8 = 0;
/// A fault of the job, its data or the command line.
pub(crate) const USER: u8 = 2;
/// A fault of a disk, a network or another process.
pub(crate) const EXTERNAL: u8 = 3;
/// A defect of Forebay.
pub(crate) const INTERNAL: u8 = 4;
/// Stopped by Ctrl-C or SIGTERM before all rows were trained on.
pub(crate) const DRAINED: u8 = 5;
/// A model is saved, but its evaluation or the report failed, or it is not the model of the best evaluation, which was gone or could not be
/// kept. `launch` does not train again.
pub(crate) const ONLY_SAVED: u8 = 6;
/// Of a process that `launch` or `deploy/slurm` starts again after a fault: the training has ended, but a disk or a store did not take its
/// model, or the last checkpoint of a drained run, whose model is saved instead, if the job saves one. Training again would not help. Or
/// the checkpoints of the run cannot be reached.
pub(crate) const UNSAVED: u8 = 7;
/// Stopped at once by a second Ctrl-C or SIGTERM.
pub(crate) const INTERRUPTED: u8 = 130;

/// How a command ended that found no fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The command did its work.
    Done,
    /// A run was drained before all rows were trained on.
    Drained,
    /// A model is saved; its evaluation or the report failed, or it is not the best one, which was printed.
    OnlySaved,
    /// The training has ended, but a disk or a store did not take its model or its last checkpoint, which was printed. Only of a process as
    /// [`UNSAVED`] says.
    Unsaved,
    /// A second Ctrl-C or SIGTERM stopped it at once.
    Interrupted,
}

impl From<Ended> for ExitCode {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Done => Self::SUCCESS,
            Ended::Drained => Self::from(DRAINED),
            Ended::OnlySaved => Self::from(ONLY_SAVED),
            Ended::Unsaved => Self::from(UNSAVED),
            Ended::Interrupted => Self::from(INTERRUPTED),
        }
    }
}

/// A process that was killed when its run had ended, and started again, has done all: logs why.
pub(crate) fn unless_over(ended: Result<Ended, Fault>) -> Result<Ended, Fault> {
    match ended {
        Err(fault) if fault.kind == FaultKind::RunOver => {
            tracing::info!("{fault}");
            Ok(Ended::Done)
        }
        ended => ended,
    }
}

pub(crate) const HELP: &str = "Exit codes:
  0    done
  2    fault of the job, its data or the command line
  3    fault of a disk, a network or another process; trying again may help
  4    defect of Forebay
  5    drained by Ctrl-C or SIGTERM before all rows were trained on; of one trainer also: it has left the run, which goes on
  6    the model is saved, but its evaluation or the report failed (`forebay eval` evaluates it), or it is not that of the best evaluation
  130  stopped at once by a second Ctrl-C or SIGTERM";

/// Prints the fault and returns its exit code.
pub(crate) fn report(fault: &Fault, format: Format) -> ExitCode {
    match format {
        Format::Text => out::eprint_or_drop(format_args!("error: {fault}")),
        // No error: the process was asked to shut down.
        Format::Json if fault.kind == FaultKind::Drained => tracing::warn!("{fault}"),
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
