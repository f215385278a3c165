//! Downloads by a process of their own, which has no rights (docs/internals/decisions/downloads.md).
//!
//! A program that has registered itself ([`fetch_by`]) makes no connection: for each server of a client it starts itself
//! once more, with [`SUBCOMMAND`] as its first argument, and that process resolves names, connects, and parses TLS and HTTP.
//! Its answers are as foreign as a server's. Other programs download in their own address space: unit tests, the kernel
//! matrix.

mod child;
mod filter;
mod parent;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use child::fetch_main;
pub(super) use parent::{DownloadProcesses, ReceivedBody};

/// First argument of the process.
pub const SUBCOMMAND: &str = "__fetch";

/// Program that downloads.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Registers the program that downloads for this process: one whose main function hands [`SUBCOMMAND`] to
/// [`fetch_main`], `/proc/self/exe` for longshore itself. The first call counts.
pub fn fetch_by(program: impl Into<PathBuf>) {
    let _ = PROGRAM.set(program.into());
}

/// Returns the program that downloads; None where this process does.
pub(super) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

#[cfg(test)]
mod tests;
