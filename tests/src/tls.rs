//! A server with TLS, and a host that trusts it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::server::Server;

/// Certificates that openssl made when this process began.
struct Made {
    dir: tempfile::TempDir,
    config: Arc<ServerConfig>,
    /// Configuration with a certificate that is signed by no authority.
    stranger: Arc<ServerConfig>,
}

static MADE: OnceLock<Made> = OnceLock::new();

const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

fn made() -> &'static Made {
    MADE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("etc/ssl/certs")).expect("made");
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        openssl(
            dir.path(),
            &[&key[..], &["-subj", "/CN=test CA", "-keyout", "ca.key", "-out", BUNDLE]],
        );
        let signed =
            ["-CA", BUNDLE, "-CAkey", "ca.key", "-subj", "/CN=server", "-keyout", "key.pem"];
        let names =
            ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"];
        openssl(dir.path(), &[&key[..], &signed, &names, &["-out", "server.pem"]]);
        let alone = ["-subj", "/CN=stranger", "-keyout", "stranger.key", "-out", "stranger.pem"];
        openssl(dir.path(), &[&key[..], &alone, &names]);
        let config = config(&path("server.pem"), &path("key.pem"));
        let stranger = self::config(&path("stranger.pem"), &path("stranger.key"));
        Made { dir, config, stranger }
    })
}

fn config(certificate: &Path, key: &Path) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_file(certificate).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
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

/// Returns the root of a host that trusts the servers' certificates.
pub fn host_root() -> &'static Path {
    made().dir.path()
}

/// Returns the path of the certificates that it trusts.
pub fn bundle() -> PathBuf {
    host_root().join(BUNDLE)
}

/// Starts a server with TLS on loopback.
pub fn server(files: BTreeMap<String, Vec<u8>>) -> Server {
    with(files, made().config.clone())
}

/// Starts a server that the host has no reason to trust.
pub fn of_a_stranger(files: BTreeMap<String, Vec<u8>>) -> Server {
    with(files, made().stranger.clone())
}

fn with(files: BTreeMap<String, Vec<u8>>, config: Arc<ServerConfig>) -> Server {
    Server::behind("https", files, move |stream| {
        let connection = ServerConnection::new(config.clone()).map_err(std::io::Error::other)?;
        Ok(Box::new(StreamOwned::new(connection, stream)))
    })
}
