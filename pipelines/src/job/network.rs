//! The `[network]` part of a job: addresses, TLS and tokens of a run of several processes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the processes find each other. Each field may be given to a process by the environment instead, which wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkOptions {
    /// Where the first ps process (the trainer, if there is none) is reached: `HOST:PORT`. The others announce themselves
    /// there. FOREBAY_COORDINATOR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<String>,
    /// The name of the run: processes of another run are refused. Default "forebay". FOREBAY_RUN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// A file with the token that every process of the run shows. FOREBAY_TOKEN_FILE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The certificate of a process that listens, PEM. FOREBAY_TLS_CERT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// Its key, PEM. FOREBAY_TLS_KEY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// The authority that signed the certificates of the run, PEM. FOREBAY_TLS_CA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_ca: Option<PathBuf>,
}
