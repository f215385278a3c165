//! Certificates of a server on loopback, made by openssl. `tests` includes this file, too.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
const NAMES: [&str; 4] =
    ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"];

/// Makes an authority, whose certificate is `ca` in `dir`, and the configuration of a server with a
/// certificate that it signed.
pub(super) fn signed(dir: &Path, ca: &str) -> Arc<ServerConfig> {
    openssl(dir, &[&KEY, &["-subj", "/CN=test CA", "-keyout", "ca.key", "-out", ca]]);
    let by = ["-CA", ca, "-CAkey", "ca.key"];
    server(dir, "server", &by)
}

/// Makes the configuration of a server with a certificate of this name, which the authority of `by`
/// signed, or none.
pub(super) fn server(dir: &Path, name: &str, by: &[&str]) -> Arc<ServerConfig> {
    let (subject, key, pem) = (format!("/CN={name}"), format!("{name}.key"), format!("{name}.pem"));
    let made = ["-subj", &subject, "-keyout", &key, "-out", &pem];
    openssl(dir, &[&KEY, by, &NAMES, &made]);
    let certificate = CertificateDer::from_pem_file(dir.join(pem)).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(dir.join(key)).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    Arc::new(config.expect("they fit"))
}

fn openssl(dir: &Path, arguments: &[&[&str]]) {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-days", "2"]).args(arguments.concat()).current_dir(dir);
    let out = command.output().expect("openssl runs: scripts/setup installs it");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
