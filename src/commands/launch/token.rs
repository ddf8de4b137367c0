//! The token of a run, in a file that only this user can read and that is removed when the run ends.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::Fault;

/// A random token in a file. Dropping it removes the file.
pub(super) struct Token {
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Token {
    pub(super) fn new() -> Result<Self, Fault> {
        Self::make().map_err(|e| Fault::external("cannot make a token for the run").because(e))
    }

    fn make() -> io::Result<Self> {
        let mut bytes = [0_u8; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder =
            tempfile::Builder::new().prefix("forebay-").permissions(Permissions::from_mode(0o700)).tempdir()?;
        let file = folder.path().join("token");
        // It is made with its mode: no other user can open it in between.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?.write_all(token.as_bytes())?;
        Ok(Self { file, _folder: folder })
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_user_can_read_the_token_and_it_is_removed_at_the_end() {
        let token = Token::new().unwrap();
        let folder = token.file().parent().unwrap().to_owned();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(token.file()), mode(&folder)), (0o600, 0o700));
        drop(token);
        assert!(!folder.exists());
    }
}
