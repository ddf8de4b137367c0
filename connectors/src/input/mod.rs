//! What there is to read: a path, URL or glob becomes files, in a fixed order.

pub(crate) mod glob;
mod listing;
pub(crate) mod search;
mod twice;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_actors::Fault;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::file::DataFile;
use crate::partition::Predicate;
use crate::stores::{Stores, comparable};
use twice::Seen;

/// What a source reads: a path, several, or a path in a store that the caller holds; all of it, or the folders that a
/// predicate selects.
///
/// A path is a file, a folder (with all below it) or a glob of files and folders: `*` and `?` stay within a name, `**` spans folders. Below
/// a folder, names that Spark does not read are left out: names that begin with `.`, names that begin with `_` and hold no `=`, copies
/// under way (`._COPYING_`), and empty files of text. An empty Parquet file and, on a local disk, a link to nothing, a pipe or a device are
/// faults: their rows are lost. So is a file there whose name ends in `#` and digits, which is not read.
#[derive(Clone, Debug)]
pub struct Input {
    parts: Vec<InputPart>,
    /// Its files, once it is [`listed`](Self::listed).
    files: Option<Arc<[DataFile]>>,
}

#[derive(Clone, Debug)]
struct InputPart {
    location: Location,
    filter: Option<Predicate>,
    /// The name of its only file, if another than its path.
    name: Option<String>,
}

#[derive(Clone, Debug)]
enum Location {
    /// A path or URL, and the stores to open it in.
    Url(String, Stores),
    /// A path in a store, and what messages put before paths there.
    InStore(Arc<dyn ObjectStore>, Path, String),
}

impl Input {
    /// The paths and URLs of this input, as they were named.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match &part.location {
            Location::Url(url, _) => Some(url.as_str()),
            Location::InStore(..) => None,
        })
    }

    fn of(parts: Vec<InputPart>) -> Self {
        Self { parts, files: None }
    }

    fn at(location: Location) -> Self {
        Self::of(vec![InputPart { location, filter: None, name: None }])
    }

    /// A file, folder or glob in a store that the caller opened.
    pub fn in_store(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self::in_store_at("", store, path)
    }

    /// As [`in_store`](Self::in_store), of a store in front of another one: the names of files begin with `root`, the [root](Stores::root)
    /// of the other store.
    pub fn in_store_at(root: &str, store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self::at(Location::InStore(store, path, root.to_owned()))
    }

    /// One file, which messages call `name`: its path may say nothing to a user.
    #[must_use]
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.parts.iter_mut().for_each(|part| part.name = Some(name.to_owned()));
        Self::of(self.parts)
    }

    /// Opens paths and URLs in these stores. Without it, an input made from a path has stores of its own.
    #[must_use]
    pub fn with_stores(mut self, stores: &Stores) -> Self {
        for part in &mut self.parts {
            if let Location::Url(_, own) = &mut part.location {
                *own = stores.clone();
            }
        }
        Self::of(self.parts)
    }

    /// Several inputs, read one after the other.
    pub fn all(inputs: impl IntoIterator<Item = Input>) -> Self {
        Self::of(inputs.into_iter().flat_map(|input| input.parts).collect())
    }

    /// Only the files whose folders `column=value` the predicate selects; other folders are not even listed. A file must be selected by
    /// every predicate.
    #[must_use]
    pub fn filtered(mut self, predicate: &Predicate) -> Self {
        for part in &mut self.parts {
            let both = part.filter.take().map(|first| first.and(predicate.clone()));
            part.filter = Some(both.unwrap_or_else(|| predicate.clone()));
        }
        Self::of(self.parts)
    }

    /// The same input with the files of one listing: later lists and reads do not ask the store again.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn listed(self) -> Result<Self, Fault> {
        let files = Some(self.list().await?.into());
        Ok(Self { files, ..self })
    }

    /// All files, in the order of the inputs and sorted by path within each. At least one, or a fault that names the
    /// path. A file that two inputs name is a fault, too: its rows would be read twice in each epoch.
    pub async fn list(&self) -> Result<Vec<DataFile>, Fault> {
        if let Some(files) = &self.files {
            return Ok(files.to_vec());
        }
        let (mut files, mut seen) = (Vec::new(), Seen::default());
        for InputPart { location, filter, name } in &self.parts {
            let text = name.clone().unwrap_or_else(|| location.to_string());
            let (store, mut listed) = match location {
                Location::Url(url, stores) => {
                    let (store, path) = stores.open(url)?;
                    let root = Stores::root(url);
                    let listed = listing::list(&store, &path, &text, &root, filter.as_ref()).await?;
                    (comparable(&root), listed)
                }
                Location::InStore(store, path, root) => {
                    let listed = listing::list(store, path, &text, root, filter.as_ref()).await?;
                    (format!("{:p}", Arc::as_ptr(store)), listed)
                }
            };
            if let Some(name) = name {
                listed.iter_mut().for_each(|file| file.name.clone_from(name));
            }
            seen.add(&store, &listed)?;
            files.extend(listed);
        }
        if files.is_empty() {
            return Err(Fault::user("no input given: name a file, a folder or a glob"));
        }
        Ok(files)
    }
}

impl<T: Into<PathBuf>> From<T> for Input {
    fn from(path: T) -> Self {
        let url = path.into().to_string_lossy().into_owned();
        Self::at(Location::Url(url, Stores::default()))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url, _) => f.write_str(url),
            Self::InStore(store, path, root) if root.is_empty() => write!(f, "{store}:{path}"),
            Self::InStore(_, path, root) => write!(f, "{root}{path}"),
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, InputPart { location, filter, name }) in self.parts.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            match name {
                Some(name) => write!(f, "{comma}{name}")?,
                None => write!(f, "{comma}{location}")?,
            }
            if let Some(filter) = filter {
                write!(f, " where {filter}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_actors::FaultKind;

    use super::*;
    use crate::store_error::Explained;

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
        let left_out = ["_SUCCESS", ".hidden", ".x=1/a.parquet", "_tmp/d.parquet", "e.parquet._COPYING_", "!zero.csv"];
        let (_dir, root) =
            folder(&[&["b.parquet", "a.parquet", "sub/c.parquet", "_d=1/d.parquet"], &left_out[..]].concat());
        let all = ["_d=1/d.parquet", "a.parquet", "b.parquet", "sub/c.parquet"];
        let said = async |text: String| names(&Input::from(text).list().await.unwrap(), &root);
        assert_eq!(said(root.clone()).await, all);
        assert_eq!(said(format!("file://{root}/")).await, all);
        assert_eq!(said(format!("{root}/sub/../?.parquet")).await, all[1..3]);
        assert_eq!(said(format!("{root}/**/*.parquet")).await, all);
        assert_eq!(said(format!("{root}/b.parquet")).await, ["b.parquet"]);
    }

    /// A bug: what the name matches as a glob was read.
    #[tokio::test]
    async fn a_file_or_folder_with_a_wildcard_in_its_name_is_read_alone_if_it_is_named() {
        let (_dir, root) = folder(&["a?b.parquet", "axb.parquet", "d*/x.parquet", "d*x/x.parquet"]);
        let list = async |text: &str| names(&Input::from(format!("{root}/{text}")).list().await.unwrap(), &root);
        assert_eq!(list("a?b.parquet").await, ["a?b.parquet"]);
        assert_eq!(list("d*").await, ["d*/x.parquet"]);
        assert_eq!(list("d*/x.parquet").await, ["d*/x.parquet"]);
        assert_eq!(list("a*b.parquet").await, ["a?b.parquet", "axb.parquet"]);
        assert_eq!(list("d?x").await, ["d*x/x.parquet"]);
    }

    #[tokio::test]
    async fn a_listed_input_asks_its_store_no_more_unless_it_is_another_one() {
        let (_dir, root) = folder(&["day=1/a.csv"]);
        let input = Input::from(root.clone()).listed().await.unwrap();
        for gone in [false, true] {
            if gone {
                std::fs::rename(format!("{root}/day=1/a.csv"), format!("{root}/day=1/b.csv")).unwrap();
            }
            assert_eq!(names(&input.clone().list().await.unwrap(), &root), ["day=1/a.csv"]);
        }
        let others = [
            input.clone().filtered(&"day = 1".parse().unwrap()),
            input.clone().with_stores(&Stores::default()),
            Input::all([input]),
        ];
        for other in others {
            assert_eq!(names(&other.list().await.unwrap(), &root), ["day=1/b.csv"]);
        }
        assert!(Input::from(format!("{root}/nowhere")).listed().await.is_err());
    }

    #[tokio::test]
    async fn a_file_that_two_inputs_name_is_refused() {
        let (_dir, root) = folder(&["a.csv", "sub/a.csv", "sub/b.csv"]);
        let list = async |paths: [&str; 2]| {
            let input =
                Input::all(paths.map(|path| Input::from(format!("{root}/{path}")).with_stores(&Stores::default())));
            input.list().await.map(|files| files.len()).map_err(|fault| fault.to_string())
        };
        assert_eq!(list(["a.csv", "sub"]).await, Ok(3));
        for twice in [["sub", "sub/b.csv"], ["**/b.csv", "sub/"], ["sub/../sub/b.csv", "sub/b*"]] {
            let said = list(twice).await.unwrap_err();
            assert!(said.contains("sub/b.csv` is named twice") && said.contains("data.epochs"), "{twice:?}: {said}");
        }
        let url = Input::all([Input::from(format!("{root}/a.csv")), Input::from(format!("file://{root}/a.csv"))]);
        assert!(url.list().await.unwrap_err().to_string().contains("is named twice"));
    }

    #[tokio::test]
    async fn a_file_that_a_link_names_again_is_refused() {
        use std::os::unix::fs::symlink;
        let (_dir, root) = folder(&["logs/day=1/a.csv", "logs/day=2/a.csv", "b.csv"]);
        symlink("day=2", format!("{root}/logs/latest")).unwrap();
        symlink("b.csv", format!("{root}/c.csv")).unwrap();
        symlink("logs", format!("{root}/current")).unwrap();
        let list = async |paths: &[&str]| {
            let input = Input::all(paths.iter().map(|path| Input::from(format!("{root}/{path}"))));
            input.list().await.map(|files| files.len()).map_err(|fault| fault.to_string())
        };
        for twice in
            [&["logs"][..], &["logs/day=2", "logs/latest"], &["b.csv", "c.csv"], &["logs/day=1", "current/day=1"]]
        {
            let said = list(twice).await.unwrap_err();
            assert!(said.contains("are one file, by a symbolic link"), "{twice:?}: {said}");
        }
        for once in [&["logs/latest"][..], &["logs/day=1", "logs/latest"], &["c.csv", "current/day=*"]] {
            assert!(list(once).await.is_ok(), "{once:?}");
        }
        std::fs::rename(format!("{root}/logs/latest"), format!("{root}/logs/_latest")).unwrap();
        assert_eq!(list(&["logs"]).await, Ok(2));
    }

    #[tokio::test]
    async fn what_is_not_there_is_named() {
        let (_dir, root) = folder(&["!zero"]);
        let said = async |text: String| Input::from(text).list().await.unwrap_err().to_string();
        assert!(said(root.clone()).await.contains("holds no data"));
        assert!(said(format!("{root}/nope")).await.contains(&format!("nothing at `{root}/nope`")));
        assert!(said(format!("{root}/*.x")).await.contains("no file or folder matches"));
        assert!(said(format!("{root}/nope/*.x")).await.contains("no file or folder matches"));
        for glob in ["{a,b}.csv", "part-[0-9]*"] {
            assert!(said(format!("{root}/{glob}")).await.contains("`[` and `{` are part of a name, not of a glob"));
        }
        assert!(said("s3://b/k".into()).await.contains("s3://"));
        assert!(said(format!("{root}/zero")).await.contains("empty file"));
    }

    #[tokio::test]
    async fn an_empty_parquet_file_and_a_link_to_nothing_are_faults_unless_left_out() {
        use std::os::unix::fs::symlink;
        let (_dir, root) = folder(&["a/b.parquet", "a/_tmp/x.parquet", "e/day=1/x.parquet"]);
        std::fs::write(format!("{root}/e/day=1/zero.parquet"), "").unwrap();
        let said = async |text: &str| Input::from(format!("{root}/{text}")).list().await.unwrap_err().to_string();
        let empty = said("e").await;
        assert!(empty.contains("e/day=1/zero.parquet` is empty"), "{empty}");
        assert!(said("e/*/z*").await.contains("is empty"));
        assert_eq!(Input::from(format!("{root}/e/*/x*")).list().await.unwrap().len(), 1);
        symlink("/nowhere/at/all", format!("{root}/a/gone.parquet")).unwrap();
        symlink("/nowhere/at/all", format!("{root}/a/_tmp/gone")).unwrap();
        let link = said("a").await;
        assert!(link.contains("a/gone.parquet` is a link to a file or folder that is not there"), "{link}");
        assert!(said("a/*.parquet").await.contains("is a link to"));
        assert_eq!(Input::from(format!("{root}/a/b*.parquet")).list().await.unwrap().len(), 1);
        std::fs::rename(format!("{root}/a/gone.parquet"), format!("{root}/e/day=1/gone")).unwrap();
        std::fs::remove_file(format!("{root}/e/day=1/zero.parquet")).unwrap();
        assert!(filtered(format!("{root}/e"), "day = 1").await.unwrap_err().to_string().contains("is a link to"));
        std::fs::create_dir(format!("{root}/e/day=2")).unwrap();
        std::fs::write(format!("{root}/e/day=2/x.parquet"), "x").unwrap();
        assert_eq!(filtered(format!("{root}/e"), "day = 2").await.unwrap().len(), 1);
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
    async fn a_glob_matches_folders_with_all_below_them() {
        let (_dir, root) = folder(&LOGS);
        let files = Input::from(format!("{root}/logs/day=2026-11-1*")).list().await.unwrap();
        assert_eq!(names(&files, &root), LOGS[..4]);
        assert_eq!(files[0].partitions.get("day"), Some(Some("2026-11-18")));
        let files = filtered(format!("{root}/logs/day=2026-11-*"), "hour = 3").await.unwrap();
        assert_eq!(names(&files, &root), LOGS[..2]);
        let store = Arc::new(object_store::local::LocalFileSystem::new_with_prefix(&root).unwrap());
        let files = Input::in_store(store, Path::parse("logs/day=2026-11-2*").unwrap()).list().await.unwrap();
        assert_eq!(names(&files, ""), LOGS[4..5]);
    }

    #[tokio::test]
    async fn the_folders_of_the_path_that_was_named_are_known() {
        let (_dir, root) = folder(&LOGS);
        for path in ["logs/day=2026-11-18", "logs/day=2026-11-18/hour=03/a", "logs/day=2026-11-18/*/*"] {
            let files = Input::from(format!("{root}/{path}")).list().await.unwrap();
            let partitions = &files[0].partitions;
            assert_eq!(
                (partitions.get("day"), partitions.get_above("day")),
                (None, Some(Some("2026-11-18"))),
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn pipes_and_devices_are_refused_by_name_before_they_are_opened() {
        let (_dir, root) = folder(&["rows/a.csv"]);
        let pipe = format!("{root}/rows/pipe.csv");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let said = async |path: &str| Input::from(path).list().await.unwrap_err().to_string();
        for path in [pipe.clone(), format!("{root}/rows"), format!("{root}/rows/*.csv"), format!("{root}/r*")] {
            let said = said(&path).await;
            assert!(
                said.contains("pipe.csv` is a pipe") || said.contains(&format!("`{pipe}` is a pipe")),
                "{path}: {said}"
            );
        }
        assert!(said("/dev/zero").await.contains("`/dev/zero` is a pipe, a socket or a device"));
        assert_eq!(Input::from(format!("{root}/rows/a*")).list().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_name_that_ends_in_a_hash_and_digits_is_refused_and_not_left_out() {
        let (_dir, root) = folder(&["rows/a.csv", "rows/part#1", "rows/b#x.csv", "more#2/a.csv", "rows/_x/part#1"]);
        let said = async |path: String| {
            let fault = Input::from(path).list().await.unwrap_err();
            assert_eq!(fault.domain, forebay_actors::Domain::User);
            fault.to_string()
        };
        for path in ["rows/part#1", "rows", "rows/p*", "**"] {
            let said = said(format!("{root}/{path}")).await;
            assert!(said.contains("rows/part#1` has a name that ends in `#` and digits"), "{path}: {said}");
            assert!(said.contains("rename the file"), "{path}: {said}");
        }
        for (path, file) in [("rows/b*", "rows/b#x.csv"), ("more#2", "more#2/a.csv"), ("rows/b#x.csv", "rows/b#x.csv")]
        {
            let files = Input::from(format!("{root}/{path}")).list().await.unwrap();
            assert_eq!(names(&files, &root), [file], "{path}");
        }
        assert!(said(format!("{root}/rows/none#1")).await.contains("there is nothing at"));
    }

    #[tokio::test]
    async fn a_name_with_a_control_character_is_said_in_one_line() {
        let (_dir, root) = folder(&["rows/a.csv", "rows/b\tc\n.csv"]);
        for (path, name) in
            [("rows", "rows/b\\tc\\n.csv"), ("rows/*", "rows/b\\tc\\n.csv"), ("d\ne/*.csv", "d\\ne/*.csv")]
        {
            let said = Input::from(format!("{root}/{path}")).list().await.unwrap_err().to_string();
            assert!(said.contains(name) && said.contains("rename or remove it") && !said.contains('\n'), "{said}");
        }
    }

    #[tokio::test]
    async fn a_home_folder_that_no_shell_has_filled_in_is_told() {
        for path in ["~/rows/nowhere", "~/rows/nowhere-*.csv"] {
            let said = Input::from(path).list().await.unwrap_err().to_string();
            assert!(said.contains("did not expand `~`") && said.contains("$HOME"), "{said}");
        }
    }

    /// A store whose listing of a whole folder fails: like a disk with a folder that may not be read (`root` may read all), or, if
    /// `has_waited`, like HDFS after a wait for a ticket.
    #[derive(Debug)]
    struct NotReadable {
        disk: object_store::local::LocalFileSystem,
        has_waited: bool,
    }

    impl fmt::Display for NotReadable {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("NotReadable")
        }
    }

    #[async_trait::async_trait]
    impl ObjectStore for NotReadable {
        async fn put_opts(
            &self,
            path: &Path,
            payload: object_store::PutPayload,
            options: object_store::PutOptions,
        ) -> object_store::Result<object_store::PutResult> {
            self.disk.put_opts(path, payload, options).await
        }

        async fn put_multipart_opts(
            &self,
            path: &Path,
            options: object_store::PutMultipartOptions,
        ) -> object_store::Result<Box<dyn object_store::MultipartUpload>> {
            self.disk.put_multipart_opts(path, options).await
        }

        async fn get_opts(
            &self,
            path: &Path,
            options: object_store::GetOptions,
        ) -> object_store::Result<object_store::GetResult> {
            self.disk.get_opts(path, options).await
        }

        fn delete_stream(
            &self,
            paths: futures::stream::BoxStream<'static, object_store::Result<Path>>,
        ) -> futures::stream::BoxStream<'static, object_store::Result<Path>> {
            self.disk.delete_stream(paths)
        }

        fn list(
            &self,
            _: Option<&Path>,
        ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
            let source: Box<dyn std::error::Error + Send + Sync> = match self.has_waited {
                true => Box::new(Explained {
                    text: "no ticket".into(),
                    users: true,
                    kind: FaultKind::Other,
                    waited: true,
                    source: None,
                }),
                false => Box::new(std::io::Error::from(std::io::ErrorKind::PermissionDenied)),
            };
            Box::pin(futures::stream::iter([Err(object_store::Error::Generic { store: "NotReadable", source })]))
        }

        async fn list_with_delimiter(&self, path: Option<&Path>) -> object_store::Result<object_store::ListResult> {
            assert!(!path.is_some_and(|path| path.as_ref().contains("_temporary")), "it may not be read");
            assert!(!self.has_waited, "it would wait again");
            self.disk.list_with_delimiter(path).await
        }

        async fn copy_opts(
            &self,
            from: &Path,
            to: &Path,
            options: object_store::CopyOptions,
        ) -> object_store::Result<()> {
            self.disk.copy_opts(from, to, options).await
        }
    }

    #[tokio::test]
    async fn a_folder_that_is_left_out_need_not_be_readable() {
        let (_dir, root) = folder(&["rows/a.csv", "rows/_temporary/0/b.csv", "rows/day=1/c.csv"]);
        let disk = object_store::local::LocalFileSystem::new_with_prefix(&root).unwrap();
        let store = NotReadable { disk, has_waited: false };
        let files = Input::in_store(Arc::new(store), Path::from("rows")).list().await.unwrap();
        assert_eq!(names(&files, ""), ["rows/a.csv", "rows/day=1/c.csv"]);
    }

    /// A bug: HDFS waited for a ticket that had expired, and then again for as long.
    #[tokio::test]
    async fn a_store_that_has_waited_in_vain_is_not_asked_again() {
        let (_dir, root) = folder(&["rows/a.csv"]);
        let disk = object_store::local::LocalFileSystem::new_with_prefix(&root).unwrap();
        let store = NotReadable { disk, has_waited: true };
        let fault = Input::in_store(Arc::new(store), Path::from("rows")).list().await.unwrap_err();
        assert!(fault.domain == forebay_actors::Domain::User && fault.to_string().contains("no ticket"), "{fault}");
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
        let files = Input::from(format!("{root}/logs/day=2026-11-2*/*/a")).list().await.unwrap();
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
        // A loop of links, at which any walk that enters it fails.
        let old = format!("{root}/logs/day=2020-01-01");
        std::fs::create_dir(&old).unwrap();
        symlink(&old, format!("{old}/hour=1")).unwrap();
        let said = Input::from(format!("{root}/logs")).list().await.unwrap_err().to_string();
        assert!(said.contains("a link makes a loop of folders") && said.matches("hour=1").count() == 1, "{said}");
        assert_eq!(filtered(format!("{root}/logs"), "day = '2026-11-18'").await.unwrap().len(), 1);
        assert_eq!(Input::from(format!("{root}/logs/day=2026-*/*/b")).list().await.unwrap().len(), 1);
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
        assert!(said("logs/x*", "hour = 3").await.contains("no file or folder matches"));
    }
}
