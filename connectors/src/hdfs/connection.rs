//! Connections to the NameNodes of one URL: `hdfs://host:port/`, `hdfs://nameservice/`, `hdfs:///` (the default file
//! system) or `viewfs://`. Reads the cluster's settings; connects at the first call.

use forebay_actors::IoRuntime;
use hdfs_native::{Client, ClientBuilder, HdfsError};
use hdfs_native_object_store::HdfsObjectStore;
use object_store::path::Path;

use super::errors::from_hdfs;
use super::settings::Settings;

/// Replaced as a whole when a NameNode hangs.
pub(super) struct Connection {
    pub(super) client: Client,
    /// Leaves a DataNode that sends nothing for two seconds, whatever the cluster's own timeout is.
    pub(super) quick: Client,
    pub(super) store: HdfsObjectStore,
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
        Ok(Self {
            store: HdfsObjectStore::new(client.clone()),
            client,
            quick: self::client(root, settings, io, &quick)?,
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
