//! The token of a run, in memory. It is gone when all processes of the run have ended, in any way.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use super::memory_file::MemoryFile;
use crate::Fault;

/// A random token in a file of memory, which the processes that this one starts inherit.
pub(super) struct Token(MemoryFile);

impl Token {
    pub(super) fn new() -> Result<Self, Fault> {
        Self::make().map_err(|e| Fault::external("cannot make a token for the run").because(e))
    }

    fn make() -> io::Result<Self> {
        let mut bytes = [0_u8; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        MemoryFile::new("forebay-token", token.as_bytes()).map(Self)
    }

    /// The path of the token, for this process and its children.
    pub(super) fn file(&self) -> PathBuf {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn processes_that_are_started_read_the_token_and_only_this_user_can() {
        let token = Token::new().unwrap();
        let path = token.file();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()), "{text}");
        for _ in 0..2 {
            assert_eq!(Command::new("cat").arg(&path).output().unwrap().stdout, text.as_bytes());
        }
        let link = std::fs::read_link(&path).unwrap();
        assert_eq!(link.to_string_lossy(), "/memfd:forebay-token (deleted)");
        drop(token);
    }
}
