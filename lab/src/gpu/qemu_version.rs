//! Version of QEMU, by which a backend is chosen.

use std::fmt;

/// Version of QEMU: major, minor, micro.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub [u32; 3]);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, micro]) = self;
        write!(f, "{major}.{minor}.{micro}")
    }
}
