//! Lines of comments and of documents have at most 140 columns.

use std::process::Command;

use super::source::root;

const COLUMNS: usize = 140;

/// A page that `make docs` writes from the doc comments, with one line for each field.
const GENERATED: &str = "docs/job.md";

/// Whether a line with this text is too long. A row of a table and a single word, such as a link, cannot be broken.
fn is_too_long(line: &str, text: &str) -> bool {
    let text = text.trim().trim_start_matches(['-', ' ']);
    line.chars().count() > COLUMNS && !text.starts_with('|') && text.contains(' ')
}

/// The numbers of the comment lines of this Rust source that are too long.
fn long_comments(source: &str) -> impl Iterator<Item = usize> {
    let is_long = |line: &str| {
        let comment = line.trim_start().strip_prefix("//").map(|comment| comment.trim_start_matches(['/', '!']));
        comment.is_some_and(|text| is_too_long(line, text))
    };
    source.lines().enumerate().filter(move |(_, line)| is_long(line)).map(|(number, _)| number + 1)
}

/// The numbers of the lines of this page, outside of code, that are too long.
fn long_prose(page: &str) -> impl Iterator<Item = usize> {
    let mut is_code = false;
    let mut is_long = move |line: &str| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code && is_too_long(line, line)
    };
    page.lines().enumerate().filter(move |(_, line)| is_long(line)).map(|(number, _)| number + 1)
}

#[test]
fn tables_code_and_single_words_may_be_longer() {
    let (words, word) = ("words ".repeat(30), "w".repeat(150));
    let source =
        format!("/// {words}\n//! | {words} |\n    // {word}\nlet url = \"{words}\";\n/// short\n  // {words}");
    assert_eq!(long_comments(&source).collect::<Vec<_>>(), [1, 6]);
    let page = format!("{words}\n| {words} |\n```sh\n{words}\n```\n- {words}\n- {word}\n{}", "ä".repeat(140));
    assert_eq!(long_prose(&page).collect::<Vec<_>>(), [1, 6]);
}

#[test]
fn comments_and_documents_have_at_most_140_columns() {
    let listed = Command::new("git").args(["ls-files", "*.rs", "*.md"]).current_dir(root()).output().expect("git runs");
    let files = String::from_utf8(listed.stdout).expect("names of files are UTF-8");
    let (mut seen, mut long) = (0, Vec::new());
    for file in files.lines().filter(|file| *file != GENERATED) {
        // A file that is deleted and not committed is listed.
        let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
        seen += 1;
        let numbers: Vec<usize> =
            if file.ends_with(".md") { long_prose(&text).collect() } else { long_comments(&text).collect() };
        long.extend(numbers.iter().map(|number| format!("{file}:{number}")));
    }
    assert!(seen > 500, "only {seen} files were found");
    assert!(long.is_empty(), "lines of more than {COLUMNS} columns:\n{}", long.join("\n"));
}
