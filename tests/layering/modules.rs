//! No files import in a circle: a file can then be read after those that it names, and be moved with them.
//!
//! An edge goes from a file to the file that defines a name which it imports or writes as a path. A re-export makes no edge: a file that
//! imports the re-exported name has an edge to the file that defines it. Test code is left out.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{CRATES, modules};

type Module = Vec<String>;

/// What a file says of others.
struct Mentions {
    /// Name in this module, and the path it stands for; `*` for a glob.
    imports: Vec<(String, Vec<String>)>,
    /// Paths that make an edge: imports that are no re-exports, and paths in code.
    used: BTreeSet<Vec<String>>,
}

struct Crate {
    files: BTreeMap<Module, (String, String)>,
    mentions: BTreeMap<Module, Mentions>,
}

impl Crate {
    fn read(name: &str) -> Crate {
        let files = modules(name);
        let mentions = files.iter().map(|(module, (_, code))| (module.clone(), mentions(code))).collect();
        Crate { files, mentions }
    }

    /// The module that defines what `path`, said in module `from`, ends in; `None` if it is of another crate.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<Module> {
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.to_vec(), &path[1..]),
            "super" => (from[..from.len().checked_sub(1)?].to_vec(), &path[1..]),
            first => {
                let child = [from, &[first.to_owned()]].concat();
                if !self.files.contains_key(&child) {
                    return None;
                }
                (from.to_vec(), path)
            }
        };
        while let Some(segment) = rest.first() {
            let child = [&at[..], std::slice::from_ref(segment)].concat();
            if segment == "super" {
                at.pop()?;
            } else if self.files.contains_key(&child) {
                at = child;
            } else {
                break;
            }
            rest = &rest[1..];
        }
        let Some(name) = rest.first().filter(|name| *name != "*") else { return Some(at) };
        if depth > 8 {
            return Some(at);
        }
        let imports = &self.mentions.get(&at)?.imports;
        if let Some((_, behind)) = imports.iter().find(|(import, _)| import == name) {
            // A name of another crate, re-exported: it depends on nothing here.
            return self.resolve(&at, behind, depth + 1);
        }
        if !self.defines(&at, name) {
            for (_, glob) in imports.iter().filter(|(import, _)| import == "*") {
                let behind = self.resolve(&at, glob, depth + 1);
                if let Some(behind) = behind.filter(|behind| self.defines(behind, name)) {
                    return Some(behind);
                }
            }
        }
        Some(at)
    }

    fn defines(&self, module: &[String], name: &str) -> bool {
        let Some((_, code)) = self.files.get(module) else { return false };
        ["struct", "enum", "trait", "type", "union", "fn", "const", "static", "macro_rules!"]
            .iter()
            .any(|kind| words_follow(code, kind, name))
    }

    /// Edges from file to file.
    fn edges(&self) -> BTreeSet<(String, String)> {
        let mut edges = BTreeSet::new();
        for (module, mentions) in &self.mentions {
            for path in &mentions.used {
                if let Some(to) = self.resolve(module, path, 0).filter(|to| to != module) {
                    edges.insert((self.files[module].0.clone(), self.files[&to].0.clone()));
                }
            }
        }
        edges
    }
}

fn words_follow(code: &str, kind: &str, name: &str) -> bool {
    code.match_indices(&format!("{kind} {name}"))
        .any(|(at, found)| !code[at + found.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

fn mentions(code: &str) -> Mentions {
    let (mut imports, mut used) = (Vec::new(), BTreeSet::new());
    let mut body = String::new();
    let mut rest = code;
    while let Some(at) = find_use(rest) {
        let statement = &rest[at + "use ".len()..];
        let end = statement.find(';').unwrap_or(statement.len());
        let line = rest[..at].rfind(['\n', ';', '}']).map_or(0, |newline| newline + 1);
        let re_export = rest[line..at].contains("pub");
        let mut paths = Vec::new();
        expand(&statement[..end], &[], &mut paths);
        for (name, path) in paths {
            if !re_export {
                used.insert(path.clone());
            }
            imports.push((name, path));
        }
        body.push_str(&rest[..line]);
        rest = &statement[end..];
    }
    body.push_str(rest);
    used.extend(paths(&body));
    Mentions { imports, used }
}

/// Where the next `use` statement begins.
fn find_use(code: &str) -> Option<usize> {
    code.match_indices("use ").map(|(at, _)| at).find(|&at| {
        let line = code[..at].rfind(['\n', ';', '}', '{']).map_or(0, |newline| newline + 1);
        let before = code[line..at].trim();
        before.is_empty() || before.starts_with("pub")
    })
}

/// `a::{b, c::D as E}` as (`b`, a::b), (`E`, a::c::D).
fn expand(tree: &str, prefix: &[String], paths: &mut Vec<(String, Vec<String>)>) {
    let tree = tree.trim().trim_start_matches("::");
    if let Some(open) = tree.find('{') {
        let mut prefix = prefix.to_vec();
        prefix.extend(segments(&tree[..open]));
        let (mut depth, mut start) = (0, open + 1);
        for (at, c) in tree.char_indices().skip_while(|(at, _)| *at <= open) {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => return expand_part(&tree[start..at], &prefix, paths),
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand_part(&tree[start..at], &prefix, paths);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
    let mut path = [prefix, &segments(path)[..]].concat();
    // `use a::{self}` is `use a`.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    if let Some(last) = path.last() {
        paths.push((alias.unwrap_or(last).to_owned(), path));
    }
}

fn expand_part(part: &str, prefix: &[String], paths: &mut Vec<(String, Vec<String>)>) {
    if !part.trim().is_empty() {
        expand(part, prefix, paths);
    }
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(|segment| segment.trim().to_owned()).filter(|segment| !segment.is_empty()).collect()
}

/// Paths of two segments and more in code.
fn paths(code: &str) -> impl Iterator<Item = Vec<String>> + '_ {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
        .filter(|word| word.contains("::") && !word.starts_with(':'))
        .map(segments)
        .filter(|path| path.len() > 1)
}

/// Every edge that lies on a circle: both its ends reach each other.
fn on_circles(edges: &BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![from]);
        while let Some(at) = todo.pop() {
            if at == to {
                return true;
            }
            if seen.insert(at) {
                todo.extend(edges.iter().filter(|(a, _)| a == at).map(|(_, b)| b.as_str()));
            }
        }
        false
    };
    edges.iter().filter(|(from, to)| reaches(to, from)).cloned().collect()
}

#[test]
fn no_files_import_in_a_circle() {
    let edges: BTreeSet<(String, String)> = CRATES.iter().flat_map(|name| Crate::read(name).edges()).collect();
    assert!(edges.len() > 500, "only {} imports were found", edges.len());
    let circles: Vec<String> = on_circles(&edges).iter().map(|(from, to)| format!("{from} -> {to}")).collect();
    assert!(circles.is_empty(), "files import in a circle:\n{}", circles.join("\n"));
}

/// The folder or file of `src/` that a file is in, as `pipelines/src/checkpoint`; `None` for the crate's own file, which names all.
fn top_level(file: &str) -> Option<String> {
    let (krate, inside) = file.split_once("src/")?;
    let unit = inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs");
    (!matches!(unit, "lib" | "main")).then(|| format!("{krate}src/{unit}"))
}

/// A folder is then a layer: its files can be read after those of the folders below it.
#[test]
fn no_folders_import_in_a_circle() {
    let edges: BTreeSet<(String, String)> = CRATES.iter().flat_map(|name| Crate::read(name).edges()).collect();
    let mut between = BTreeMap::<_, Vec<String>>::new();
    for (from, to) in &edges {
        if let (Some(above), Some(below)) = (top_level(from), top_level(to))
            && above != below
        {
            between.entry((above, below)).or_default().push(format!("{from} -> {to}"));
        }
    }
    assert!(between.len() > 150, "only {} imports between folders were found", between.len());
    let circles = on_circles(&between.keys().cloned().collect());
    let circles: Vec<String> =
        circles.iter().map(|(a, b)| format!("{a} -> {b}: {}", between[&(a.clone(), b.clone())].join(", "))).collect();
    assert!(circles.is_empty(), "folders import in a circle:\n{}", circles.join("\n"));
}
