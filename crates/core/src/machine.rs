//! Machines that NVIDIA has drivers for, under all their names.

use object::elf::{EM_AARCH64, EM_X86_64, Machine as ElfMachine};

use crate::failure::{Failure, FailureKind};

/// A machine architecture that NVIDIA has drivers for, under all its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// `uname -m`.
    pub uname: &'static str,
    /// Debian's name.
    pub debian: &'static str,
    /// Multiarch directory of libraries.
    pub triplet: &'static str,
    /// The ELF header's name.
    pub elf: ElfMachine,
    /// The loader cache's name (glibc's dl-cache.h, `FLAG_X8664_LIB64`, `FLAG_AARCH64_LIB64`).
    pub cache_flags: u32,
}

const MACHINES: [Machine; 2] = [
    Machine {
        uname: "x86_64",
        debian: "amd64",
        triplet: "x86_64-linux-gnu",
        elf: EM_X86_64,
        cache_flags: 0x0300,
    },
    Machine {
        uname: "aarch64",
        debian: "arm64",
        triplet: "aarch64-linux-gnu",
        elf: EM_AARCH64,
        cache_flags: 0x0a00,
    },
];

impl Machine {
    /// Returns the machine this program was built for.
    ///
    /// # Errors
    /// Exit code 10 for one that NVIDIA has no driver for.
    pub fn this() -> Result<Self, Failure> {
        Self::named(std::env::consts::ARCH)
    }

    /// Returns the machine of this `uname -m`.
    ///
    /// # Errors
    /// Exit code 10 for one that NVIDIA has no driver for.
    pub fn named(uname: &str) -> Result<Self, Failure> {
        MACHINES.into_iter().find(|machine| machine.uname == uname).ok_or_else(|| {
            let cause = format!("there is no NVIDIA driver for the architecture {uname}");
            Failure::new(FailureKind::HostUnsupported, cause).remedy("use x86_64 or aarch64")
        })
    }
}
