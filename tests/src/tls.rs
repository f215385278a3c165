//! A server with TLS, and a host that trusts it.

// No dependency: features for tests are switched on by [dev-dependencies] alone.
#[path = "../../crates/cluster/src/testing/tls.rs"]
mod certificates;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

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
        fs::create_dir_all(dir.path().join("etc/ssl/certs")).expect("made");
        let config = certificates::signed(dir.path(), BUNDLE);
        let stranger = certificates::server(dir.path(), "stranger", &[]);
        Made { dir, config, stranger }
    })
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
