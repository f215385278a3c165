//! Identity of a kernel, as `uname` prints it.

/// Kernel that modules are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelId<'a> {
    /// `uname -r`.
    pub release: &'a str,
    /// `uname -v`; None where it is not known, so that any build of the release fits.
    pub version: Option<&'a str>,
    /// `uname -m`. A release such as `5.15.0-100-generic` is the same on two architectures.
    pub arch: &'a str,
}
