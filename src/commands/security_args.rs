//! The token and the certificate of a command that listens.

use std::path::PathBuf;

use clap::Args;

use crate::net::SecurityFiles;

/// Needed if other machines can reach the address.
#[derive(Clone, Args)]
pub(crate) struct SecurityArgs {
    /// A file with the token that every request must carry (Authorization: Bearer TOKEN).
    #[arg(long, env = "FOREBAY_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificate of this process (PEM).
    #[arg(long, env = "FOREBAY_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM).
    #[arg(long, env = "FOREBAY_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
}

impl SecurityArgs {
    /// The files of these arguments; for a missing argument the file of `others`.
    pub(crate) fn files(&self, others: SecurityFiles) -> SecurityFiles {
        SecurityFiles {
            token_file: self.token_file.clone().or(others.token_file),
            tls_cert: self.tls_cert.clone().or(others.tls_cert),
            tls_key: self.tls_key.clone().or(others.tls_key),
            tls_ca: others.tls_ca,
        }
    }
}

/// For a process of a run, which listens and calls the other processes.
#[derive(Clone, Args)]
pub(crate) struct RunSecurityArgs {
    #[command(flatten)]
    security: SecurityArgs,
    /// The authority that signed the certificates of the run, PEM.
    #[arg(long, env = "FOREBAY_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl RunSecurityArgs {
    /// As [`SecurityArgs::files`].
    pub(crate) fn files(&self, others: SecurityFiles) -> SecurityFiles {
        let tls_ca = self.tls_ca.clone().or_else(|| others.tls_ca.clone());
        SecurityFiles { tls_ca, ..self.security.files(others) }
    }
}
