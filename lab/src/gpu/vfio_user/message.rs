//! Messages of the protocol: a header of 16 bytes (`u16 id, u16 command, u32 size, u32 flags,
//! u32 error`, little-endian; the size includes the header), then the payload.

use std::io::{self, Read};

use nix::errno::Errno;

const HEADER: usize = 16;
/// Longest message accepted. The longest that QEMU sends is its capabilities, below 512; accesses
/// are at most the configuration space.
pub(super) const MESSAGE_MAX: usize = 8192;

/// Kind of message in the flags: 0 is a command.
const KIND: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 0x10;
const ERROR: u32 = 0x20;

/// A command of QEMU.
#[derive(Debug)]
pub(super) struct Request {
    id: u16,
    pub(super) command: u16,
    flags: u32,
    payload: Vec<u8>,
}

impl Request {
    /// Receives a command, or None at the end of the stream.
    ///
    /// # Errors
    /// The stream fails or ends within the message, or the message is too long or no command.
    pub(super) fn receive(link: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        let first = link.read(&mut header)?;
        if first == 0 {
            return Ok(None);
        }
        link.read_exact(&mut header[first..])?;
        let field = Payload(&header);
        let (size, flags) = (field.u32(4)? as usize, field.u32(8)?);
        if !(HEADER..=MESSAGE_MAX).contains(&size) {
            return Err(malformed(&format!("a message of {size} bytes")));
        }
        if flags & KIND != 0 {
            return Err(malformed(&format!("no command, but flags {flags:#x}")));
        }
        let mut payload = vec![0; size - HEADER];
        link.read_exact(&mut payload)?;
        Ok(Some(Self { id: field.u16(0)?, command: field.u16(2)?, flags, payload }))
    }

    /// Returns the payload.
    pub(super) fn payload(&self) -> Payload<'_> {
        Payload(&self.payload)
    }

    /// True if QEMU waits for a reply.
    pub(super) fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }

    /// Returns the reply: a payload, or the number of an error.
    pub(super) fn reply(&self, outcome: Result<Vec<u8>, Errno>) -> Vec<u8> {
        let (payload, flags, error) = match outcome {
            Ok(payload) => (payload, REPLY, 0),
            Err(errno) => (Vec::new(), REPLY | ERROR, errno as u32),
        };
        // Payloads are at most half of MESSAGE_MAX.
        let size = u32::try_from(HEADER + payload.len()).unwrap_or(u32::MAX);
        let mut message = [self.id.to_le_bytes(), self.command.to_le_bytes()].concat();
        message.extend([size, flags, error].iter().flat_map(|field| field.to_le_bytes()));
        message.extend(payload);
        message
    }
}

/// A payload, whose fields are read within its bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    /// Returns `len` bytes.
    pub(super) fn bytes(self, at: usize, len: usize) -> Result<&'a [u8], Errno> {
        let end = at.checked_add(len).ok_or(Errno::EINVAL)?;
        self.0.get(at..end).ok_or(Errno::EINVAL)
    }

    fn array<const N: usize>(self, at: usize) -> Result<[u8; N], Errno> {
        self.bytes(at, N)?.try_into().map_err(|_| Errno::EINVAL)
    }

    pub(super) fn u16(self, at: usize) -> Result<u16, Errno> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(super) fn u32(self, at: usize) -> Result<u32, Errno> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn u64(self, at: usize) -> Result<u64, Errno> {
        self.array(at).map(u64::from_le_bytes)
    }
}

fn malformed(fault: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("vfio-user-pci sent {fault}"))
}
