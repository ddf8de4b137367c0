//! Files for TLS and the token of a run: an authority, and one certificate for all addresses, shared by all processes.

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};

use forebay::net::{Security, SecurityFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// The files of one run.
pub(crate) struct Trust {
    pub(crate) files: SecurityFiles,
}

impl Trust {
    /// A new authority, key and token in `folder`; the certificate names all `addresses` and loopback.
    pub(crate) fn new(folder: &Path, addresses: impl Iterator<Item = String>) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = addresses.chain(["127.0.0.1".to_owned()]).collect();
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        std::fs::create_dir_all(folder).unwrap();
        let write = |name: &str, text: String| -> Option<PathBuf> {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            Some(path)
        };
        let files = SecurityFiles {
            token_file: write("token", format!("{:016x}", RandomState::new().hash_one(folder))),
            tls_cert: write("cert.pem", cert.pem()),
            tls_key: write("key.pem", key.serialize_pem()),
            tls_ca: write("ca.pem", authority.pem()),
        };
        Self { files }
    }

    /// The same files for the test's own requests.
    pub(crate) fn security(&self) -> Security {
        Security::load(&self.files).unwrap()
    }
}

/// The flags of `forebay role` that name these files.
pub(crate) fn flags(files: &SecurityFiles) -> Vec<String> {
    let SecurityFiles { token_file, tls_cert, tls_key, tls_ca } = files;
    let all = [("--token-file", token_file), ("--tls-cert", tls_cert), ("--tls-key", tls_key), ("--tls-ca", tls_ca)];
    let given =
        all.into_iter().filter_map(|(flag, file)| Some([flag.to_owned(), file.as_ref()?.display().to_string()]));
    given.flatten().collect()
}
