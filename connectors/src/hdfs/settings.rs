//! The settings of HDFS in the environment, and their faults.
//!
//! | variable | meaning |
//! |---|---|
//! | `HADOOP_CONF_DIR` | folder of `core-site.xml` and `hdfs-site.xml`; default `$HADOOP_HOME/etc/hadoop` |
//! | `HADOOP_USER_NAME` | the user, on a cluster without Kerberos; default: the user of the process |
//! | `KRB5CCNAME`, `KRB5_CONFIG` | ticket cache and settings, as everywhere with Kerberos |
//! | `FOREBAY_KERBEROS_PRINCIPAL`, `FOREBAY_KERBEROS_KEYTAB` | log in from a keytab instead of the ticket cache |
//! | `FOREBAY_HDFS_TIMEOUT` | seconds to wait for a NameNode that answered before; default 300 |

use std::env;
use std::time::Duration;

use forebay_actors::Fault;
use hdfs_native::HdfsError;

use super::hadoop_conf::HadoopConf;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) principal: Option<String>,
    pub(super) keytab: Option<String>,
    pub(super) hadoop: HadoopConf,
    /// How long to wait for a NameNode that answered before.
    pub(super) timeout: Duration,
    /// Replicas and bytes of the blocks of new files: `dfs.replication` and `dfs.blocksize`. `None`: as the NameNode says.
    pub(super) replication: Option<u32>,
    pub(super) block_bytes: Option<u64>,
}

impl Settings {
    pub(super) fn from_env() -> Result<Self, Fault> {
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
        let seconds = match text("FOREBAY_HDFS_TIMEOUT") {
            None => 300.0,
            Some(value) => value.parse::<f64>().ok().filter(|s| (0.0..=1e9).contains(s)).ok_or_else(|| {
                Fault::user(format!("FOREBAY_HDFS_TIMEOUT is `{value}`, expected a number of seconds"))
            })?,
        };
        let (hadoop, timeout) = (HadoopConf::from_env()?, Duration::from_secs_f64(seconds));
        let expected = |name: &str, what: &str| Fault::user(format!("{name} in hdfs-site.xml is no {what}"));
        let replication = hadoop.get("dfs.replication").map(|text| {
            text.parse()
                .ok()
                .filter(|replicas| *replicas > 0)
                .ok_or_else(|| expected("dfs.replication", "number of replicas"))
        });
        let block_bytes = hadoop.get("dfs.blocksize").map(|text| {
            bytes(text)
                .filter(|bytes| *bytes > 0)
                .ok_or_else(|| expected("dfs.blocksize", "number of bytes such as 134217728 or 128m"))
        });
        let (replication, block_bytes) = (replication.transpose()?, block_bytes.transpose()?);
        Ok(Self { principal, keytab, hadoop, timeout, replication, block_bytes })
    }
}

/// A number of bytes as Hadoop writes it, for instance `128m`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << unit)
}

/// The text of hdfs-native about a URL without a host if the default file system is of another kind.
const NO_HOST: &str = "URL must contain a host";

/// Why no client can be made for a URL, and what to set.
pub(super) fn cannot_open(root: &str, error: HdfsError) -> Fault {
    let folder = match env::var("HADOOP_CONF_DIR") {
        Ok(folder) => format!("HADOOP_CONF_DIR is `{folder}`"),
        Err(_) => "HADOOP_CONF_DIR is not set".to_owned(),
    };
    let what = match &error {
        HdfsError::InvalidArgument(text) if root.starts_with("viewfs://") && text != NO_HOST => format!(
            "cannot open `{root}`: its mount table in core-site.xml ({folder}) cannot be used: every link must lead to hdfs:// and a \
             cluster that the settings define, and one fs.viewfs.mounttable.NAME.linkFallback must say where all other paths lead"
        ),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_suffixes_of_hadoop() {
        for (text, expected) in [
            ("134217728", Some(1 << 27)),
            ("128m", Some(1 << 27)),
            ("1G", Some(1 << 30)),
            ("512k", Some(1 << 19)),
            ("12x", None),
            ("m", None),
            ("-1", None),
            ("99999999999999t", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn a_mount_table_that_cannot_be_used_is_not_a_missing_host() {
        let said = |text: &str| cannot_open("viewfs://one/", HdfsError::InvalidArgument(text.into())).to_string();
        for text in ["No viewfs fallback mount found", "No NameNode hosts found"] {
            let said = said(text);
            assert!(said.contains("linkFallback") && said.contains(text), "{said}");
        }
        assert!(said(NO_HOST).contains("it names no host"), "{}", said(NO_HOST));
    }
}
