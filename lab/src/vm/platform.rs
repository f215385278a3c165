//! Names that depend on the guest's architecture.

/// QEMU, machine and console of an architecture.
#[derive(Debug)]
pub(crate) struct Platform {
    /// QEMU's program.
    pub qemu: &'static str,
    /// Debian's package of that program.
    pub package: &'static str,
    /// QEMU's machine type.
    pub machine: &'static str,
    /// Options of the machine type under UEFI firmware that protects its variables.
    pub with_firmware: &'static str,
    /// Device of the kernel's console, the machine's first serial port.
    pub console: &'static str,
    /// Further arguments of every kernel.
    pub arguments: &'static str,
}

/// Platform of all guests.
pub(crate) const GUEST: Platform = Platform {
    qemu: "qemu-system-x86_64",
    package: "qemu-system-x86",
    machine: "q35",
    with_firmware: ",smm=on",
    console: "ttyS0",
    // On a busy machine the emulated timer is too late for the kernel's test of it.
    arguments: "no_timer_check",
};
