//! The `[network]` section of a job.

use std::path::PathBuf;

use forebay_net::SecurityFiles;
use serde::{Deserialize, Serialize};

/// Addresses, TLS and tokens of a run of several processes. The environment variable of a field overrides the field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkOptions {
    /// Address of the coordinator, which is in ps 0 (in trainer 0 without ps), for instance `10.0.0.7:7600`. Every process
    /// joins there. Environment: `FOREBAY_COORDINATOR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<String>,
    /// Name of the run, for instance `monday`. Processes of another run are refused. Default: "forebay". Environment:
    /// `FOREBAY_RUN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// File with the token that every process of the run must present, for instance `token`. Environment:
    /// `FOREBAY_TOKEN_FILE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Certificate of a process that listens (PEM), for instance `node.pem`. Environment: `FOREBAY_TLS_CERT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert` (PEM), for instance `node.key`. Environment: `FOREBAY_TLS_KEY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Certificate authority that signed the certificates of the run (PEM), for instance `ca.pem`. Environment:
    /// `FOREBAY_TLS_CA`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_ca: Option<PathBuf>,
}

impl NetworkOptions {
    /// The files of the token and of TLS.
    pub fn security_files(&self) -> SecurityFiles {
        SecurityFiles {
            token_file: self.token_file.clone(),
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_ca: self.tls_ca.clone(),
        }
    }
}
