//! Who may call and who is believed: a token, and certificates.
//!
//! A server that others than this machine can reach must have both, a token and TLS: a token alone would be read on the
//! way, and TLS alone lets everybody in.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use forebay_actors::Fault;
use http::{HeaderMap, HeaderValue, header};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tonic::transport::{ClientTlsConfig, Identity, Server, ServerTlsConfig};

/// Where the secrets lie.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct SecurityFiles {
    /// A word that all processes of a run share; spaces around it are left out.
    pub token_file: Option<PathBuf>,
    /// The certificates of this process as a server, PEM, its own first.
    pub tls_cert: Option<PathBuf>,
    /// The key of the first of them, PEM.
    pub tls_key: Option<PathBuf>,
    /// The authorities that signed the certificates of the others, PEM. Given: all calls use TLS.
    pub tls_ca: Option<PathBuf>,
}

/// A token and certificates, or none.
#[derive(Clone, Default)]
pub struct Security {
    token: Option<String>,
    server: Option<ServerTlsConfig>,
    client: Option<ClientTlsConfig>,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (token, serves, calls) = (self.token.is_some(), self.server.is_some(), self.client.is_some());
        f.debug_struct("Security")
            .field("token", &token)
            .field("serves_tls", &serves)
            .field("calls_tls", &calls)
            .finish()
    }
}

impl Security {
    /// No token, no TLS: on one machine only.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads and checks the files.
    ///
    /// # Errors
    /// User: a file is missing or holds something else, or one is given without the others that it needs.
    pub fn load(files: &SecurityFiles) -> Result<Self, Fault> {
        let token = files.token_file.as_deref().map(token).transpose()?;
        let client = files.tls_ca.as_deref().map(authorities).transpose()?;
        let server = match (&files.tls_cert, &files.tls_key) {
            (Some(cert), Some(key)) => Some(certificates(cert, key)?),
            (None, None) => None,
            (Some(_), None) => return Err(Fault::user("tls_cert is given without tls_key: a server needs both")),
            (None, Some(_)) => return Err(Fault::user("tls_key is given without tls_cert: a server needs both")),
        };
        if server.is_some() && client.is_none() {
            return Err(Fault::user(
                "tls_cert is given without tls_ca: name the authority that signed the certificates of the run, else \
                 this process could not call the others",
            ));
        }
        Ok(Self { token, server, client })
    }

    /// Whether it does not protect a server that other machines can reach: no token, or no TLS.
    pub fn is_open(&self) -> bool {
        self.token.is_none() || self.server.is_none()
    }

    /// The rule for servers.
    pub(crate) fn check_listen(&self, listen: SocketAddr) -> Result<(), Fault> {
        if listen.ip().is_loopback() || !self.is_open() {
            return Ok(());
        }
        let lacks = match (&self.token, &self.server) {
            (None, None) => "a token and TLS",
            (None, Some(_)) => "a token",
            (Some(_), _) => "TLS",
        };
        Err(Fault::user(format!(
            "{listen} can be reached from other machines, and {lacks} is missing: give token_file, tls_cert, tls_key \
             and tls_ca, or listen on 127.0.0.1"
        )))
    }

    /// The rule for callers: a token does not travel in the clear.
    pub(crate) fn check_dial(&self, host: &str) -> Result<(), Fault> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let loopback = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if self.token.is_some() && self.client.is_none() && !loopback {
            return Err(Fault::user(format!(
                "{host} is another machine, and the token would travel there in the clear: give tls_ca"
            )));
        }
        Ok(())
    }

    /// The rule for calls.
    pub(crate) fn check_call(&self, headers: &HeaderMap) -> Result<(), Fault> {
        let Some(token) = &self.token else { return Ok(()) };
        let sent = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let Some(sent) = sent.map(|value| value.strip_prefix(b"Bearer ").unwrap_or_default()) else {
            return Err(Fault::user("a token is asked for here, and none was sent: give token_file"));
        };
        match bool::from(sent.ct_eq(token.as_bytes())) {
            true => Ok(()),
            false => Err(Fault::user("the token that was sent is not the one of this server: give both the same")),
        }
    }

    /// The header of calls.
    pub(crate) fn bearer(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.token.as_ref()?)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    pub(crate) fn server_tls(&self) -> Option<ServerTlsConfig> {
        self.server.clone()
    }

    pub(crate) fn client_tls(&self) -> Option<ClientTlsConfig> {
        self.client.clone()
    }
}

fn read(what: &str, path: &Path) -> Result<String, Fault> {
    let broken = |e| Fault::user(format!("cannot read {what} {}", path.display())).because(e);
    std::fs::read_to_string(path).map_err(broken)
}

fn token(path: &Path) -> Result<String, Fault> {
    let text = read("token_file", path)?;
    let token = text.trim();
    if token.is_empty() || token.len() > 4096 || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Fault::user(format!(
            "token_file {} must hold one word of printable ASCII, at most 4096 characters long",
            path.display()
        )));
    }
    Ok(token.to_owned())
}

fn pem(what: &str, path: &Path, label: &str) -> Result<String, Fault> {
    let text = read(what, path)?;
    let begins = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(label));
    match begins {
        true => Ok(text),
        false => Err(Fault::user(format!("{what} {} holds no {label} in PEM", path.display()))),
    }
}

/// tonic reads certificates when it is configured: so it is here, and thrown away.
fn certificates(cert: &Path, key: &Path) -> Result<ServerTlsConfig, Fault> {
    let identity = Identity::from_pem(pem("tls_cert", cert, "CERTIFICATE")?, pem("tls_key", key, "PRIVATE KEY")?);
    let config = ServerTlsConfig::new().identity(identity);
    let broken = |e| {
        let (cert, key) = (cert.display(), key.display());
        Fault::user(format!("tls_cert {cert} and tls_key {key} are no certificate and its key")).because(e)
    };
    Server::builder().tls_config(config.clone()).map_err(broken)?;
    Ok(config)
}

/// Read one by one: tonic would leave out the ones that it cannot read.
fn authorities(path: &Path) -> Result<ClientTlsConfig, Fault> {
    let pem = pem("tls_ca", path, "CERTIFICATE")?;
    let broken = || Fault::user(format!("tls_ca {} holds a broken certificate", path.display()));
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|e| broken().because(e))?;
        store.add(certificate).map_err(|e| broken().because(e))?;
    }
    Ok(ClientTlsConfig::new().trust_anchors(store.roots))
}
