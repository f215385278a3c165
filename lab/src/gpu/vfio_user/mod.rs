//! Backend for QEMU 10.1 and later: its vfio-user-pci, whose server this is.
//!
//! The protocol is that of QEMU's docs/interop/vfio-user.rst, version 0.1, and the constants of
//! regions and interrupts are those of the kernel's include/uapi/linux/vfio.h. QEMU passes each
//! access to configuration space and BARs as a message. It also passes guest memory and interrupts
//! as descriptors: they are not received with recvmsg, so the kernel closes them.

mod message;

use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use nix::errno::Errno;
use tempfile::TempDir;

use self::message::{MESSAGE_MAX, Payload, Request};
use super::backend::{Attached, Backend, Link};
use super::device::{BARS, CONFIG_SIZE, Device};
use crate::gpu::qemu_version::Version;
use crate::gpu::sockets::Sockets;
use crate::host::error::{At, Error};

/// `VFIO_PCI_CONFIG_REGION_INDEX`; the BARs are regions 0 to 5.
const CONFIG_REGION: u32 = 7;
/// `VFIO_PCI_NUM_REGIONS`.
const REGIONS: u32 = 9;
/// `VFIO_PCI_NUM_IRQS`. Index 0 is the interrupt pin.
const IRQS: u32 = 5;
/// `VFIO_PCI_ERR_IRQ_INDEX`. A conventional PCI device has no error reporting: the kernel answers
/// with EINVAL, and QEMU would warn of a count of 0.
const ERROR_IRQ: u32 = 3;
/// `VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI`.
const DEVICE_FLAGS: u32 = 3;
/// `VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE`.
const REGION_FLAGS: u32 = 3;
/// `VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_MASKABLE | VFIO_IRQ_INFO_AUTOMASKED`.
const IRQ_FLAGS: u32 = 7;
/// Sizes of the structures in replies, which begin with their size.
const DEVICE_INFO: u32 = 16;
const REGION_INFO: u32 = 32;
const IRQ_INFO: u32 = 16;

/// The backend.
#[derive(Debug)]
pub(crate) struct VfioUser;

impl Backend for VfioUser {
    fn name(&self) -> &'static str {
        "vfio-user"
    }

    fn model(&self) -> &'static str {
        "vfio-user-pci"
    }

    fn versions(&self) -> &'static str {
        "QEMU 10.1 and later"
    }

    fn runs_in(&self, version: Version) -> bool {
        version >= Version([10, 1, 0])
    }

    /// QEMU connects to a path only, so the socket is in a directory that no other user can enter.
    fn attach(&self, device: Device, _: &mut Sockets) -> Result<Attached, Error> {
        let temporary = std::env::temp_dir();
        let mut builder = tempfile::Builder::new();
        builder.prefix("gpu-").permissions(Permissions::from_mode(0o700));
        let dir = builder.tempdir().at("make a directory in", &temporary)?;
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).at("bind the socket of a GPU to", &path)?;
        let link = listener.try_clone().at("clone", &path)?;
        let socket = serde_json::json!({"type": "unix", "path": path});
        let argument = serde_json::json!({"driver": self.model(), "socket": socket});
        Ok(Attached {
            argument: argument.to_string(),
            serve: Box::new(move || serve_first(&listener, dir, device)),
            link: Link(OwnedFd::from(link)),
        })
    }
}

/// Serves the first connection. The directory of the socket is removed as soon as QEMU has it.
fn serve_first(listener: &UnixListener, dir: TempDir, device: Device) -> io::Result<()> {
    let accepted = listener.accept();
    dir.close()?;
    serve(accepted?.0, device)
}

/// Answers QEMU for `device` until QEMU closes its end.
///
/// # Errors
/// A read or write that failed, or a message that is not of this protocol.
fn serve(mut link: impl Read + Write, mut device: Device) -> io::Result<()> {
    while let Some(request) = Request::receive(&mut link)? {
        let outcome = answer(&mut device, &request);
        if request.wants_reply() {
            link.write_all(&request.reply(outcome))?;
        }
    }
    Ok(())
}

/// Carries out a request, and returns the payload of its reply.
fn answer(device: &mut Device, request: &Request) -> Result<Vec<u8>, Errno> {
    let payload = request.payload();
    match request.command {
        1 => version(payload),
        // DMA_MAP and DMA_UNMAP: the device reads and writes no guest memory.
        2 => payload.bytes(0, 32).map(|_| Vec::new()),
        3 => payload.bytes(0, 24).map(<[u8]>::to_vec),
        4 => payload.bytes(0, 16).map(|_| words(&[DEVICE_INFO, DEVICE_FLAGS, REGIONS, IRQS])),
        5 => region_info(device, payload.u32(8)?),
        7 => irq_info(device, payload.u32(8)?),
        8 => set_irqs(device, payload),
        9 => region_read(device, payload),
        10 => region_write(device, payload),
        13 => {
            device.reset();
            Ok(Vec::new())
        }
        // Descriptors for direct access to regions (6), dirty pages, and commands of later versions.
        _ => Err(Errno::ENOTSUP),
    }
}

/// Agrees on version 0.1 or 0.0. QEMU's capabilities are not needed: nothing is sent unasked.
fn version(payload: Payload<'_>) -> Result<Vec<u8>, Errno> {
    let (major, minor) = (payload.u16(0)?, payload.u16(2)?);
    if major != 0 {
        return Err(Errno::EINVAL);
    }
    let mut reply = [major.to_le_bytes(), minor.min(1).to_le_bytes()].concat();
    let limits = serde_json::json!({"max_msg_fds": 1, "max_data_xfer_size": MESSAGE_MAX / 2});
    reply.extend(serde_json::json!({"capabilities": limits}).to_string().into_bytes());
    reply.push(0);
    Ok(reply)
}

/// Returns the size of a region; 0 for one that the device does not have.
fn region_size(device: &Device, region: u32) -> u64 {
    match region as usize {
        bar if bar < BARS => u64::from(device.bar_size(bar)),
        _ if region == CONFIG_REGION => CONFIG_SIZE as u64,
        _ => 0,
    }
}

/// Describes a region: struct `vfio_region_info`. The offset is of no use without a descriptor.
fn region_info(device: &Device, region: u32) -> Result<Vec<u8>, Errno> {
    if region >= REGIONS {
        return Err(Errno::EINVAL);
    }
    let size = region_size(device, region);
    let flags = if size > 0 { REGION_FLAGS } else { 0 };
    let mut reply = words(&[REGION_INFO, flags, region, 0]);
    reply.extend(size.to_le_bytes());
    reply.extend(0u64.to_le_bytes());
    Ok(reply)
}

/// Returns the number of interrupts of an index.
fn irq_count(device: &Device, index: u32) -> u32 {
    u32::from(index == 0 && device.has_interrupt())
}

/// Describes an interrupt index: struct `vfio_irq_info`.
fn irq_info(device: &Device, index: u32) -> Result<Vec<u8>, Errno> {
    if index >= IRQS || index == ERROR_IRQ {
        return Err(Errno::EINVAL);
    }
    let count = irq_count(device, index);
    let flags = if count > 0 { IRQ_FLAGS } else { 0 };
    Ok(words(&[IRQ_INFO, flags, index, count]))
}

/// Accepts the set-up of interrupts that the device has, and never triggers one.
fn set_irqs(device: &Device, payload: Payload<'_>) -> Result<Vec<u8>, Errno> {
    let (index, start, count) = (payload.u32(8)?, payload.u32(12)?, payload.u32(16)?);
    match start.checked_add(count) {
        Some(end) if index < IRQS && end <= irq_count(device, index) => Ok(Vec::new()),
        _ => Err(Errno::EINVAL),
    }
}

/// Place of an access: `u64 offset, u32 region, u32 count`.
struct Access {
    region: u32,
    offset: u64,
    count: usize,
}

impl Access {
    /// Reads a place, and checks that it is in a region of the device.
    fn parse(device: &Device, payload: Payload<'_>) -> Result<Self, Errno> {
        let (offset, region, count) = (payload.u64(0)?, payload.u32(8)?, payload.u32(12)?);
        let end = offset.checked_add(u64::from(count)).ok_or(Errno::EINVAL)?;
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        if end > region_size(device, region) || count > MESSAGE_MAX / 2 {
            return Err(Errno::EINVAL);
        }
        Ok(Self { region, offset, count })
    }
}

fn region_read(device: &Device, payload: Payload<'_>) -> Result<Vec<u8>, Errno> {
    let Access { region, offset, count } = Access::parse(device, payload)?;
    let mut data = vec![0; count];
    match region {
        CONFIG_REGION => device.config_read(config_offset(offset)?, &mut data),
        bar => device.bar_read(bar as usize, offset, &mut data),
    }
    Ok([payload.bytes(0, 16)?, &data].concat())
}

fn region_write(device: &mut Device, payload: Payload<'_>) -> Result<Vec<u8>, Errno> {
    let Access { region, offset, count } = Access::parse(device, payload)?;
    let data = payload.bytes(16, count)?;
    if region == CONFIG_REGION {
        device.config_write(config_offset(offset)?, data);
    }
    payload.bytes(0, 16).map(<[u8]>::to_vec)
}

fn config_offset(offset: u64) -> Result<usize, Errno> {
    usize::try_from(offset).map_err(|_| Errno::EINVAL)
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests;
