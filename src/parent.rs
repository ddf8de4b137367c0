//! Ends a process of `forebay launch` when `launch` ends, in whatever way.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::Fault;

/// Asks the kernel to kill this process when the thread that started it ends: the main thread of the `launch` with the process id `parent`.
/// Fails if that process has already ended.
pub(crate) fn end_with(parent: u32) -> Result<(), Fault> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| {
        Fault::external("cannot ask the kernel to end this process together with its launch").because(e)
    })?;
    // The parent may have ended before this call.
    let now = getppid().map(Pid::as_raw_nonzero).map(|id| id.get().unsigned_abs());
    if now == Some(parent) {
        return Ok(());
    }
    Err(Fault::external("the launch that started this process has ended"))
}
