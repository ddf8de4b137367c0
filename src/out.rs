//! Standard output. A closed standard output (`| head -1`) is not an error: the reader has what it wanted.

use std::fmt::Display;
use std::io::{ErrorKind, Write as _};

use crate::Fault;

/// Prints a line.
pub(crate) fn print(line: impl Display) -> Result<(), Fault> {
    match writeln!(std::io::stdout().lock(), "{line}") {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Fault::external("cannot write to standard output").because(e))
        }
        _ => Ok(()),
    }
}
