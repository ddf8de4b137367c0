//! A process of `forebay launch` has the name of its program, and ends when `launch` ends, in any way.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::Fault;

/// Asks the kernel to kill this process when the thread that started it ends: the main thread of the `launch` with the process id `parent`.
/// Fails if that process has already ended. Names this process after its program: `launch` starts it by the number of an open file, which
/// the kernel takes for its name.
pub(crate) fn end_with(parent: u32) -> Result<(), Fault> {
    if let Some(name) = std::env::args_os().next().and_then(name_of) {
        // Only `ps` and `top` show it.
        let _ = rustix::thread::set_name(&name);
    }
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

/// The name of the file of a program.
fn name_of(program: OsString) -> Option<CString> {
    let name = Path::new(&program).file_name()?.to_owned();
    CString::new(name.into_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_after_the_file_of_its_program() {
        for (program, name) in
            [("/opt/bin/forebay", Some("forebay")), ("forebay", Some("forebay")), ("/", None), ("", None)]
        {
            let expected = name.map(|name| CString::new(name).unwrap());
            assert_eq!(name_of(program.into()), expected, "{program:?}");
        }
    }
}
