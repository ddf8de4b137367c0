//! The running program, as the program of child processes, even if its path has another program meanwhile, or none.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::Fault;

/// This program, held open. Its commands can be started while this exists.
pub(super) struct RunningProgram {
    file: File,
    /// Where it was at its start.
    path: PathBuf,
}

/// Variables of processes on several machines, which `forebay role` reads.
const OF_OTHERS: [&str; 5] =
    ["FOREBAY_LISTEN", "FOREBAY_ADVERTISE", "FOREBAY_TLS_CERT", "FOREBAY_TLS_KEY", "FOREBAY_TLS_CA"];

impl RunningProgram {
    /// The program of this process.
    pub(super) fn find() -> Result<Self, Fault> {
        let cannot = |e: io::Error| Fault::external("cannot find this program").because(e);
        let path = std::env::current_exe().map_err(cannot)?;
        // Without reading it: a program may be executable only.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/proc/self/exe").map_err(cannot)?;
        Ok(Self { file, path })
    }

    /// A command of this program, without the variables that say where another process listens and which certificate it has: the processes
    /// of this command talk to each other on this machine only, and a token is enough. Lists of processes show the path, but the name of
    /// the process is the number of a file until the process takes another name ([`parent::end_with`](crate::parent::end_with)).
    pub(super) fn command(&self) -> Command {
        // The kernel finds the file before it closes it for the new program.
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0(&self.path);
        OF_OTHERS.iter().for_each(|variable| _ = command.env_remove(variable));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: with an address of the user's environment, processes of `launch` did not find each other.
    #[test]
    fn a_command_has_no_address_of_another_process() {
        let command = RunningProgram::find().unwrap().command();
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert!(OF_OTHERS.iter().all(|variable| removed.iter().any(|name| name == variable)), "{removed:?}");
    }

    #[test]
    fn a_program_that_is_removed_can_be_started() {
        let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let path = dir.path().join("program");
        // A copy would be open for writing in processes that other tests start at the same time.
        std::fs::hard_link(std::env::current_exe().unwrap(), &path).unwrap();
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        let program = RunningProgram { file, path };
        for removed in [false, true] {
            if removed {
                std::fs::remove_file(&program.path).unwrap();
            }
            let output = program.command().arg("--list").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("a_program_that_is_removed_can_be_started"), "{output:?}");
        }
    }
}
