//! Clients: by URL, once a process, with the settings of the cluster and the user's credentials.
//!
//! Comes in: `hdfs://host:port/`, `hdfs://nameservice/`, `hdfs:///` (the default file system), `viewfs://`; the
//! environment. Goes out: [`Cluster`]. Reads `$HADOOP_CONF_DIR` (or `$HADOOP_HOME/etc/hadoop`); connects to nothing yet.
//!
//! | variable | meaning |
//! |---|---|
//! | `HADOOP_CONF_DIR` | folder of `core-site.xml` and `hdfs-site.xml` |
//! | `HADOOP_USER_NAME` | the user, on a cluster without Kerberos; default: the user of the process |
//! | `KRB5CCNAME`, `KRB5_CONFIG` | ticket cache and settings, as everywhere with Kerberos |
//! | `FOREBAY_KERBEROS_PRINCIPAL`, `FOREBAY_KERBEROS_KEYTAB` | log in from a keytab instead of the ticket cache |
//! | `FOREBAY_HDFS_PATIENCE` | seconds that a NameNode that was there before is waited for; default 300 |

use std::env;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use forebay_actors::Fault;
use hdfs_native::{Client, ClientBuilder, HdfsError};
use hdfs_native_object_store::HdfsObjectStore;
use object_store::ObjectStore;
use object_store::path::Path;

use super::HdfsStore;
use super::patience::from_hdfs;
use super::read::{OpenFile, Pace};
use crate::store::io_runtime;

/// The store of a URL's root; one for all who ask, so that connections and block locations are shared.
pub(crate) fn open(root: &str) -> Result<Arc<dyn ObjectStore>, Fault> {
    static OPEN: LazyLock<DashMap<String, HdfsStore>> = LazyLock::new(DashMap::new);
    if let Some(store) = OPEN.get(root) {
        return Ok(Arc::new(store.clone()));
    }
    let store = HdfsStore(Arc::new(Cluster::new(root, Settings::from_env()?)?));
    Ok(Arc::new(OPEN.entry(root.to_owned()).or_insert(store).clone()))
}

/// What the environment says.
#[derive(Clone, Debug)]
struct Settings {
    principal: Option<String>,
    keytab: Option<String>,
    patience: Duration,
}

impl Settings {
    fn from_env() -> Result<Self, Fault> {
        let text = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let (principal, keytab) = (text("FOREBAY_KERBEROS_PRINCIPAL"), text("FOREBAY_KERBEROS_KEYTAB"));
        if keytab.is_some() && principal.is_none() {
            return Err(Fault::user(
                "FOREBAY_KERBEROS_KEYTAB names a keytab: set FOREBAY_KERBEROS_PRINCIPAL to whom it logs in, for instance alice@EXAMPLE.COM",
            ));
        }
        if let Some(keytab) = &keytab
            && let Err(e) = std::fs::File::open(keytab)
        {
            return Err(Fault::user(format!("cannot read the keytab `{keytab}` of FOREBAY_KERBEROS_KEYTAB")).because(e));
        }
        let patience = match text("FOREBAY_HDFS_PATIENCE") {
            None => 300.0,
            Some(value) => value.parse::<f64>().ok().filter(|s| (0.0..=1e9).contains(s)).ok_or_else(|| {
                Fault::user(format!("FOREBAY_HDFS_PATIENCE is `{value}`, expected a number of seconds"))
            })?,
        };
        Ok(Self { principal, keytab, patience: Duration::from_secs_f64(patience) })
    }
}

/// Connections to the NameNodes. Replaced as a whole when one of them hangs.
pub(super) struct Link {
    pub(super) client: Client,
    /// Leaves a DataNode that sends nothing for two seconds, whatever the cluster's own timeout is.
    pub(super) impatient: Client,
    pub(super) store: HdfsObjectStore,
}

impl Link {
    fn new(root: &str, settings: &Settings, config: &[(&str, &str)]) -> hdfs_native::Result<Self> {
        let client = |more: &[_]| client(root, settings, &[config, more].concat());
        let patient = client(&[])?;
        Ok(Self {
            store: HdfsObjectStore::new(patient.clone()),
            client: patient,
            impatient: client(&[("dfs.client.socket-timeout", "2000")])?,
        })
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

/// A name service or a NameNode, and what is known of its files.
pub(super) struct Cluster {
    root: String,
    settings: Settings,
    link: Mutex<Arc<Link>>,
    /// Files that are being read: path to block locations.
    pub(super) files: DashMap<Path, Arc<OpenFile>>,
    pub(super) pace: Pace,
    /// Whether a NameNode ever answered.
    met: AtomicBool,
}

impl Cluster {
    fn new(root: &str, settings: Settings) -> Result<Self, Fault> {
        let link = Link::new(root, &settings, &[]).map_err(|e| cannot_open(root, e))?;
        Ok(Self {
            root: root.to_owned(),
            settings,
            link: Mutex::new(Arc::new(link)),
            files: DashMap::new(),
            pace: Pace::default(),
            met: AtomicBool::new(false),
        })
    }

    /// `hdfs://host:8020/`.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    pub(super) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// New connections, the NameNodes in a random order: the one that is asked first may have vanished without a word.
    pub(super) fn reconnect(&self) {
        let service = self.root.split("://").nth(1).unwrap_or_default().trim_end_matches('/');
        let random = format!("dfs.client.failover.random.order.{service}");
        match Link::new(&self.root, &self.settings, &[(&random, "true")]) {
            Ok(link) => *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(link),
            Err(e) => tracing::warn!(store = %self.root, error = %e, "cannot reconnect"),
        }
    }

    /// How long a NameNode is waited for: a wrong address shall show soon, a restart shall not end a run.
    pub(super) fn patience(&self) -> Duration {
        const FIRST: Duration = Duration::from_secs(8);
        if self.met.load(Ordering::Relaxed) { self.settings.patience } else { self.settings.patience.min(FIRST) }
    }

    pub(super) fn met(&self) {
        self.met.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.root)
    }
}

fn client(root: &str, settings: &Settings, config: &[(&str, &str)]) -> hdfs_native::Result<Client> {
    // Two rounds over the NameNodes: `patience` waits for them, with a word about it.
    let few = [
        ("dfs.client.failover.max.attempts", "3"),
        ("dfs.client.failover.sleep.base.millis", "100"),
        ("dfs.client.failover.sleep.max.millis", "500"),
    ];
    let mut builder = ClientBuilder::new()
        .with_url(root.trim_end_matches('/'))
        .with_config(few.iter().chain(config).copied())
        .with_io_runtime(io_runtime().clone());
    if let Some(principal) = &settings.principal {
        builder = builder.with_kerberos_principal(principal);
    }
    if let Some(keytab) = &settings.keytab {
        builder = builder.with_kerberos_keytab(keytab);
    }
    builder.build()
}

fn cannot_open(root: &str, error: HdfsError) -> Fault {
    let folder = match env::var("HADOOP_CONF_DIR") {
        Ok(folder) => format!("HADOOP_CONF_DIR is `{folder}`"),
        Err(_) => "HADOOP_CONF_DIR is not set".to_owned(),
    };
    let what = match &error {
        HdfsError::InvalidArgument(text) if text.contains("No NameNode hosts") => {
            let name = root.split("://").nth(1).unwrap_or_default().trim_end_matches('/');
            format!(
                "cannot open `{root}`: no name service `{name}` is defined in hdfs-site.xml ({folder}): set HADOOP_CONF_DIR to \
                 the cluster's settings, or name the NameNode with its port, as in hdfs://{name}:8020/"
            )
        }
        HdfsError::InvalidArgument(_) => {
            format!("cannot open `{root}`: it names no host, and core-site.xml has no fs.defaultFS on HDFS ({folder})")
        }
        HdfsError::XmlParseError(_) => {
            format!("cannot open `{root}`: the cluster's settings are not valid XML ({folder})")
        }
        _ => format!("cannot open `{root}` ({folder})"),
    };
    Fault::user(what).because(error)
}
