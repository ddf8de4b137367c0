//! The limit on the length of files, `ulimit -f`.

/// Has a write beyond the limit fail with an error, as one to a full disk does. By itself the system ends the program by SIGXFSZ: the model
/// would be lost, and what was written half would stay.
pub(crate) fn report_as_errors() {
    // SAFETY: no handler runs, since the signal is ignored from here on.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
