//! How the workspace hangs together: which crate uses which, no circles of files, unique names, links that lead somewhere.

mod conformance;
mod modules;
mod names;
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
        ("pipelines", &["base", "actors", "connectors", "job", "models", "net", "ps"]),
    ]);
    for (package, used) in dependencies() {
        // The program may use every crate.
        let Some(package) = package.strip_prefix("forebay-") else { continue };
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
    let folders = ["src", "base", "net", "connectors", "ps", "models", "job", "pipelines", "examples"];
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

/// The paths of the `[words](path)` of a page. Links out of the project are left out.
fn links(page: &str) -> impl Iterator<Item = &str> {
    page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()).filter(|link| !link.contains("://"))
}

#[test]
fn every_link_in_the_docs_leads_to_a_file() {
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output().expect("git runs");
    let pages = String::from_utf8(listed.stdout).expect("names of files are UTF-8");
    let mut seen = 0;
    for page in pages.lines() {
        let path = root().join(page);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{page}: {e}"));
        for link in links(&text).filter(|link| !link.is_empty()) {
            seen += 1;
            let target = path.parent().expect("a file lies in a folder").join(link);
            assert!(target.exists(), "{page} links to {link}, which is not there");
        }
    }
    assert!(seen > 50, "only {seen} links were found");
}
