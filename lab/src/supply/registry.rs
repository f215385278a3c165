//! A docker-registry on this machine's loopback, which one guest reaches.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::host::error::{At, Error};
use crate::host::process::{self, LIMIT};

/// Its address and port in the guest.
pub(crate) const IN_GUEST: &str = "10.0.2.100:5000";
/// Repository that sets are pushed to.
pub(crate) const REPOSITORY: &str = "nvidia/modules";
/// Repository that the agent's image is pushed to.
const AGENT: &str = "longshore";

const START_LIMIT: Duration = Duration::from_secs(60);

/// A running registry. Dropping it ends it.
#[derive(Debug)]
pub struct Registry {
    /// Port on 127.0.0.1.
    pub port: u16,
    child: Child,
}

impl Registry {
    /// Starts a registry that stores its contents in `dir`, and waits until it answers.
    ///
    /// # Errors
    /// docker-registry cannot be started, or does not answer.
    pub fn start(dir: &Path) -> Result<Self, Error> {
        let port = free_port()?;
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: 127.0.0.1:{port}\n",
            dir.join("registry").display()
        );
        let file = dir.join("registry.yml");
        fs::write(&file, config).at("write", &file)?;
        let program = Path::new("docker-registry");
        let log = dir.join("registry.log");
        let log = fs::File::create(&log).at("make", &log)?;
        let child = process::bound(program)
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().at("pass on", program)?)
            .stderr(log)
            .spawn()
            .at("start", program)?;
        let mut registry = Self { port, child };
        registry.wait()?;
        Ok(registry)
    }

    /// Returns `http://127.0.0.1:PORT/REPOSITORY`.
    pub fn reference(&self) -> String {
        format!("http://127.0.0.1:{}/{REPOSITORY}", self.port)
    }

    /// Pushes an image in an OCI archive, and returns its reference by digest as a guest reaches it.
    ///
    /// # Errors
    /// skopeo failed, or reported no digest.
    pub fn push_image(&self, archive: &Path, dir: &Path) -> Result<String, Error> {
        let reported = dir.join("image.digest");
        let mut push = Command::new("skopeo");
        push.args(["copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"])
            .arg("--digestfile")
            .arg(&reported)
            .arg(format!("oci-archive:{}", archive.display()))
            .arg(format!("docker://127.0.0.1:{}/{AGENT}:latest", self.port));
        process::run(&mut push, LIMIT)?;
        let digest = fs::read_to_string(&reported).at("read", &reported)?;
        Ok(format!("{IN_GUEST}/{AGENT}@{}", digest.trim()))
    }

    /// Polls until it listens, for which there is no event.
    fn wait(&mut self) -> Result<(), Error> {
        let program = Path::new("docker-registry");
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if self.child.try_wait().at("wait for", program)?.is_some() {
                return Err(Error::Unexpected("docker-registry ended at once".into()));
            }
            if Instant::now() > deadline {
                return Err(Error::Unexpected("docker-registry does not listen".into()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16, Error> {
    let at = Path::new("127.0.0.1");
    let listener = TcpListener::bind("127.0.0.1:0").at("listen on", at)?;
    Ok(listener.local_addr().at("listen on", at)?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::start(dir.path()).unwrap();
        let address = ("127.0.0.1", registry.port);
        assert!(registry.reference().contains(&registry.port.to_string()));
        assert!(TcpStream::connect(address).is_ok());
        drop(registry);
        assert!(TcpStream::connect(address).is_err());
    }
}
