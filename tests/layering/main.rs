//! How the workspace hangs together: which crate uses which, no circles of files, unique names, links that lead somewhere, comments that
//! name files that are there, crates whose documentation names their files, lines that are not too long.

mod comments;
mod conformance;
mod lines;
mod modules;
mod names;
mod reading_order;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use source::{root, rust_files};

fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata["packages"].as_array().expect("a list of packages").clone()
}

/// Names of the dependencies of each package, dev-dependencies left out.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    packages()
        .iter()
        .map(|package| {
            let used = package["dependencies"].as_array().expect("a list of dependencies");
            let used = used.iter().filter(|d| d["kind"].as_str() != Some("dev"));
            let name = |v: &serde_json::Value| v["name"].as_str().expect("a name").to_owned();
            (name(package), used.map(name).collect())
        })
        .collect()
}

#[test]
fn a_crate_uses_only_crates_below_it() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("base", &[][..]),
        ("actors", &["base"]),
        ("models", &["base"]),
        ("net", &["base", "actors"]),
        ("connectors", &["base", "actors", "net"]),
        ("ps", &["base", "actors", "net"]),
        ("job", &["base", "actors", "connectors", "models", "net", "ps"]),
        ("batches", &["base", "actors", "connectors", "job", "models", "net", "ps"]),
        ("pipelines", &["base", "actors", "batches", "connectors", "job", "models", "net", "ps"]),
    ]);
    for (package, used) in dependencies() {
        // The program may use every crate, and so may the packages of tests.
        let Some(package) = package.strip_prefix("forebay-").filter(|name| !name.ends_with("-tests")) else { continue };
        let allowed = allowed.get(package).unwrap_or_else(|| panic!("{package} has no floor in this test"));
        for used in used.iter().filter_map(|name| name.strip_prefix("forebay-")) {
            assert!(allowed.contains(&used), "{package} may not use {used}");
        }
    }
}

#[test]
fn only_actors_uses_actix() {
    for (package, used) in dependencies() {
        let uses = used.iter().any(|name| name.starts_with("actix"));
        assert_eq!(uses, package == "forebay-actors", "{package}");
    }
}

#[test]
fn only_actors_names_actix_in_its_source() {
    let folders = ["src", "base", "net", "connectors", "ps", "models", "job", "batches", "pipelines", "examples"];
    for path in folders.iter().flat_map(|folder| rust_files(&root().join(folder))) {
        let text = std::fs::read_to_string(&path).expect("source is text");
        let names = text.lines().any(|line| line.contains("actix::") || line.contains("use actix"));
        assert!(!names, "{} names actix", path.display());
    }
}

/// A dense model computes on the thread that calls it: who calls it is not its concern.
#[test]
fn models_name_no_actors() {
    for path in rust_files(&root().join("models")) {
        let text = std::fs::read_to_string(&path).expect("source is text");
        assert!(!text.contains("forebay_actors") && !text.contains("tokio"), "{}", path.display());
    }
}

/// The path and the anchor of each `[words](path#anchor)` of a page; either may be empty. Links out of the project are left out.
fn links(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let links = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://")).map(|link| link.split_once('#').unwrap_or((link, "")))
}

/// The anchors that GitHub gives the headings of a page.
fn anchors(page: &str) -> BTreeSet<String> {
    let (mut is_code, mut anchors) = (false, BTreeSet::new());
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if line.starts_with('#') && !is_code {
            let heading = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            anchors.insert(heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect());
        }
    }
    anchors
}

#[test]
fn anchors_are_those_of_headings_outside_of_code() {
    let page =
        "# A job's *headspace*\n```sh\n# no heading\n```\n### Rounded (quantized) deltas\n#### `manifest.json`\n";
    let expected = ["a-jobs-headspace", "rounded-quantized-deltas", "manifestjson"];
    assert_eq!(anchors(page), BTreeSet::from(expected.map(str::to_owned)));
}

#[test]
fn every_link_in_the_docs_leads_to_a_file_and_a_heading() {
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output().expect("git runs");
    let pages = String::from_utf8(listed.stdout).expect("names of files are UTF-8");
    let mut seen = 0;
    for page in pages.lines() {
        let path = root().join(page);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{page}: {e}"));
        for (link, anchor) in links(&text) {
            seen += 1;
            let folder = path.parent().expect("a file lies in a folder");
            let target = if link.is_empty() { path.clone() } else { folder.join(link) };
            assert!(target.exists(), "{page} links to {link}, which is not there");
            if !anchor.is_empty() && target.extension().is_some_and(|ending| ending == "md") {
                let text = std::fs::read_to_string(&target).unwrap_or_else(|e| panic!("{link}: {e}"));
                assert!(anchors(&text).contains(anchor), "{page} links to {link}#{anchor}, which is no heading there");
            }
        }
    }
    assert!(seen > 50, "only {seen} links were found");
}
