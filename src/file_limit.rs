//! The limit on the length of files, `ulimit -f`.

/// Makes a write beyond the limit of file sizes fail with an error, like a write to a full disk. By default SIGXFSZ ends the program: the
/// model would be lost, and half-written files would stay.
pub(crate) fn report_as_errors() {
    // SAFETY: no handler runs, since the signal is ignored from here on.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
