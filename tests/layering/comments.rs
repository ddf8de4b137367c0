//! Paths in comments: each file that a comment names is there.

use std::path::Path;
use std::process::Command;

use super::source::{CRATES, root};

/// The paths of Rust files that stand in backticks in the comment of a line, if it has one.
fn named_files(line: &str) -> impl Iterator<Item = &str> {
    let comment = line.find("//").map_or("", |at| &line[at..]);
    comment.split('`').skip(1).step_by(2).filter(|name| name.len() > ".rs".len() && name.ends_with(".rs"))
}

/// Whether the file `named` is there, as seen from `file`: a path relative to its folder, to the `src` of its crate, to its crate, or to
/// the project.
fn is_there(file: &Path, named: &str) -> bool {
    let of_crate = CRATES.iter().find(|name| file.starts_with(name)).unwrap_or(&".");
    let of_crate = root().join(of_crate);
    let folder = root().join(file.parent().expect("a file lies in a folder"));
    [folder, of_crate.join("src"), of_crate, root().to_owned()].iter().any(|base| base.join(named).is_file())
}

#[test]
fn files_are_named_in_backticks_in_comments() {
    let found = |line: &'static str| named_files(line).collect::<Vec<_>>();
    let comment = "//! 3. `names.rs`, `src/cli.rs`: (`Members::newly_lost`) and `.rs`";
    assert_eq!(found(comment), ["names.rs", "src/cli.rs"]);
    assert_eq!(found("let a = 1; // as `main.rs`"), ["main.rs"]);
    assert_eq!(found(r#"let name = "`main.rs`";"#), [""; 0]);
}

#[test]
fn a_file_is_found_from_its_folder_its_crate_and_the_project_only() {
    let file = Path::new("tests/layering/comments.rs");
    assert!(
        ["source.rs", "cli.rs", "src/cli.rs", "tests/program/drain.rs", "ps/src/lib.rs"]
            .iter()
            .all(|n| is_there(file, n))
    );
    assert!(!is_there(file, "layering/source.rs") && !is_there(file, "shard.rs"));
    assert!(is_there(Path::new("ps/tests/table.rs"), "shard.rs"));
}

#[test]
fn every_file_that_a_comment_names_is_there() {
    let listed = Command::new("git").args(["ls-files", "*.rs"]).current_dir(root()).output().expect("git runs");
    let files = String::from_utf8(listed.stdout).expect("names of files are UTF-8");
    let (mut seen, mut missing) = (0, Vec::new());
    for file in files.lines() {
        // A file that is deleted and not committed is listed.
        let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            for named in named_files(line) {
                seen += 1;
                if !is_there(Path::new(file), named) {
                    missing.push(format!("{file}:{}: {named}", number + 1));
                }
            }
        }
    }
    assert!(seen > 150, "only {seen} names were found");
    assert!(missing.is_empty(), "comments name files that are not there:\n{}", missing.join("\n"));
}
