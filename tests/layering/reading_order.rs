//! The documentation of a crate, and of each folder of `pipelines`, names its files, so that a reader knows where to look.

use std::collections::BTreeSet;

use super::source::{CRATES, root};

/// Names of the modules that have files of their own, without those of tests.
fn modules(text: &str) -> Vec<&str> {
    let (mut modules, mut is_test) = (Vec::new(), false);
    for line in text.lines() {
        let name = ["mod ", "pub mod ", "pub(crate) mod "].iter().find_map(|start| line.strip_prefix(start));
        if let Some(name) = name.and_then(|name| name.strip_suffix(';')).filter(|_| !is_test) {
            modules.push(name);
        }
        // Other attributes may stand between.
        is_test = line == "#[cfg(test)]" || is_test && line.starts_with("#[");
    }
    modules
}

/// What the documentation of a file names in backticks: `commands/eval/mod.rs` is `commands`, `eval` and `mod`.
fn named(text: &str) -> BTreeSet<&str> {
    let documentation = text.lines().filter_map(|line| line.strip_prefix("//!")).filter(|line| !line.contains("```"));
    let names = documentation.flat_map(|line| line.split('`').skip(1).step_by(2));
    names.flat_map(|name| name.split('/').map(|part| part.trim_end_matches(".rs"))).collect()
}

#[test]
fn modules_of_tests_are_left_out() {
    let text = "//! `cli.rs`, [`out`] and `commands/eval/mod.rs`: `E::f`\n//! ```text\n//! g\nmod cli;\npub mod out;\n\
                #[cfg(test)]\nmod of_test;\n#[cfg(test)]\n#[path = \"x\"]\nmod of_another;\n#[cfg(unix)]\n\
                pub(crate) mod commands;\nmod inline {\n}\n";
    assert_eq!(modules(text), ["cli", "out", "commands"]);
    assert_eq!(named(text), BTreeSet::from(["cli", "out", "commands", "eval", "mod", "E::f"]));
}

#[test]
fn the_documentation_of_a_crate_names_its_files() {
    let (mut seen, mut missing) = (0, Vec::new());
    let crates = CRATES.iter().map(|name| format!("{name}/src/lib.rs"));
    let folders = super::source::modules("pipelines").into_values().map(|(file, _)| file);
    for file in crates.chain(folders.filter(|file| !file.ends_with("lib.rs"))) {
        let text = std::fs::read_to_string(root().join(&file)).expect("source is text");
        let (modules, named) = (modules(&text), named(&text));
        seen += modules.len();
        missing.extend(modules.iter().filter(|name| !named.contains(*name)).map(|name| format!("{file}: {name}")));
    }
    assert!(seen > 250, "only {seen} modules were found");
    assert!(missing.is_empty(), "the documentation at the top does not name these modules:\n{}", missing.join("\n"));
}
