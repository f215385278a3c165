//! Mounts and unmounts in the mount namespace of this process.
//!
//! /proc/self/mountinfo has an exceptional condition (EPOLLPRI) after every change of its
//! namespace, once for each open file (fs/proc_namespace.c, `mounts_poll`). An unmount on the host
//! reaches the namespace of a container through the peer group by which the mount was propagated.

use std::fs::File;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::listen;

/// The open mount table.
#[derive(Debug)]
pub(super) struct Mounts(AsyncFd<OwnedFd>);

impl Mounts {
    pub(super) fn open() -> io::Result<Self> {
        Self::open_at(Path::new("/proc/self/mountinfo"))
    }

    /// Opens the table in this file.
    pub(super) fn open_at(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        listen(file.into(), Interest::PRIORITY).map(Self)
    }
}

/// Waits for a change; for ever if nothing is open.
pub(super) async fn changed(mounts: Option<&Mounts>) {
    let Some(Mounts(fd)) = mounts else { return pending().await };
    match fd.ready(Interest::PRIORITY).await {
        Ok(mut guard) => guard.clear_ready(),
        // The runtime is shutting down.
        Err(_) => pending().await,
    }
}
