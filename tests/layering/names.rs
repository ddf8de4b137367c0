//! Public type names are unique over the workspace: one name, one thing.

use std::collections::BTreeMap;

use super::source::{CRATES, modules};

/// Names of the public types in `code`. An associated type has no `pub`.
fn public_types(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let declaration = line.trim_start().strip_prefix("pub ")?;
        let declaration = declaration.strip_prefix("unsafe ").unwrap_or(declaration);
        let name =
            ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|k| declaration.strip_prefix(k))?;
        name.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
    })
}

#[test]
fn public_type_names_are_unique() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, code) in CRATES.iter().flat_map(|name| modules(name).into_values()) {
        for name in public_types(&code) {
            places.entry(name.to_owned()).or_default().push(file.clone());
        }
    }
    assert!(places.len() > 100, "only {} public types were found", places.len());
    places.retain(|_, files| files.len() > 1);
    let twice: Vec<String> = places.iter().map(|(name, files)| format!("{name}: {}", files.join(", "))).collect();
    assert!(twice.is_empty(), "public types of one name:\n{}", twice.join("\n"));
}
