//! Uevents of the kernel about modules and NVIDIA's PCI functions.
//!
//! They go to every network namespace that the initial user namespace owns, including that of a
//! container without a user namespace of its own (lib/kobject_uevent.c,
//! `uevent_net_broadcast_untagged`). Only CAP_NET_ADMIN may send on this protocol, and a message
//! carries its sender's port: the kernel's is 0.

use std::future::pending;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, socket,
};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::listen;
use crate::steps::LoadModule;

/// Multicast group of the kernel's own messages; udev's copies are in group 2.
const KERNEL: u32 = 1;
/// Size limit. A message has at most 2 KiB of variables behind its head (include/linux/kobject.h,
/// UEVENT_BUFFER_SIZE).
const LONGEST: usize = 4096;
/// Upper limit of messages read at a time.
const MOST: usize = 256;

/// Socket that receives the kernel's events.
#[derive(Debug)]
pub(super) struct Uevents(AsyncFd<OwnedFd>);

impl Uevents {
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkKObjectUEvent,
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
        listen(socket, Interest::READABLE).map(Self)
    }
}

impl AsRawFd for Uevents {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Messages that are ready to be read.
pub(super) type Guard<'a> = AsyncFdReadyGuard<'a, OwnedFd>;

/// Waits for messages; for ever if nothing is open.
pub(super) async fn readable(uevents: Option<&Uevents>) -> Guard<'_> {
    let Some(Uevents(fd)) = uevents else { return pending().await };
    match fd.readable().await {
        Ok(guard) => guard,
        Err(_) => pending().await,
    }
}

/// Reads the messages, and returns true if one is about the driver.
pub(super) fn read(mut guard: Guard<'_>) -> bool {
    let mut message = [0; LONGEST];
    let mut tells = false;
    for _ in 0..MOST {
        match recvfrom::<NetlinkAddr>(guard.get_inner().as_raw_fd(), &mut message) {
            Ok((length, Some(from))) if from.pid() == 0 => {
                tells |= tells_of_driver(message.get(..length).unwrap_or_default());
            }
            Ok(_) | Err(Errno::EINTR) => {}
            // Messages were lost: any of them may have been about the driver.
            Err(Errno::ENOBUFS) => tells = true,
            Err(_) => {
                guard.clear_ready();
                return tells;
            }
        }
    }
    // The rest is read the next time.
    guard.retain_ready();
    tells
}

/// True if a message is about a module of the driver or a PCI function of NVIDIA's:
/// `remove@/module/nvidia_uvm`, NUL, `ACTION=remove`, NUL, `DEVPATH=/module/nvidia_uvm`, and so on.
fn tells_of_driver(message: &[u8]) -> bool {
    let value = |key: &[u8]| {
        let mut variables = message.split(|byte| *byte == 0).skip(1);
        variables.find_map(|variable| variable.strip_prefix(key))
    };
    match value(b"SUBSYSTEM=") {
        Some(b"module") => {
            // nvidia_peermem can be loaded once the network driver is.
            let tells =
                |name: &[u8]| name.starts_with(b"nvidia") || LoadModule::is_of_network_driver(name);
            value(b"DEVPATH=/module/").is_some_and(tells)
        }
        Some(b"pci") => value(b"PCI_ID=10DE:").is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(
        "remove@/module/nvidia_uvm\0ACTION=remove\0DEVPATH=/module/nvidia_uvm\0SUBSYSTEM=module\0",
        true
    )]
    #[case("add@/d\0ACTION=add\0DEVPATH=/module/mlx5_core\0SUBSYSTEM=module\0", true)]
    #[case("add@/d\0ACTION=add\0DEVPATH=/module/ib_core\0SUBSYSTEM=module\0", true)]
    #[case("add@/d\0ACTION=add\0DEVPATH=/module/ib_uverbs\0SUBSYSTEM=module\0", true)]
    #[case("add@/d\0ACTION=add\0DEVPATH=/module/ib_core_mine\0SUBSYSTEM=module\0", false)]
    #[case("add@/module/loop\0ACTION=add\0DEVPATH=/module/loop\0SUBSYSTEM=module\0", false)]
    #[case(
        "unbind@/d\0ACTION=unbind\0DEVPATH=/devices/0000:01:00.0\0SUBSYSTEM=pci\0PCI_ID=10DE:1EB8\0",
        true
    )]
    #[case(
        "bind@/d\0ACTION=bind\0DEVPATH=/devices/0000:01:00.0\0SUBSYSTEM=pci\0PCI_ID=8086:1533\0",
        false
    )]
    #[case("add@/devices/virtual/net/nvidia0\0SUBSYSTEM=net\0DEVPATH=/module/nvidia\0", false)]
    #[case("SUBSYSTEM=module", false)]
    #[case("libudev\0\u{1}\u{2}", false)]
    #[case("", false)]
    fn only_what_is_about_the_driver_tells(#[case] message: &str, #[case] tells: bool) {
        assert_eq!(tells_of_driver(message.as_bytes()), tells);
    }
}
