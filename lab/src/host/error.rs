//! Errors before or around a cell.

use std::io;
use std::path::{Path, PathBuf};

use longshore_core::failure::Failure;

/// An error of the harness itself, as opposed to a cell that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// Operation that failed.
        operation: &'static str,
        /// Path it failed on.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A program could not be started, or failed.
    #[error("{program}: {what}")]
    Command {
        /// The program.
        program: String,
        /// Exit status, and the end of its stderr.
        what: String,
    },
    /// matrix.toml, or a cell name, is invalid.
    #[error("{0}")]
    Matrix(String),
    /// longshore's own library failed.
    #[error("{}", .0.report())]
    Longshore(Failure),
    /// Something that was fetched or built is not as expected.
    #[error("{0}")]
    Unexpected(String),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Longshore(failure)
    }
}

/// Adds operation and path to an I/O error.
pub trait At<T> {
    /// Adds the failed operation and its path.
    fn at(self, operation: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io { operation, path: path.to_path_buf(), source })
    }
}

impl<T> At<T> for nix::Result<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(io::Error::from).at(operation, path)
    }
}
