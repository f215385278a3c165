//! Where bits come from: Debian-format archives, driver packages, headers.

pub mod archive;
pub mod compression;
pub mod deb;
pub mod driver;
pub mod headers;
pub mod http;
pub mod packages;
pub mod relation;
pub mod resolve;
mod tree;
pub mod userspace;
pub mod version;
