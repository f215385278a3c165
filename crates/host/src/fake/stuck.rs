//! A process that hangs, for the real host.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::libc::AT_SECURE;

use crate::RealHost;
use crate::real::kernel_call::KernelCalls;

/// A /proc whose process 4194304, which no system has, belongs to root and hangs when its
/// environment is read.
pub struct Stuck {
    root: tempfile::TempDir,
    environ: PathBuf,
}

impl Default for Stuck {
    fn default() -> Self {
        Self::new()
    }
}

impl Stuck {
    /// Makes it.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("proc/4194304");
        fs::create_dir_all(&process).unwrap();
        let auxv = [AT_SECURE as usize, 0, 0, 0].map(usize::to_ne_bytes).concat();
        fs::write(process.join("auxv"), auxv).unwrap();
        let environ = process.join("environ");
        nix::unistd::mkfifo(&environ, nix::sys::stat::Mode::S_IRWXU).unwrap();
        Self { root, environ }
    }

    /// Returns a host that is inspected for at most `look`.
    pub fn host(&self, look: Duration) -> RealHost {
        RealHost::new(self.root.path()).calling(KernelCalls::direct(), look)
    }

    /// Lets the read return, as when its memory map is unlocked.
    ///
    /// # Panics
    /// If nothing reads.
    pub fn let_go(&self) {
        let writer = fs::OpenOptions::new().write(true).open(&self.environ).unwrap();
        fs::remove_file(&self.environ).unwrap();
        drop(writer);
    }
}
