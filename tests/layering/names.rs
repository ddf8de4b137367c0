//! Names of types: one name, one thing. Public names are unique over the workspace; a name that other files of its crate may use is
//! unique in its crate.

use std::collections::BTreeMap;

use super::source::{CRATES, modules};

/// Names of types that stand twice in their crate, and why.
const EXCEPTIONS: [(&str, &str); 1] =
    [("PackedRight", "native/amx and native/no_amx.rs: the processor decides which one is compiled")];

/// Who may use a type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Everyone,
    TheCrate,
    TheFile,
}

/// Names of the types in `code`. An associated type has no `pub`, and stands in a block.
fn types(code: &str) -> impl Iterator<Item = (Use, &str)> {
    code.lines().filter_map(|line| {
        let indented = line.trim_start();
        let (of, declaration) = match indented.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => (Use::TheCrate, rest.split_once(") ")?.1),
            Some(rest) => (Use::Everyone, rest.strip_prefix(' ')?),
            None if indented.len() < line.len() => return None,
            None => (Use::TheFile, line),
        };
        let declaration = declaration.strip_prefix("unsafe ").unwrap_or(declaration);
        let name =
            ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|k| declaration.strip_prefix(k))?;
        Some((of, name.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?))
    })
}

#[test]
fn public_type_names_are_unique() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, code) in CRATES.iter().flat_map(|name| modules(name).into_values()) {
        for (_, name) in types(&code).filter(|(of, _)| *of == Use::Everyone) {
            places.entry(name.to_owned()).or_default().push(file.clone());
        }
    }
    assert!(places.len() > 100, "only {} public types were found", places.len());
    places.retain(|_, files| files.len() > 1);
    let twice: Vec<String> = places.iter().map(|(name, files)| format!("{name}: {}", files.join(", "))).collect();
    assert!(twice.is_empty(), "public types of one name:\n{}", twice.join("\n"));
}

#[test]
fn names_that_other_files_of_a_crate_may_use_are_unique_there() {
    let (mut seen, mut excepted, mut twice) = (0, 0, Vec::new());
    for of_crate in CRATES {
        let mut places: BTreeMap<String, Vec<(Use, String)>> = BTreeMap::new();
        for (file, code) in modules(of_crate).into_values() {
            for (of, name) in types(&code) {
                places.entry(name.to_owned()).or_default().push((of, file.clone()));
            }
        }
        places.retain(|_, places| places.iter().any(|(of, _)| *of != Use::TheFile));
        seen += places.len();
        for (name, places) in places.iter().filter(|(_, places)| places.len() > 1) {
            let files: Vec<&str> = places.iter().map(|(_, file)| file.as_str()).collect();
            if EXCEPTIONS.iter().any(|(exception, _)| exception == name) {
                excepted += 1;
            } else {
                twice.push(format!("{name}: {}", files.join(", ")));
            }
        }
    }
    assert!(seen > 500, "only {seen} types were found");
    assert_eq!(excepted, EXCEPTIONS.len(), "each exception stands twice in one crate");
    assert!(twice.is_empty(), "types of one name in one crate:\n{}", twice.join("\n"));
}

#[test]
fn types_are_found_with_their_visibility() {
    let code = "pub struct A;\npub(crate) enum B {}\npub(in crate::x) trait C {}\nstruct D<T>(T);\n    type E = u8;\n  pub(super) type F = A;";
    let found: Vec<&str> = types(code).map(|(_, name)| name).collect();
    assert_eq!(found, ["A", "B", "C", "D", "F"]);
    let [of_crate, of_file] = [Use::TheCrate, Use::TheFile].map(|of| types(code).filter(|found| found.0 == of).count());
    assert_eq!((of_crate, of_file), (3, 1));
}
