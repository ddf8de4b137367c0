//! Lists what lies at a path: folders that are not wanted are not entered.
//!
//! Comes in: a store, a path or glob in it, perhaps a predicate. Goes out: files, sorted by path, or a fault that says
//! what is there instead. Awaits the store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path as LocalPath;
use std::sync::Arc;

use forebay_actors::fault::Fault;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::DataFile;
use super::glob;
use crate::names::{listed, nearest};
use crate::partition::{Partitions, Predicate};
use crate::store::store_fault;

/// Folders that are listed at once.
const AT_ONCE: usize = 16;

/// The files at `path`, which messages call `text`; `root` stands before a file's path to make its name.
pub(super) async fn list(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    text: &str,
    root: &str,
    filter: Option<&Predicate>,
) -> Result<Vec<DataFile>, Fault> {
    let file = |meta: ObjectMeta, partitions| DataFile {
        store: Arc::clone(store),
        name: format!("{root}{}", meta.location),
        path: meta.location,
        size: meta.size,
        e_tag: meta.e_tag,
        partitions,
    };
    if !path.as_ref().contains(['*', '?']) {
        match store.head(path).await {
            Ok(meta) if meta.size == 0 => {
                return Err(Fault::user(format!("`{text}` is an empty file: no rows to read")));
            }
            Ok(meta) => {
                let file = file(meta, Partitions::default());
                return if selected(filter, &file, text)? { Ok(vec![file]) } else { Ok(Vec::new()) };
            }
            // A folder, perhaps; a listing that finds nothing says it for all stores.
            Err(object_store::Error::NotFound { .. }) => {}
            Err(e) => return Err(store_fault(&format!("cannot read `{text}`"), e)),
        }
    }
    let whole = path.as_ref();
    let fixed = match whole.find(['*', '?']) {
        Some(at) => whole[..at].rfind('/').map_or("", |slash| &whole[..slash]),
        None => whole,
    };
    let fixed =
        Path::parse(fixed).map_err(|e| Fault::user(format!("`{text}` is not a path that can be read")).because(e))?;
    let below = fixed.as_ref().len();
    let pattern = (fixed != *path).then_some(whole);
    let mut walk = Walk { store, below, pattern, filter, seen: BTreeMap::new() };
    let found = match walk.run(fixed).await {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => Vec::new(),
        Err(e) => return Err(store_fault(&format!("cannot list `{text}`"), e)),
    };
    let mut folder = (String::new(), Partitions::default());
    let mut files = Vec::new();
    for meta in found {
        let whole = meta.location.as_ref();
        let wanted = meta.size > 0
            && pattern.is_none_or(|pattern| glob::matches(pattern, whole))
            && !whole[below..].split('/').any(left_out);
        if wanted {
            // Files of one folder mostly come together and share what it says.
            let within = whole[below..].rsplit_once('/').map_or("", |(within, _)| within);
            if folder.0 != within {
                folder = (within.to_owned(), Partitions::of(within));
            }
            let file = file(meta, folder.1.clone());
            if selected(filter, &file, text)? {
                files.push(file);
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if !files.is_empty() {
        return Ok(files);
    }
    Err(Fault::user(match (filter, pattern) {
        (Some(filter), _) if !walk.seen.is_empty() => {
            format!("no file of `{text}` is selected by where = {:?}: {}", filter.to_string(), walk.seen())
        }
        (_, Some(_)) => format!("no file matches `{text}`: `*` and `?` stay within a name, `**` spans folders"),
        (_, None) if root == "/" && LocalPath::new("/").join(whole).is_dir() => {
            format!(
                "the folder `{text}` holds no data: files whose names begin with `_` or `.` and empty files are left out"
            )
        }
        (_, None) => format!("there is nothing at `{text}`: check the path"),
    }))
}

/// What Spark does not read either: hidden names, what is not data (`_SUCCESS`, `_temporary`), copies under way. A
/// partition column's name may begin with `_`.
fn left_out(name: &str) -> bool {
    name.starts_with('.') || (name.starts_with('_') && !name.contains('=')) || name.ends_with("._COPYING_")
}

/// Whether a file is wanted. Refuses a predicate that is not decided by the file's folders.
fn selected(filter: Option<&Predicate>, file: &DataFile, text: &str) -> Result<bool, Fault> {
    let Some(filter) = filter else { return Ok(true) };
    if !filter.may_select(&file.partitions) {
        return Ok(false);
    }
    let Some(unknown) = filter.columns().into_iter().find(|column| file.partitions.get(column).is_none()) else {
        return Ok(true);
    };
    let columns: Vec<&str> = file.partitions.iter().map(|(column, _)| column).collect();
    let there = match columns.as_slice() {
        [] => "it lies in no folder named column=value".to_owned(),
        _ => format!("its partition columns are {}{}", listed(columns.clone()), nearest(unknown, columns.clone())),
    };
    Err(Fault::user(format!(
        "where = {:?} asks for `{unknown}`, but below `{text}` no folder `{unknown}=...` holds `{}`: {there}",
        filter.to_string(),
        file.name
    )))
}

/// A walk through folders, level by level.
struct Walk<'a> {
    store: &'a Arc<dyn ObjectStore>,
    /// Bytes of the path that was named: folders count below it.
    below: usize,
    pattern: Option<&'a str>,
    filter: Option<&'a Predicate>,
    /// The values of each partition column that were met, entered or not.
    seen: BTreeMap<String, BTreeSet<String>>,
}

impl Walk<'_> {
    /// Everything below `folder` that may be wanted.
    async fn run(&mut self, folder: Path) -> object_store::Result<Vec<ObjectMeta>> {
        if self.pattern.is_none() && self.filter.is_none() {
            return self.store.list(Some(&folder)).try_collect().await;
        }
        let mut found = Vec::new();
        let mut level = vec![folder];
        while !level.is_empty() {
            let store = self.store;
            let lists = futures::stream::iter(level)
                .map(|folder| async move { store.list_with_delimiter(Some(&folder)).await })
                .buffer_unordered(AT_ONCE)
                .try_collect::<Vec<_>>()
                .await?;
            level = Vec::new();
            for list in lists {
                found.extend(list.objects);
                level.extend(list.common_prefixes.into_iter().filter(|folder| self.enters(folder.as_ref())));
            }
        }
        Ok(found)
    }

    fn enters(&mut self, folder: &str) -> bool {
        if folder.rsplit('/').next().is_some_and(left_out)
            || self.pattern.is_some_and(|pattern| !glob::reaches(pattern, folder))
        {
            return false;
        }
        let Some(filter) = self.filter else { return true };
        let partitions = Partitions::of(&folder[self.below..]);
        if let Some((column, value)) = partitions.iter().next_back() {
            let value = value.map_or_else(|| "null".to_owned(), |value| format!("{value:?}"));
            self.seen.entry(column.to_owned()).or_default().insert(value);
        }
        filter.may_select(&partitions)
    }

    /// `` `day` has "2026-11-18", "2026-11-19" ``, with a few values of each column.
    fn seen(&self) -> String {
        const SHOWN: usize = 3;
        let columns = self.seen.iter().map(|(column, values)| {
            let few = values.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
            match values.last() {
                Some(last) if values.len() > SHOWN => {
                    format!("`{column}` has {} values, {few} ... {last}", values.len())
                }
                _ => format!("`{column}` has {few}"),
            }
        });
        columns.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Input, list};
    use super::*;

    /// A folder with an empty or a one-byte file (`!` before the name: empty) at each path.
    fn folder(files: &[&str]) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        for name in files {
            let path = dir.path().join(name.trim_start_matches('!'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, if name.starts_with('!') { "" } else { "x" }).unwrap();
        }
        let root = dir.path().display().to_string();
        (dir, root)
    }

    fn names(files: &[DataFile], root: &str) -> Vec<String> {
        files.iter().map(|f| f.name.strip_prefix(root).unwrap().trim_start_matches('/').to_owned()).collect()
    }

    #[tokio::test]
    async fn a_folder_is_listed_with_all_below_it_in_a_fixed_order() {
        let left_out =
            ["_SUCCESS", ".hidden", ".x=1/a.parquet", "_tmp/d.parquet", "e.parquet._COPYING_", "!zero.parquet"];
        let (_dir, root) =
            folder(&[&["b.parquet", "a.parquet", "sub/c.parquet", "_d=1/d.parquet"], &left_out[..]].concat());
        let all = ["_d=1/d.parquet", "a.parquet", "b.parquet", "sub/c.parquet"];
        let said = async |text: String| names(&list(&text).await.unwrap(), &root);
        assert_eq!(said(root.clone()).await, all);
        assert_eq!(said(format!("file://{root}/")).await, all);
        assert_eq!(said(format!("{root}/sub/../?.parquet")).await, all[1..3]);
        assert_eq!(said(format!("{root}/**/*.parquet")).await, all);
        assert_eq!(said(format!("{root}/b.parquet")).await, ["b.parquet"]);
    }

    #[tokio::test]
    async fn what_is_not_there_is_named() {
        let (_dir, root) = folder(&["!zero"]);
        let said = async |text: String| list(&text).await.unwrap_err().to_string();
        assert!(said(root.clone()).await.contains("holds no data"));
        assert!(said(format!("{root}/nope")).await.contains(&format!("nothing at `{root}/nope`")));
        assert!(said(format!("{root}/*.x")).await.contains("no file matches"));
        assert!(said(format!("{root}/nope/*.x")).await.contains("no file matches"));
        assert!(said("s3://b/k".into()).await.contains("s3://"));
        assert!(said(format!("{root}/zero")).await.contains("empty file"));
    }

    const LOGS: [&str; 6] = [
        "logs/day=2026-11-18/hour=03/a",
        "logs/day=2026-11-19/hour=03/a",
        "logs/day=2026-11-19/hour=10/a",
        "logs/day=2026-11-19/hour=10/b",
        "logs/day=2026-11-20/hour=__HIVE_DEFAULT_PARTITION__/a",
        "logs/day=2026-11-20/_temporary/hour=03/a",
    ];

    async fn filtered(path: String, filter: &str) -> Result<Vec<DataFile>, Fault> {
        Input::from(path).filtered(&filter.parse().unwrap()).list().await
    }

    #[tokio::test]
    async fn a_predicate_selects_folders() {
        let (_dir, root) = folder(&LOGS);
        for (path, filter, expected) in [
            ("logs", "day >= '2026-11-19' and hour < 6", &LOGS[1..2]),
            ("logs", "hour = 10", &LOGS[2..4]),
            ("logs", "hour is null", &LOGS[4..5]),
            ("", "day < '2026-11-19' or hour = 10", &[LOGS[0], LOGS[2], LOGS[3]]),
            ("logs/day=2026-11-19", "hour != 3", &LOGS[2..4]),
            ("logs/*/*/b", "day = '2026-11-19'", &LOGS[3..4]),
            ("logs/day=2026-11-1?/hour=*/a", "hour = 3", &LOGS[..2]),
        ] {
            let files = filtered(format!("{root}/{path}"), filter).await.unwrap();
            assert_eq!(names(&files, &root), expected, "{path} {filter}");
        }
        let files = list(&format!("{root}/logs/day=2026-11-2*/*/a")).await.unwrap();
        let known: Vec<_> = files[0].partitions.iter().collect();
        assert_eq!(known, [("day", Some("2026-11-20")), ("hour", None)]);
        let twice = Input::from(format!("{root}/logs"))
            .filtered(&"hour = 10".parse().unwrap())
            .filtered(&"day = '2026-11-18'".parse().unwrap());
        let said = twice.list().await.unwrap_err().to_string();
        assert!(said.contains("(hour = 10) and (day = '2026-11-18')"), "{said}");
    }

    #[tokio::test]
    async fn folders_that_cannot_be_wanted_are_not_entered() {
        use std::os::unix::fs::symlink;
        let (_dir, root) = folder(&LOGS);
        // A loop, which any walk that enters it stumbles over.
        let old = format!("{root}/logs/day=2020-01-01");
        std::fs::create_dir(&old).unwrap();
        symlink(&old, format!("{old}/hour=1")).unwrap();
        assert!(list(&format!("{root}/logs")).await.is_err());
        assert_eq!(filtered(format!("{root}/logs"), "day = '2026-11-18'").await.unwrap().len(), 1);
        assert_eq!(list(&format!("{root}/logs/day=2026-*/*/b")).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_predicate_that_does_not_fit_says_what_there_is() {
        let (_dir, root) = folder(&LOGS);
        let said = async |path: &str, filter| filtered(format!("{root}/{path}"), filter).await.unwrap_err().to_string();
        let none = said("logs", "day > '2027'").await;
        for part in ["where = \"day > '2027'\"", "\"2026-11-18\", \"2026-11-19\", \"2026-11-20\""] {
            assert!(none.contains(part), "{none}");
        }
        let unknown = said("logs", "Day = '2026-11-18'").await;
        for part in ["asks for `Day`", "columns are day, hour", "did you mean `day`?"] {
            assert!(unknown.contains(part), "{unknown}");
        }
        let file = said("logs/day=2026-11-18/hour=03/a", "hour = 3").await;
        assert!(file.contains("it lies in no folder named column=value"), "{file}");
        assert!(said("nowhere", "hour = 3").await.contains("nothing at"));
        assert!(said("logs/x*", "hour = 3").await.contains("no file matches"));
    }
}
