//! Every stage, source and sink of the house runs the conformance suite of `forebay_actors::testsuite`: its name is in a `conformance.rs`.

use std::collections::BTreeMap;

use super::source::{CRATES, modules, root, rust_files};

/// Types that are not in the suite, and why.
const EXCEPTIONS: [(&str, &str); 5] = [
    ("TextSource", "its names there are CriteoSource, and the sources of csv.rs and json_lines.rs"),
    ("Last", "the sink of a replicated sink; actors/tests/replicated_sink.rs runs it in its pipelines"),
    ("Hold", "measures: part of `forebay bench headspace`"),
    ("HeldBatches", "measures: part of `forebay bench headspace`"),
    ("Replay, Take, DropsNext", "the suite itself"),
];

/// Types of this code that are a stage, a source or a sink.
fn stages(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter(|line| line.starts_with("impl")).filter_map(|line| {
        let name = ["Stage for ", "Source for ", "Sink for "].iter().find_map(|what| line.split_once(what))?.1;
        name.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
    })
}

#[test]
fn every_stage_source_and_sink_runs_the_conformance_suite() {
    let suites: Vec<String> = CRATES
        .iter()
        .flat_map(|name| rust_files(&root().join(name).join(if *name == "." { "tests" } else { "" })))
        .filter(|path| path.ends_with("conformance.rs") && !path.starts_with(root().join("tests")))
        .map(|path| std::fs::read_to_string(path).expect("source is text"))
        .collect();
    assert_eq!(suites.len(), 3, "suites of actors, connectors and pipelines");
    let named =
        |name: &str| suites.iter().any(|suite| suite.split(|c: char| !c.is_alphanumeric()).any(|word| word == name));
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for (file, code) in CRATES.iter().flat_map(|name| modules(name).into_values()) {
        // Stand-ins of the program's benches.
        if !file.starts_with("src/commands/bench") {
            found.extend(stages(&code).map(|name| (name.to_owned(), file.clone())));
        }
    }
    assert!(found.len() > 25, "only {} were found: {found:?}", found.len());
    let excepted =
        |name: &str| EXCEPTIONS.iter().any(|(names, _)| names.split(", ").any(|exception| exception == name));
    let missing: Vec<_> = found.iter().filter(|(name, _)| !named(name) && !excepted(name)).collect();
    assert!(missing.is_empty(), "no conformance.rs names these: {missing:?}");
    let gone: Vec<_> =
        EXCEPTIONS.iter().flat_map(|(names, _)| names.split(", ")).filter(|name| !found.contains_key(*name)).collect();
    assert!(gone.is_empty(), "exceptions that are no stages any more: {gone:?}");
}
