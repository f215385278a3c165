//! A docker-registry for the tests.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// docker-registry on loopback; ends when dropped.
pub(crate) struct Hub {
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    child: Option<Child>,
    dir: tempfile::TempDir,
}

/// Returns an address that nothing listens on.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.local_addr().expect("address").to_string()
}

impl Hub {
    /// Starts one that is open to everybody, or only to the given user and password.
    pub(crate) fn start(login: Option<(&str, &str)>) -> Self {
        Self::configured(login, "", |_| String::new())
    }

    /// Starts one that permits deleting.
    pub(crate) fn that_deletes() -> Self {
        Self::configured(None, "  delete:\n    enabled: true\n", |_| String::new())
    }

    /// Starts one with TLS, whose certificate `certify` writes into the directory it is given, as
    /// `cert.pem` and `key.pem`.
    pub(crate) fn with_tls(certify: impl FnOnce(&Path)) -> Self {
        Self::configured(None, "", |dir| {
            certify(dir);
            let dir = dir.display();
            format!("  tls:\n    certificate: {dir}/cert.pem\n    key: {dir}/key.pem\n")
        })
    }

    /// Starts one; `storage` are further lines below that key, and `http` makes those below that.
    fn configured(
        login: Option<(&str, &str)>,
        storage: &str,
        http: impl FnOnce(&Path) -> String,
    ) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let address = free_address();
        let auth = login.map_or_else(String::new, |(user, password)| {
            let file = dir.path().join("htpasswd");
            fs::write(&file, htpasswd(user, password)).expect("write");
            format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", file.display())
        });
        let http = http(dir.path());
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             {storage}http:\n  addr: {address}\n{http}{auth}",
            dir.path().join("data").display()
        );
        let file = dir.path().join("config.yml");
        fs::write(&file, config).expect("write");
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry runs (scripts/setup installs it)");
        let hub = Self { address, child: Some(child), dir };
        hub.wait();
        hub
    }

    /// Returns a registry that no longer runs.
    pub(crate) fn gone(address: String) -> Self {
        Self { address, child: None, dir: tempfile::tempdir().expect("dir") }
    }

    /// Waits until it accepts connections, by polling: there is no event to wait for.
    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(&self.address).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not listen");
            std::thread::yield_now();
        }
    }

    /// True if nothing was ever written to it.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.dir.path().join("data/docker/registry/v2/repositories").exists()
    }

    /// Returns the path of a blob's file.
    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        let blobs = Path::new("data/docker/registry/v2/blobs/sha256");
        self.dir.path().join(blobs).join(&hex[..2]).join(hex).join("data")
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn htpasswd(user: &str, password: &str) -> Vec<u8> {
    let out = Command::new("htpasswd")
        .args(["-Bbn", user, password])
        .output()
        .expect("htpasswd runs (scripts/setup installs it)");
    assert!(out.status.success());
    out.stdout
}
