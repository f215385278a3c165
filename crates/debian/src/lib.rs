//! Archives in Debian's format: what apt does to find and fetch packages, without root and without dpkg.
//!
//! [`settings`] name archives, and [`apt_sources`] those of a host. [`archive`] loads their suites: each
//! [`release`] is verified against a [`keyring`], each index against its release, each package against the index,
//! and none older than what was read before, or than a limit of age. [`resolve`] finds the packages that one depends on; [`deb`] and
//! [`tree`] unpack them below a directory, within bounds. Downloads and the store of blobs are those of
//! `longshore-fetch` and `longshore-core`.

mod apt_conf;
pub mod apt_sources;
pub mod archive;
mod auth_conf;
pub mod bounds;
mod cleartext;
pub mod compression;
mod control;
pub mod deb;
pub mod faults;
mod held_blobs;
pub mod keyring;
mod loading;
pub mod max_age;
pub mod packages;
pub mod relation;
pub mod release;
pub mod resolve;
mod rollback;
mod selection;
pub mod settings;
mod suites;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tree;
pub mod version;
