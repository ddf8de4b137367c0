//! `forebay completions` and `forebay man`: the completions for a shell, and the manual pages.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::connectors::staged;
use crate::{Fault, out};

/// Print a completion script for a shell
#[derive(Args)]
#[command(after_help = "Examples:
  forebay completions bash > ~/.local/share/bash-completion/completions/forebay
  forebay completions zsh > ~/.zfunc/_forebay            (a folder of your $fpath)
  forebay completions fish > ~/.config/fish/completions/forebay.fish")]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual page, or write the pages of all commands to a folder
#[derive(Args)]
#[command(after_help = "Examples:
  forebay man | man -l -
  forebay man ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// The folder; it is created if it does not exist.
    folder: Option<PathBuf>,
}

impl Completions {
    pub(crate) fn run(self, mut program: Command) -> Result<(), Fault> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "forebay", &mut script);
        out::print(String::from_utf8_lossy(&script).trim_end())
    }
}

impl Man {
    pub(crate) fn run(self, program: Command) -> Result<(), Fault> {
        if let Some(folder) = self.folder {
            let name = folder.display();
            if folder.exists() && !folder.is_dir() {
                return Err(Fault::user(format!("`{name}` is a file, expected a folder for the manual pages")));
            }
            return write_pages(program, &folder).map_err(|e| staged::fault(&name, "cannot write manual pages to", e));
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(program)
            .render(&mut page)
            .map_err(|e| Fault::internal("the manual page cannot be written").because(e))?;
        out::print(String::from_utf8_lossy(&page).trim_end())
    }
}

/// Writes the pages of all commands to a folder, each whole or not at all: on a full disk, an older page stays.
fn write_pages(program: Command, folder: &Path) -> io::Result<()> {
    // Folders that are empty at the end are removed.
    let _missing = staged::MissingFolders::of(folder);
    fs::create_dir_all(folder)?;
    let staged = tempfile::Builder::new().prefix(".forebay-").tempdir_in(folder)?;
    clap_mangen::generate_to(program, staged.path())?;
    for page in fs::read_dir(staged.path())? {
        let page = page?;
        fs::rename(page.path(), folder.join(page.file_name()))?;
    }
    Ok(())
}
