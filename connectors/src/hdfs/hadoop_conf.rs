//! The settings of `core-site.xml` and `hdfs-site.xml` as Hadoop reads them. hdfs-native reads both files itself, but it follows no
//! `xi:include` and trims no value, so it gets the values that are read here on top.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{env, fs};

use forebay_actors::Fault;
use roxmltree::{Document, Node, ParsingOptions};

/// The deepest inclusion of files; a deeper one means that a file includes itself.
const MOST_DEEP: usize = 16;

/// Values by name.
#[derive(Clone, Debug, Default)]
pub(super) struct HadoopConf(BTreeMap<String, String>);

impl HadoopConf {
    /// Reads the folder that the environment names, if any. Leaves it to hdfs-native to say what is wrong with the two files.
    ///
    /// # Errors
    /// A user fault if a file that is included cannot be read.
    pub(super) fn from_env() -> Result<Self, Fault> {
        match (env::var_os("HADOOP_CONF_DIR"), env::var_os("HADOOP_HOME")) {
            (Some(folder), _) => Self::read(Path::new(&folder)),
            (None, Some(home)) => Self::read(&Path::new(&home).join("etc/hadoop")),
            (None, None) => Ok(Self::default()),
        }
    }

    fn read(folder: &Path) -> Result<Self, Fault> {
        let mut conf = Self::default();
        for name in ["core-site.xml", "hdfs-site.xml"] {
            let file = folder.join(name);
            let Ok(text) = fs::read_to_string(&file) else { continue };
            let Ok(parsed) = parse(&text) else { continue };
            conf.add(parsed.root_element(), &file, 0)?;
        }
        Ok(conf)
    }

    fn add(&mut self, configuration: Node<'_, '_>, file: &Path, depth: usize) -> Result<(), Fault> {
        for child in configuration.children() {
            match child.tag_name().name() {
                "property" => self.add_property(child),
                "include" => self.include(child, file, depth)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add_property(&mut self, property: Node<'_, '_>) {
        let text =
            |name: &str| property.children().find(|child| child.has_tag_name(name)).and_then(|child| child.text());
        if let (Some(name), Some(value)) = (text("name"), text("value")) {
            let (name, value) = (name.trim(), value.trim());
            let value = match name.starts_with("dfs.ha.namenodes.") {
                true => value.split(',').map(str::trim).collect::<Vec<_>>().join(","),
                false => value.to_owned(),
            };
            self.0.insert(name.to_owned(), value);
        }
    }

    fn include(&mut self, include: Node<'_, '_>, file: &Path, depth: usize) -> Result<(), Fault> {
        let Some(href) = include.attribute("href") else { return Ok(()) };
        // An absolute path replaces the folder.
        let included = file.parent().map_or_else(|| PathBuf::from(href), |folder| folder.join(href));
        let cannot =
            || Fault::user(format!("cannot read `{}`, which `{}` includes", included.display(), file.display()));
        if depth == MOST_DEEP {
            return Err(cannot().because("it includes itself"));
        }
        let text = match fs::read_to_string(&included) {
            Ok(text) => text,
            Err(e) => match include.children().find(|child| child.has_tag_name("fallback")) {
                Some(fallback) => return self.add(fallback, file, depth),
                None => return Err(cannot().because(e)),
            },
        };
        let parsed = parse(&text).map_err(|e| cannot().because(e))?;
        self.add(parsed.root_element(), &included, depth + 1)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Names and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The ids of the NameNodes behind the name service of a URL, and their addresses. None for a URL with a host.
    pub(super) fn namenodes(&self, root: &str) -> Vec<(&str, Option<&str>)> {
        self.namenodes_of(self.or_default(authority(root)))
    }

    fn namenodes_of(&self, service: &str) -> Vec<(&str, Option<&str>)> {
        let value = |name: String| self.get(&name);
        let ids = value(format!("dfs.ha.namenodes.{service}")).unwrap_or_default();
        let ids = ids.split(',').filter(|id| !id.is_empty());
        ids.map(|id| (id, value(format!("dfs.namenode.rpc-address.{service}.{id}")))).collect()
    }

    /// The name of the cluster in a URL; without one, the name in the URL of the default file system.
    fn or_default<'a>(&'a self, named: &'a str) -> &'a str {
        match named {
            "" => self.0.get("fs.defaultFS").map_or("", |url| authority(url)),
            named => named,
        }
    }

    /// The paths of the links of a mount table (`viewfs://`), without slashes at their ends. None for another URL.
    pub(super) fn mount_links(&self, url: &str) -> Vec<&str> {
        if !url.starts_with("viewfs://") {
            return Vec::new();
        }
        let links = format!("fs.viewfs.mounttable.{}.link.", self.or_default(authority(url)));
        self.0.keys().filter_map(|name| name.strip_prefix(&links)).map(|link| link.trim_matches('/')).collect()
    }

    fn holds_mount_link(&self, url: &str) -> bool {
        let path = url.splitn(4, '/').nth(3).unwrap_or_default().trim_matches('/');
        self.mount_links(url).into_iter().any(|link| {
            path.is_empty() || link.strip_prefix(path).is_some_and(|below| below.is_empty() || below.starts_with('/'))
        })
    }

    /// The NameNodes of each name service with several, in an order that begins with another one: a setting and its value.
    pub(super) fn rotated(&self, by: usize) -> Vec<(String, String)> {
        let rotated = |service: &str| {
            let mut ids: Vec<&str> = self.namenodes_of(service).into_iter().map(|(id, _)| id).collect();
            let begin = by % ids.len().max(1);
            ids.rotate_left(begin);
            (format!("dfs.ha.namenodes.{service}"), ids.join(","))
        };
        self.services().map(rotated).collect()
    }

    /// The name services with several NameNodes.
    pub(super) fn services(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|name| name.strip_prefix("dfs.ha.namenodes."))
    }

    fn one_name(&self, named: &str) -> String {
        let named = self.or_default(named).rsplit('@').next().unwrap_or_default().to_ascii_lowercase();
        let has_it = |address: &str| address.eq_ignore_ascii_case(&named);
        let mut services = self.services();
        let service =
            services.find(|service| self.namenodes_of(service).iter().any(|(_, address)| address.is_some_and(has_it)));
        service.map_or_else(|| named.clone(), str::to_ascii_lowercase)
    }
}

/// The settings that the environment names, read once; none if they cannot be read, because opening a cluster then returns the error.
static CONF: LazyLock<HadoopConf> = LazyLock::new(|| HadoopConf::from_env().unwrap_or_default());

/// One name for a cluster, to compare URLs: the name service, also for the address of one of its NameNodes; without a name, the default
/// file system.
pub(crate) fn one_name(authority: &str) -> String {
    CONF.one_name(authority)
}

/// Whether a URL is a link of a mount table (`viewfs://`) or a folder above one. A link leads to another place than the folder above it.
pub(crate) fn holds_mount_link(url: &str) -> bool {
    CONF.holds_mount_link(url)
}

/// `ns` of `hdfs://ns/path`.
fn authority(url: &str) -> &str {
    url.split_once("://").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default()
}

fn parse(text: &str) -> Result<Document<'_>, roxmltree::Error> {
    Document::parse_with_options(text, ParsingOptions { allow_dtd: true, ..ParsingOptions::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn property(name: &str, value: &str) -> String {
        format!("<property><name>{name}</name><value>{value}</value></property>")
    }

    #[test]
    fn lists_are_trimmed_and_namenodes_without_an_address_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let all = [
            property("fs.defaultFS", "\n  hdfs://ns\n"),
            property("dfs.ha.namenodes.ns", "nn0, nn1 ,nn2"),
            property("dfs.namenode.rpc-address.ns.nn0", "a:8020"),
            property(" dfs.namenode.rpc-address.ns.nn1 ", " b:8020 "),
        ];
        let text = format!("<?xml version=\"1.0\"?>\n<configuration>{}</configuration>", all.concat());
        fs::write(dir.path().join("core-site.xml"), text).unwrap();
        let conf = HadoopConf::read(dir.path()).unwrap();
        assert!(conf.iter().any(|value| value == ("dfs.ha.namenodes.ns", "nn0,nn1,nn2")), "{conf:?}");
        for root in ["hdfs://ns/", "hdfs:///"] {
            assert_eq!(conf.namenodes(root), [("nn0", Some("a:8020")), ("nn1", Some("b:8020")), ("nn2", None)]);
        }
        assert!(conf.namenodes("hdfs://a:8020/").is_empty());
    }

    #[test]
    fn all_names_of_a_cluster_become_one() {
        let conf = |default: &str| {
            let dir = tempfile::tempdir().unwrap();
            let all = [
                property("fs.defaultFS", default),
                property("dfs.ha.namenodes.ns", "nn0,nn1,nn2"),
                property("dfs.namenode.rpc-address.ns.nn0", "A:8020"),
                property("dfs.namenode.rpc-address.ns.nn1", "b:8020"),
                property("dfs.ha.namenodes.Other", "nn0"),
                property("dfs.namenode.rpc-address.Other.nn0", "c:8020"),
            ];
            fs::write(dir.path().join("core-site.xml"), format!("<configuration>{}</configuration>", all.concat()))
                .unwrap();
            HadoopConf::read(dir.path()).unwrap()
        };
        for default in ["hdfs://ns", "hdfs://ns/", "hdfs://NS/user", "hdfs://b:8020"] {
            for (named, one) in [
                ("", "ns"),
                ("ns", "ns"),
                ("Ns", "ns"),
                ("a:8020", "ns"),
                ("B:8020", "ns"),
                ("me@b:8020", "ns"),
                ("other", "other"),
                ("c:8020", "other"),
                ("a:9000", "a:9000"),
                ("a", "a"),
                ("d:8020", "d:8020"),
            ] {
                assert_eq!(conf(default).one_name(named), one, "{named:?} where {default} is the default");
            }
        }
        let none = HadoopConf::default();
        assert_eq!(["", "NS", "a:8020"].map(|named| none.one_name(named)), ["", "ns", "a:8020"]);
    }

    #[test]
    fn links_of_a_mount_table_and_folders_above_them_hold_links() {
        let dir = tempfile::tempdir().unwrap();
        let all = [
            property("fs.defaultFS", "viewfs://one"),
            property("fs.viewfs.mounttable.one.link./data", "hdfs://ns/data"),
            property("fs.viewfs.mounttable.one.link./data/old", "hdfs://other/old"),
            property("fs.viewfs.mounttable.one.link./logs/day/1", "hdfs://other/1"),
            property("fs.viewfs.mounttable.two.link./other", "hdfs://other/"),
            property("fs.viewfs.mounttable.one.linkFallback", "hdfs://ns/"),
        ];
        fs::write(dir.path().join("core-site.xml"), format!("<configuration>{}</configuration>", all.concat()))
            .unwrap();
        let conf = HadoopConf::read(dir.path()).unwrap();
        for url in ["viewfs://one/data", "viewfs:///data/", "viewfs://one//data/old", "viewfs:///logs", "viewfs://one"]
        {
            assert!(conf.holds_mount_link(url), "{url}");
        }
        for url in
            ["viewfs://one/data/new", "viewfs://one/log", "viewfs://two/data", "viewfs://three/", "hdfs://one/data"]
        {
            assert!(!conf.holds_mount_link(url), "{url}");
        }
        for root in ["viewfs://one/", "viewfs:///"] {
            assert_eq!(conf.mount_links(root), ["data", "data/old", "logs/day/1"]);
        }
        assert!(conf.mount_links("hdfs://one/").is_empty());
    }

    #[test]
    fn included_files_count_where_they_are_included() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let text = format!("<configuration xmlns:xi=\"http://www.w3.org/2001/XInclude\">{text}</configuration>");
            fs::write(dir.path().join(name), text).unwrap();
        };
        fs::create_dir(dir.path().join("more")).unwrap();
        let first = property("a", "1") + &property("b", "1");
        write("core-site.xml", &format!("{first}<xi:include href=\"more/more.xml\"/>{}", property("b", "3")));
        write("more/more.xml", &(property("a", "2") + &property("b", "2") + "<xi:include href=\"again.xml\"/>"));
        write("more/again.xml", &property("c", "2"));
        let instead = format!("<xi:fallback>{}</xi:fallback>", property("d", "4"));
        write("hdfs-site.xml", &format!("<xi:include href=\"none.xml\">{instead}</xi:include>"));
        let conf = HadoopConf::read(dir.path()).unwrap();
        assert_eq!(conf.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3"), ("c", "2"), ("d", "4")]);

        write("hdfs-site.xml", "<xi:include href=\"none.xml\"/>");
        let said = HadoopConf::read(dir.path()).unwrap_err().to_string();
        assert!(said.contains("none.xml") && said.contains("hdfs-site.xml"), "{said}");
        write("hdfs-site.xml", "<xi:include href=\"hdfs-site.xml\"/>");
        let said = HadoopConf::read(dir.path()).unwrap_err().to_string();
        assert!(said.contains("includes itself"), "{said}");
    }
}
