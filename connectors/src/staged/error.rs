//! What went wrong with a folder or a file that is written.

use std::error::Error;
use std::fmt::Display;
use std::io;

use forebay_actors::{Fault, FaultKind};
use parquet::errors::ParquetError;
use rustix::io::Errno;

/// The longest name of most file systems, in bytes.
pub(super) const LONGEST_NAME: usize = 255;

pub(super) fn made_meanwhile(name: &str) -> Fault {
    Fault::user(format!("another program has made `{name}` in the meantime: name another folder"))
}

/// A fault for an error on the file `name`. An error of the disk is told in the user's words; a fault of a store that a writer has wrapped
/// is returned unchanged.
///
/// The fault keeps the error as its source. Its kind is [`FaultKind::NoSpace`] or [`FaultKind::NotFound`] if that is what is wrong.
pub fn fault(name: impl Display, what: &str, error: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
    let error = match inner(error.into()) {
        Ok(fault) => return fault,
        Err(error) => error,
    };
    let mut cause: Option<&(dyn Error + 'static)> = Some(error.as_ref());
    let (mut kind, mut is_loop, mut is_too_long) = (None, false, false);
    while let Some(e) = cause {
        if let Some(io) = e.downcast_ref::<io::Error>() {
            kind = Some(io.kind());
            is_loop = io.raw_os_error() == Some(Errno::LOOP.raw_os_error());
            is_too_long = io.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error());
        }
        cause = e.source();
    }
    let text = format!("{what} `{name}`");
    match kind {
        _ if is_loop => Fault::user(format!("{text}: it is a symbolic link that leads back to itself ({error})")),
        _ if is_too_long => Fault::user(format!(
            "{text}: most file systems take names of at most {LONGEST_NAME} bytes, and paths of at most 4,096 ({error})"
        )),
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            Fault::external(format!("{text}: the disk is full; make room or name a folder on another disk ({error})"))
                .kind(FaultKind::NoSpace)
        }
        Some(io::ErrorKind::FileTooLarge) => Fault::external(format!(
            "{text}: the file would be longer than this process may write (`ulimit -f` says how long) or than the disk allows; raise the \
             limit (of this process: `prlimit --fsize=unlimited --pid {}`) or name a folder on another disk ({error})",
            std::process::id()
        )),
        Some(io::ErrorKind::AlreadyExists) => Fault::user(format!(
            "{text}: something has this name already, if nothing is seen there a broken symbolic link ({error})"
        )),
        Some(io::ErrorKind::NotFound) => Fault::user(format!("{text}: {error}")).kind(FaultKind::NotFound),
        Some(
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidFilename,
        ) => Fault::user(format!("{text}: {error}")),
        _ => Fault::external(format!("{text}: {error}")),
    }
    .with_source(error)
}

/// The fault that lies in an error of the Parquet writer, or of what it writes to.
fn inner(error: Box<dyn Error + Send + Sync>) -> Result<Fault, Box<dyn Error + Send + Sync>> {
    let error = match error.downcast::<Fault>() {
        Ok(fault) => return Ok(*fault),
        Err(error) => error,
    };
    let error = match error.downcast::<ParquetError>().map(|e| *e) {
        Ok(ParquetError::External(error)) => return inner(error),
        Ok(other) => return Err(other.into()),
        Err(error) => error,
    };
    match error.downcast::<io::Error>() {
        Ok(e) if e.get_ref().is_some_and(|e| e.is::<Fault>()) => match e.into_inner() {
            Some(error) => inner(error),
            None => Err("an error without a cause".into()),
        },
        Ok(e) => Err(e),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use forebay_actors::Domain;

    use super::*;

    #[test]
    fn errors_of_the_disk_are_those_that_pass_and_those_that_the_user_must_mend() {
        let of = |errno: Errno| fault("a", "cannot write", io::Error::from(errno));
        for (errno, words, kind) in [
            (Errno::NOSPC, "the disk is full", FaultKind::NoSpace),
            (Errno::DQUOT, "the disk is full", FaultKind::NoSpace),
            (Errno::FBIG, "ulimit -f", FaultKind::Other),
            (Errno::IO, "cannot write `a`", FaultKind::Other),
            (Errno::STALE, "cannot write `a`", FaultKind::Other),
        ] {
            let fault = of(errno);
            assert!(fault.domain == Domain::External && fault.to_string().contains(words), "{fault}");
            assert_eq!(fault.kind, kind, "{fault}");
            let (error, said) = (io::Error::from(errno), fault.to_string());
            assert_eq!(said.matches(&error.to_string()).count(), 1, "{said}");
            let cause = fault.source().and_then(|e| e.downcast_ref::<io::Error>()).unwrap();
            assert_eq!(cause.raw_os_error(), error.raw_os_error());
        }
        for errno in [Errno::ROFS, Errno::ACCESS, Errno::EXIST, Errno::ISDIR, Errno::NOTDIR, Errno::LOOP] {
            assert_eq!(of(errno).domain, Domain::User, "{errno}");
        }
    }
}
