//! A backend: a device model of QEMU behind which the simulated GPU can be.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use nix::sys::socket::{Shutdown, shutdown};

use super::device::Device;
use crate::gpu::qemu_version::Version;
use crate::gpu::sockets::Sockets;
use crate::host::error::Error;

/// A device model of QEMU that passes the guest's accesses to this process.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Name on the command line and in results.
    fn name(&self) -> &'static str;

    /// QEMU's name of the device model.
    fn model(&self) -> &'static str;

    /// The versions of QEMU in which it runs under software emulation, for people.
    fn versions(&self) -> &'static str;

    /// True if it runs under software emulation in this version of QEMU, provided that it is built in.
    fn runs_in(&self, version: Version) -> bool;

    /// Opens the way to a device for a QEMU that is about to be started.
    ///
    /// # Errors
    /// A socket cannot be made.
    fn attach(&self, device: Device, sockets: &mut Sockets) -> Result<Attached, Error>;
}

/// A device behind a backend.
pub struct Attached {
    /// Argument of QEMU's `-device`.
    pub argument: String,
    /// Answers QEMU until it closes its end, or the link is ended.
    pub serve: Box<dyn FnOnce() -> io::Result<()> + Send>,
    /// Ends `serve`.
    pub link: Link,
}

/// A socket that a thread serves.
#[derive(Debug)]
pub struct Link(pub OwnedFd);

impl Link {
    /// Ends the thread's wait for QEMU.
    pub fn end(&self) {
        // Fails only where the other end is closed already.
        let _ = shutdown(std::os::fd::AsRawFd::as_raw_fd(&self.0), Shutdown::Both);
    }
}
