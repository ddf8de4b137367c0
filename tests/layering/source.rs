//! The workspace's source as tests read it: files by module path, without comments, texts and test code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders whose `src` is read. The last is the program's.
pub(crate) const CRATES: [&str; 10] =
    ["base", "actors", "net", "connectors", "ps", "models", "job", "batches", "pipelines", "."];

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every `.rs` file under `folder`, sorted.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The files of a crate by module path: `[]` is the root, `["commands", "train"]` is `commands/train/mod.rs`. The text is code alone.
/// The root of the program, `main.rs`, is left out where there is a `lib.rs`, and so are modules that stand under `#[cfg(test)]`.
pub(crate) fn modules(name: &str) -> BTreeMap<Vec<String>, (String, String)> {
    let src = root().join(name).join("src");
    let (mut modules, mut of_tests) = (BTreeMap::new(), Vec::new());
    for path in rust_files(&src) {
        let relative = path.strip_prefix(&src).expect("it lies in src").with_extension("");
        let mut module: Vec<String> = relative.iter().map(|part| part.to_str().expect("UTF-8").to_owned()).collect();
        match module.last().map(String::as_str) {
            Some("mod") => drop(module.pop()),
            Some("lib") if module.len() == 1 => module.clear(),
            Some("main") if module.len() == 1 && !src.join("lib.rs").exists() => module.clear(),
            _ => {}
        }
        let file = path.strip_prefix(root()).expect("it lies in the project").display().to_string();
        let text = fs::read_to_string(&path).expect("source is text");
        let code = code(&text);
        of_tests.extend(test_modules(&code).map(|name| [&module[..], &[name.to_owned()]].concat()));
        modules.insert(module, (file, without_tests(&code)));
    }
    modules.retain(|module, _| !of_tests.iter().any(|of_test: &Vec<String>| module.starts_with(of_test)));
    modules
}

/// Names of the files' modules that stand under `#[cfg(test)]`.
fn test_modules(code: &str) -> impl Iterator<Item = &str> {
    let items = code.split("#[cfg(test)]").skip(1);
    items.filter_map(|item| item.trim_start().strip_prefix("mod ")?.split_once([';', '{'])).map(|(name, _)| name.trim())
}

/// The text with comments gone and texts emptied.
fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_text(rest) {
            out.push_str("\"\"");
            let end = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            start + rest[start..].find(&end).map_or(0, |at| at + end.len())
        } else if first == '"' {
            out.push_str("\"\"");
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            end.map_or(rest.len(), |at| at + 2)
        } else if let Some(length) = character(rest) {
            length
        } else {
            out.push(first);
            first.len_utf8()
        };
        rest = &rest[skip..];
    }
    out
}

/// The number of `#` in `r#"..."#`; `None` if `rest` does not begin with a raw string.
fn raw_text(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let hashes = after.bytes().take_while(|&b| b == b'#').count();
    after[hashes..].starts_with('"').then_some(hashes)
}

/// The length of a character literal; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('\'')?;
    let body = if after.starts_with('\\') { 2 } else { after.chars().next()?.len_utf8() };
    let end = after.get(body..)?.find('\'')?;
    (end == 0 || after.starts_with('\\')).then_some(1 + body + end + 1)
}

/// The code without the items that stand under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let Some(at) = code.find(MARK) else { return code.to_owned() };
    let (before, after) = (&code[..at], &code[at + MARK.len()..]);
    let body = after.find(['{', ';']).unwrap_or(after.len());
    let end = if after[body..].starts_with('{') { body + block(&after[body..]) } else { body + 1 };
    before.to_owned() + &without_tests(after.get(end..).unwrap_or_default())
}

/// The length of the block that begins with `{`.
fn block(code: &str) -> usize {
    let mut depth = 0;
    let end = code.bytes().position(|b| {
        depth += i32::from(b == b'{') - i32::from(b == b'}');
        depth == 0
    });
    end.map_or(code.len(), |at| at + 1)
}
