//! `forebay completions` and `forebay man`: the completions for a shell, and the manual pages.

use std::path::PathBuf;

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
            return std::fs::create_dir_all(&folder)
                .and_then(|()| clap_mangen::generate_to(program, &folder))
                .map_err(|e| staged::fault(&name, "cannot write manual pages to", e));
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(program)
            .render(&mut page)
            .map_err(|e| Fault::internal("the manual page cannot be written").because(e))?;
        out::print(String::from_utf8_lossy(&page).trim_end())
    }
}
