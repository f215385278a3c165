//! Version of QEMU, by which a backend is chosen.

/// Version of QEMU: major, minor, micro.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{}.{}.{}", _0[0], _0[1], _0[2])]
pub struct Version(pub [u32; 3]);
