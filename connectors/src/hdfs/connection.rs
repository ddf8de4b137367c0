//! Connections to the NameNodes of one URL: `hdfs://host:port/`, `hdfs://nameservice/`, `hdfs:///` (the default file
//! system) or `viewfs://`. Reads the cluster's settings; connects at the first call.

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use forebay_actors::IoRuntime;
use hdfs_native::client::FileStatus;
use hdfs_native::{Client, ClientBuilder, HdfsError};
use hdfs_native_object_store::HdfsObjectStore;
use object_store::path::Path;
use object_store::{Error, ListResult, ObjectMeta};

use super::errors::from_hdfs;
use super::settings::Settings;
use super::silence::Heard;

/// The latest time of a file, in milliseconds since 1970: about the year 140,000. Much later ones are no times of `ObjectMeta`.
const LATEST: u64 = 1 << 52;

/// Replaced as a whole when a NameNode hangs.
pub(super) struct Connection {
    pub(super) client: Client,
    /// Leaves a DataNode that sends nothing for two seconds, instead of waiting for the cluster's own timeout.
    pub(super) quick: Client,
    pub(super) store: HdfsObjectStore,
    /// The links of the mount table.
    links: Vec<Path>,
}

impl Connection {
    pub(super) fn new(
        root: &str,
        settings: &Settings,
        io: &IoRuntime,
        config: &[(&str, &str)],
    ) -> hdfs_native::Result<Self> {
        let client = client(root, settings, io, config)?;
        let quick = [config, &[("dfs.client.socket-timeout", "2000")]].concat();
        // hdfs-native compares links with paths of this form, so another one leads nowhere.
        let links = settings.hadoop.mount_links(root).into_iter().filter_map(|link| Path::parse(link).ok()).collect();
        Ok(Self {
            store: HdfsObjectStore::new(client.clone()),
            client,
            quick: self::client(root, settings, io, &quick)?,
            links,
        })
    }

    /// The size and the version of a file.
    pub(super) async fn head(&self, path: &Path) -> object_store::Result<ObjectMeta> {
        let there = self.client.get_file_info(&format!("/{path}")).await.map_err(from_hdfs)?;
        match there.isdir {
            true => Err(Error::NotFound { path: path.to_string(), source: "it is a folder".into() }),
            false => meta(&there),
        }
    }

    /// The entries directly in a folder, links of the mount table included; none if the folder is missing. The NameNode answers with some
    /// entries at a time.
    pub(super) async fn list(&self, folder: &Path, heard: &Heard) -> object_store::Result<ListResult> {
        let own = format!("/{folder}");
        let (mut common_prefixes, mut objects) = (Vec::new(), Vec::new());
        let entries = self.client.list_status_iter(&own, false);
        while let Some(entry) = entries.next().await {
            heard.add();
            match entry {
                Err(HdfsError::FileNotFound(_)) => {}
                Err(e) => return Err(from_hdfs(e)),
                // HDFS lists a file as the only entry of itself. A file behind a link stays: the listing above takes links for folders.
                Ok(entry) if entry.path == own && !self.links.contains(folder) => {}
                Ok(entry) if entry.isdir => common_prefixes.push(Path::parse(&entry.path)?),
                Ok(entry) => objects.push(meta(&entry)?),
            }
        }
        let mut found = ListResult { common_prefixes, objects, extensions: Default::default() };
        add_links(&mut found, &self.links, folder);
        Ok(found)
    }

    /// Whether a file or a folder has gone from one place to another.
    pub(super) async fn has_moved(&self, from: &Path, to: &Path) -> object_store::Result<bool> {
        Ok(!self.has(from).await? && self.has(to).await?)
    }

    async fn has(&self, path: &Path) -> object_store::Result<bool> {
        match self.client.get_file_info(&format!("/{path}")).await {
            Ok(_) => Ok(true),
            Err(HdfsError::FileNotFound(_)) => Ok(false),
            Err(e) => Err(from_hdfs(e)),
        }
    }

    /// Deletes a file, or a folder with all below it.
    pub(super) async fn delete(&self, path: &Path) -> object_store::Result<()> {
        let path = format!("/{path}");
        match self.client.delete(&path, true).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(from_hdfs(HdfsError::FileNotFound(path))),
            Err(e) => Err(from_hdfs(e)),
        }
    }
}

/// Adds the links of a mount table, and folders above them, to the other entries of a folder. They hide entries of the same name, as in
/// Hadoop.
fn add_links(found: &mut ListResult, links: &[Path], folder: &Path) {
    let child = |link: &Path| Some(folder.clone().join(link.prefix_match(folder)?.next()?));
    let linked: BTreeSet<Path> = links.iter().filter_map(child).collect();
    found.objects.retain(|file| !linked.contains(&file.location));
    found.common_prefixes.retain(|at| !linked.contains(at));
    found.common_prefixes.extend(linked);
}

fn meta(file: &FileStatus) -> object_store::Result<ObjectMeta> {
    let (modified, bytes) = (file.modification_time, file.length as u64);
    Ok(ObjectMeta {
        location: Path::parse(&file.path)?,
        last_modified: (UNIX_EPOCH + Duration::from_millis(modified.min(LATEST))).into(),
        size: bytes,
        e_tag: Some(format!("{modified:x}-{bytes:x}")),
        version: None,
    })
}

fn client(root: &str, settings: &Settings, io: &IoRuntime, config: &[(&str, &str)]) -> hdfs_native::Result<Client> {
    // Two rounds over the NameNodes: `retry` waits for them longer, and logs it.
    let few = [
        ("dfs.client.failover.max.attempts", "3"),
        ("dfs.client.failover.sleep.base.millis", "100"),
        ("dfs.client.failover.sleep.max.millis", "500"),
    ];
    let mut builder = ClientBuilder::new()
        .with_url(root.trim_end_matches('/'))
        .with_config(settings.hadoop.iter().chain(few).chain(config.iter().copied()))
        .with_io_runtime(io.handle().clone());
    if let Some(principal) = &settings.principal {
        builder = builder.with_kerberos_principal(principal);
    }
    if let Some(keytab) = &settings.keytab {
        builder = builder.with_kerberos_keytab(keytab);
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: a folder above links lacked the rows behind them, without a word.
    #[test]
    fn a_folder_above_links_of_a_mount_table_holds_them_and_what_the_fallback_has() {
        let path = |text: &str| Path::parse(text).unwrap();
        let links = ["data/day=1", "data/day=2/h ä", "data/day=2/b", "one"].map(path);
        for (folder, expected) in [
            ("data", &["data/day=0", "data/day=1", "data/day=2"][..]),
            ("data/day=2", &["data/day=2/b", "data/day=2/h ä"]),
            ("data/day=1", &[]),
            ("dat", &[]),
            ("", &["data", "one"]),
        ] {
            let there = |name: &str| path(&format!("{folder}/{name}"));
            let file = |location| ObjectMeta {
                location,
                last_modified: Default::default(),
                size: 1,
                e_tag: None,
                version: None,
            };
            let fallback = if folder == "data" { vec![there("day=0"), there("day=2")] } else { Vec::new() };
            let objects = vec![file(there("file")), file(there("one"))];
            let mut found = ListResult { common_prefixes: fallback, objects, extensions: Default::default() };
            add_links(&mut found, &links, &path(folder));
            assert_eq!(found.common_prefixes, expected.iter().copied().map(path).collect::<Vec<_>>());
            // The link hides the file `one` of the fallback.
            assert_eq!(found.objects.len(), if folder.is_empty() { 1 } else { 2 });
        }
    }
}
