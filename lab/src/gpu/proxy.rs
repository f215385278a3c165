//! Backend for QEMU before 10: its x-pci-proxy-dev, and that device's wire protocol
//! (hw/remote/mpqemu-link.c, QEMU 7.2).
//!
//! QEMU sends little-endian messages over a stream socket: `i32 command`, four bytes of padding,
//! `u64 size`, then the payload. A reply is command 1 with one u64. File descriptors sent along
//! (guest memory, interrupts) are not received with recvmsg, so the kernel closes them.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use super::backend::{Attached, Backend, Link};
use super::device::Device;
use crate::gpu::qemu_version::Version;
use crate::gpu::sockets::Sockets;
use crate::host::error::{At, Error};

const HEADER: usize = 16;
/// Longest payload accepted. The longest QEMU sends is SYNC_SYSMEM's list of regions, below 256.
const PAYLOAD_MAX: usize = 4096;
const REPLY: i32 = 1;

/// The backend.
#[derive(Debug)]
pub(crate) struct Proxy;

impl Backend for Proxy {
    fn name(&self) -> &'static str {
        "proxy"
    }

    fn model(&self) -> &'static str {
        "x-pci-proxy-dev"
    }

    fn versions(&self) -> &'static str {
        "QEMU before 10"
    }

    /// Seen to work in 7.2, and to crash under software emulation in 10.0.2 and 11.1.3.
    fn runs_in(&self, version: Version) -> bool {
        version < Version([10, 0, 0])
    }

    fn attach(&self, device: Device, sockets: &mut Sockets) -> Result<Attached, Error> {
        let (ours, number) = sockets.add()?;
        let serving = ours.try_clone().at("clone the socket of", Path::new("the GPU"))?;
        Ok(Attached {
            argument: format!("{},fd={number}", self.model()),
            serve: Box::new(move || serve(serving, device)),
            link: Link(OwnedFd::from(ours)),
        })
    }
}

/// A request of QEMU.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    ConfigWrite {
        address: u32,
        value: u32,
        len: u32,
    },
    ConfigRead {
        address: u32,
        len: u32,
    },
    MemoryWrite,
    MemoryRead {
        address: u64,
        size: u32,
    },
    Reset,
    /// SYNC_SYSMEM and SET_IRQFD: only descriptors, and no reply is expected.
    Silent,
}

/// Answers QEMU for `device` until QEMU closes its end.
///
/// # Errors
/// A read or write that failed, or a message that is not of this protocol.
fn serve(mut link: impl Read + Write, mut device: Device) -> io::Result<()> {
    while let Some((command, payload)) = receive(&mut link)? {
        let request = decode(command, &payload)?;
        if let Some(value) = answer(&mut device, &request) {
            link.write_all(&reply(value))?;
        }
    }
    Ok(())
}

/// Receives one message, or None at the end of the stream.
fn receive(link: &mut impl Read) -> io::Result<Option<(i32, Vec<u8>)>> {
    let mut header = [0; HEADER];
    let first = link.read(&mut header)?;
    if first == 0 {
        return Ok(None);
    }
    link.read_exact(&mut header[first..])?;
    let size = u64_at(&header, 8)?;
    let size = usize::try_from(size).ok().filter(|s| *s <= PAYLOAD_MAX);
    let mut payload = vec![0; size.ok_or_else(|| malformed("payload too long"))?];
    link.read_exact(&mut payload)?;
    Ok(Some((u32_at(&header, 0)?.cast_signed(), payload)))
}

fn decode(command: i32, payload: &[u8]) -> io::Result<Request> {
    Ok(match command {
        0 | 6 => Request::Silent,
        2 => Request::ConfigWrite {
            address: u32_at(payload, 0)?,
            value: u32_at(payload, 4)?,
            len: u32_at(payload, 8)?,
        },
        3 => Request::ConfigRead { address: u32_at(payload, 0)?, len: u32_at(payload, 8)? },
        4 => Request::MemoryWrite,
        5 => Request::MemoryRead { address: u64_at(payload, 0)?, size: u32_at(payload, 16)? },
        7 => Request::Reset,
        other => return Err(malformed(&format!("unknown command {other}"))),
    })
}

fn answer(device: &mut Device, request: &Request) -> Option<u64> {
    match *request {
        Request::Silent => None,
        Request::ConfigWrite { address, value, len } => {
            device.config_write(address as usize, &value.to_le_bytes()[..config_len(len)]);
            Some(0)
        }
        Request::ConfigRead { address, len } => {
            let mut bytes = [0; 8];
            device.config_read(address as usize, &mut bytes[..config_len(len)]);
            Some(u64::from_le_bytes(bytes))
        }
        Request::MemoryRead { address, size } => {
            let mut bytes = [0; 8];
            let read = &mut bytes[..size.clamp(1, 8) as usize];
            match device.bar_at(address) {
                Some((bar, offset)) => device.bar_read(bar, offset, read),
                None => read.fill(0xff),
            }
            Some(u64::from_le_bytes(bytes))
        }
        Request::Reset => {
            device.reset();
            Some(0)
        }
        Request::MemoryWrite => Some(0),
    }
}

/// Returns the length of an access to configuration space, which has at most 4 bytes.
fn config_len(len: u32) -> usize {
    len.clamp(1, 4) as usize
}

fn reply(value: u64) -> [u8; HEADER + 8] {
    let mut message = [0; HEADER + 8];
    message[0..4].copy_from_slice(&REPLY.to_le_bytes());
    message[8..16].copy_from_slice(&8u64.to_le_bytes());
    message[16..24].copy_from_slice(&value.to_le_bytes());
    message
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    bytes
        .get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map(u32::from_le_bytes)
        .ok_or_else(|| malformed("payload too short"))
}

fn u64_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    bytes
        .get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or_else(|| malformed("payload too short"))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("x-pci-proxy-dev: {what}"))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Reads from one buffer, writes to another.
    struct Script {
        input: Cursor<Vec<u8>>,
        output: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            // One byte at a time at first: a header may arrive in pieces.
            let most = if self.input.position() == 0 { 1 } else { buffer.len() };
            self.input.read(&mut buffer[..most])
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.output.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn message(command: i32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = command.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend((payload.len() as u64).to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    fn run(input: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        let mut script = Script { input: Cursor::new(input), output: Vec::new() };
        let result = serve(&mut script, Device::new("t4".parse().unwrap(), true));
        (result, script.output)
    }

    #[test]
    fn config_reads_are_answered_and_silent_commands_are_not() {
        let mut read = 0u32.to_le_bytes().to_vec();
        read.extend([0; 4]);
        read.extend(2u32.to_le_bytes());
        let mut input = message(0, &[0; 208]);
        input.extend(message(6, &[]));
        input.extend(message(3, &read));
        let (result, output) = run(input);
        assert!(result.is_ok());
        assert_eq!(output, reply(0x10de));
    }

    #[test]
    fn memory_reads_carry_the_absolute_address() {
        let mut payload = 0xa00u64.to_le_bytes().to_vec();
        payload.extend([0; 8]);
        payload.extend(4u32.to_le_bytes());
        payload.extend([1, 0, 0, 0]);
        let (_, output) = run(message(5, &payload));
        assert_eq!(output, reply(0x164a_1000));
    }

    #[test]
    fn memory_that_is_in_no_bar_reads_as_ones() {
        let mut payload = 0x1_0000_0000u64.to_le_bytes().to_vec();
        payload.extend([0; 8]);
        payload.extend(2u32.to_le_bytes());
        payload.extend([1, 0, 0, 0]);
        let (_, output) = run(message(5, &payload));
        assert_eq!(output, reply(0xffff));
    }

    #[test]
    fn a_length_that_is_none_of_an_access_is_cut_to_one() {
        let mut device = Device::new("t4".parse().unwrap(), true);
        for (len, value) in [(0, 0xde), (1, 0xde), (2, 0x10de), (u32::MAX, 0x1eb8_10de)] {
            let read = Request::ConfigRead { address: 0, len };
            assert_eq!(answer(&mut device, &read), Some(value), "{len}");
        }
        let read = Request::MemoryRead { address: 0, size: u32::MAX };
        assert_eq!(answer(&mut device, &read), Some(0x1640_00a1));
    }

    #[test]
    fn nonsense_is_an_error_and_not_a_panic() {
        for input in [
            message(99, &[]),
            message(3, &[0; 3]),
            message(5, &[]),
            [[0u8; 8], [0xff; 8]].concat(),
            vec![0; 7],
        ] {
            assert!(run(input.clone()).0.is_err(), "{input:?}");
        }
    }
}
