//! Tokens authenticate callers, and certificates authenticate servers.
//!
//! A server that other machines can reach must have both a token and TLS: a token alone could be read on the network, and TLS alone admits
//! every caller.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forebay_actors::{Fault, FaultKind};
use http::{HeaderMap, HeaderValue, header};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tonic::transport::ClientTlsConfig;

/// The protocols that a server speaks, by their names in ALPN, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where the secrets lie.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct SecurityFiles {
    /// A word that all processes of a run share; spaces around it are left out. No other user may be able to read the file.
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
    server: Option<Arc<ServerConfig>>,
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
        let Self { token, server, .. } = Self::load_for_server(files)?;
        let client = files.tls_ca.as_deref().map(authorities).transpose()?;
        if server.is_some() && client.is_none() {
            return Err(Fault::user(
                "tls_cert is given without tls_ca, which this process needs to call the others: give the authority \
                 that signed the certificates of the run",
            )
            .kind(FaultKind::InvalidJob));
        }
        Ok(Self { token, server, client })
    }

    /// The same for a process that calls no others, so that it needs no authority.
    ///
    /// # Errors
    /// As of [`Security::load`].
    pub fn load_for_server(files: &SecurityFiles) -> Result<Self, Fault> {
        let token = files.token_file.as_deref().map(token).transpose()?;
        let server =
            match (&files.tls_cert, &files.tls_key) {
                (Some(cert), Some(key)) => Some(certificates(cert, key)?),
                (None, None) => None,
                (Some(_), None) => {
                    return Err(Fault::user("tls_cert is given without tls_key: a server needs both")
                        .kind(FaultKind::InvalidJob));
                }
                (None, Some(_)) => {
                    return Err(Fault::user("tls_key is given without tls_cert: a server needs both")
                        .kind(FaultKind::InvalidJob));
                }
            };
        Ok(Self { token, server, client: None })
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
            (None, None) => "a token and TLS are",
            (None, Some(_)) => "a token is",
            (Some(_), _) => "TLS is",
        };
        Err(Fault::user(format!(
            "{listen} can be reached from other machines, and {lacks} missing: give a token (token_file) and a \
             certificate with its key (tls_cert, tls_key), or listen on 127.0.0.1"
        ))
        .kind(FaultKind::InvalidJob))
    }

    /// Whether callers must present a token.
    pub(crate) fn asks_for_token(&self) -> bool {
        self.token.is_some()
    }

    /// The rule for callers: a token does not travel in the clear.
    pub(crate) fn check_dial(&self, host: &str) -> Result<(), Fault> {
        if self.token.is_some() && self.client.is_none() && !is_loopback(host) {
            return Err(Fault::user(format!(
                "{host} is another machine, and the token would be sent unencrypted: give tls_ca"
            ))
            .kind(FaultKind::InvalidJob));
        }
        Ok(())
    }

    /// The rule for calls: the token comes as `Authorization: Bearer TOKEN`.
    pub(crate) fn check_call(&self, headers: &HeaderMap) -> Result<(), Fault> {
        let Some(token) = &self.token else { return Ok(()) };
        let sent = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        check_token(token, sent.map(|value| credentials(value, "Bearer").unwrap_or_default()))
    }

    /// The rule for requests of HTTP: as for calls, or the token is the password of `Authorization: Basic`, which a browser asks for (RFC
    /// 7617). The name is ignored.
    pub(crate) fn check_request(&self, headers: &HeaderMap) -> Result<(), Fault> {
        let Some(token) = &self.token else { return Ok(()) };
        let sent = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let Some(basic) = sent.and_then(|value| credentials(value, "Basic")) else { return self.check_call(headers) };
        let pair = BASE64.decode(basic).unwrap_or_default();
        let password = pair.iter().position(|byte| *byte == b':').map(|colon| &pair[colon + 1..]);
        check_token(token, Some(password.unwrap_or_default()))
    }

    /// The header of calls.
    pub(crate) fn bearer(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.token.as_ref()?)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    pub(crate) fn server_tls(&self) -> Option<Arc<ServerConfig>> {
        self.server.clone()
    }

    pub(crate) fn client_tls(&self) -> Option<ClientTlsConfig> {
        self.client.clone()
    }
}

/// Whether a host of a URL is this machine by its name or number: `localhost`, `127.0.0.1`, `[::1]`.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The text in `Authorization` after the name of a scheme, in any case (RFC 9110, 11.1).
fn credentials<'a>(value: &'a [u8], scheme: &str) -> Option<&'a [u8]> {
    let (name, credentials) = value.split_at_checked(scheme.len())?;
    let credentials = credentials.strip_prefix(b" ")?;
    name.eq_ignore_ascii_case(scheme.as_bytes()).then(|| credentials.trim_ascii_start())
}

fn check_token(token: &str, sent: Option<&[u8]>) -> Result<(), Fault> {
    let Some(sent) = sent else {
        return Err(Fault::user(
            "the server asks for a token, and the caller sent none: give token_file, or send the header \
             `Authorization: Bearer TOKEN`",
        )
        .kind(FaultKind::Refused));
    };
    match bool::from(sent.ct_eq(token.as_bytes())) {
        true => Ok(()),
        false => Err(Fault::user("the caller's token is not the one of this server: give both the same token")
            .kind(FaultKind::Refused)),
    }
}

fn cannot_read(what: &str, path: &Path, e: io::Error) -> Fault {
    let kind = if e.kind() == io::ErrorKind::NotFound { FaultKind::NotFound } else { FaultKind::InvalidJob };
    Fault::user(format!("cannot read {what} {}", path.display())).because(e).kind(kind)
}

fn token(path: &Path) -> Result<String, Fault> {
    let broken = |e| cannot_read("token_file", path, e);
    let mut file = File::open(path).map_err(broken)?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    check_private(path, &file.metadata().map_err(broken)?, &groups(&status))?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(broken)?;
    let token = text.trim();
    if token.is_empty() || token.len() > 4096 || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Fault::user(format!(
            "token_file {} must hold one word of printable ASCII, at most 4096 characters long",
            path.display()
        ))
        .kind(FaultKind::InvalidJob));
    }
    Ok(token.to_owned())
}

/// Refuses a file that other users of this machine can read or change.
///
/// A group that this process is in may read the file: Kubernetes gives the files of a Secret to the group `fsGroup` of the pod, readable.
fn check_private(path: &Path, file: &Metadata, groups: &[u32]) -> Result<(), Fault> {
    let mode = file.mode() & 0o777;
    let who = match mode {
        _ if !file.is_file() => return Ok(()),
        _ if mode & 0o006 != 0 => "all users",
        _ if mode & 0o060 != 0 && !groups.contains(&file.gid()) => "a group that this process is not in",
        _ => return Ok(()),
    };
    let path = path.display();
    Err(Fault::user(format!(
        "token_file {path} is open to {who} (mode {mode:04o}), so the token is not secret: run `chmod 600 {path}`"
    ))
    .kind(FaultKind::InvalidJob))
}

/// The effective group and the other groups of a process, from its /proc/PID/status.
fn groups(status: &str) -> Vec<u32> {
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let effective = of("Gid:").split_whitespace().nth(1);
    effective.into_iter().chain(of("Groups:").split_whitespace()).filter_map(|id| id.parse().ok()).collect()
}

fn pem(what: &str, path: &Path, label: &str) -> Result<String, Fault> {
    let text = std::fs::read_to_string(path).map_err(|e| cannot_read(what, path, e))?;
    let begins = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(label));
    match begins {
        true => Ok(text),
        false => {
            Err(Fault::user(format!("{what} {} holds no {label} in PEM", path.display())).kind(FaultKind::InvalidJob))
        }
    }
}

fn certificates(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, Fault> {
    let (cert_pem, key_pem) = (pem("tls_cert", cert, "CERTIFICATE")?, pem("tls_key", key, "PRIVATE KEY")?);
    let broken = || {
        let (cert, key) = (cert.display(), key.display());
        Fault::user(format!("tls_cert {cert} and tls_key {key} are not a certificate and its key"))
            .kind(FaultKind::InvalidJob)
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert_pem.as_bytes()).collect();
    let chain = chain.map_err(|e| broken().because(e))?;
    let private = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|e| broken().because(e))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|e| Fault::internal("no TLS").because(e))?;
    let config = config.with_no_client_auth().with_single_cert(chain, private);
    let mut config = config.map_err(|e| broken().because(e))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    Ok(Arc::new(config))
}

/// The certificates are read one by one, because tonic would leave out unreadable ones.
fn authorities(path: &Path) -> Result<ClientTlsConfig, Fault> {
    let pem = pem("tls_ca", path, "CERTIFICATE")?;
    let broken =
        || Fault::user(format!("tls_ca {} holds a broken certificate", path.display())).kind(FaultKind::InvalidJob);
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|e| broken().because(e))?;
        store.add(certificate).map_err(|e| broken().because(e))?;
    }
    Ok(ClientTlsConfig::new().trust_anchors(store.roots))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_that_others_can_read_or_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "open-sesame").unwrap();
        let own = path.metadata().unwrap().gid();
        let check = |mode: u32, groups: &[u32]| {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            check_private(&path, &path.metadata().unwrap(), groups).map_err(|fault| fault.to_string())
        };
        for mode in [0o600, 0o400, 0o700, 0o440, 0o660] {
            check(mode, &[7, own]).unwrap();
        }
        for (mode, groups, who) in
            [(0o644, vec![own], "all users"), (0o602, vec![own], "all users"), (0o440, vec![own + 1], "a group")]
        {
            let said = check(mode, &groups).unwrap_err();
            assert!(said.contains(who) && said.contains("chmod 600"), "{said}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        let files = SecurityFiles { token_file: Some(path), ..SecurityFiles::default() };
        let fault = Security::load(&files).unwrap_err();
        assert!(fault.domain == forebay_actors::Domain::User && fault.message().contains("mode 0604"), "{fault}");
    }

    #[test]
    fn a_token_is_that_of_its_scheme_in_small_letters_or_capitals() {
        let security = Security { token: Some("open-sesame".to_owned()), ..Security::none() };
        for (value, call, request) in [
            ("Bearer open-sesame", true, true),
            ("bearer open-sesame", true, true),
            ("BEARER   open-sesame", true, true),
            ("basic bWU6b3Blbi1zZXNhbWU=", false, true),
            ("Basic bWU6b3Blbi1zZXNhbWU=", false, true),
            ("bearer Open-Sesame", false, false),
            ("Beareropen-sesame", false, false),
            ("Bearers open-sesame", false, false),
            ("Bearer", false, false),
            ("Basic open-sesame", false, false),
            ("open-sesame", false, false),
            ("", false, false),
        ] {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
            assert_eq!(security.check_call(&headers).is_ok(), call, "{value}");
            assert_eq!(security.check_request(&headers).is_ok(), request, "{value}");
        }
        assert!(security.check_request(&HeaderMap::new()).is_err());
    }

    #[test]
    fn groups_are_read_from_proc() {
        let status = "Name:\tx\nUid:\t1\t1\t1\t1\nGid:\t5\t65532\t5\t5\nGroups:\t4 24 \n";
        assert_eq!(groups(status), [65532, 4, 24]);
        assert!(groups("").is_empty());
    }
}
