//! Whether standard output was closed when the process began (`>&-`). Before `main` the standard library opens `/dev/null` in its place,
//! which takes all that is written to it: a result would be lost without a word.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the process was started without a standard output.
pub(crate) fn was_closed() -> bool {
    WAS_CLOSED.load(Relaxed)
}

// SAFETY: before the standard library starts, the C library calls each function of this section once. It passes arguments that the function
// does not read. `look` uses nothing that needs the standard library to have started.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: it asks for the flags of a descriptor, which need not be open.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags == -1, Relaxed);
}
