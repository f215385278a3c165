//! Limits on reading untrusted archives: small archives that unpack to more than any disk or memory
//! has are refused while they are read.

use std::cell::Cell;
use std::io::{self, Read};

/// Maximum number of bytes between one file of a tar and the next: a header, a long name, pax
/// records. All of that is read into memory.
pub const MOST_BETWEEN: u64 = 1 << 20;

/// Reader that fails beyond a number of bytes.
pub struct Bounded<R> {
    inner: R,
    left: u64,
    most: u64,
}

impl<R: Read> Bounded<R> {
    /// Returns a reader of `inner` that fails after `most` bytes.
    pub fn new(inner: R, most: u64) -> Self {
        Self::after(0, inner, most)
    }

    /// Returns the next of several readers that have at most `most` bytes together: those before had `read`.
    pub fn after(read: u64, inner: R, most: u64) -> Self {
        Self { inner, left: most.saturating_sub(read), most }
    }

    /// Number of bytes read, with those before.
    pub fn read_so_far(&self) -> u64 {
        self.most - self.left
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(n as u64).ok_or_else(|| {
            let what = format!("it unpacks to more than {} MiB", self.most >> 20);
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        Ok(n)
    }
}

/// Number of bytes that may be read until the next `set`.
pub struct Budget {
    left: Cell<u64>,
    most: Cell<u64>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: Cell::new(u64::MAX), most: Cell::new(u64::MAX) }
    }
}

impl Budget {
    /// Allows `most` bytes from now on.
    pub fn set(&self, most: u64) {
        self.left.set(most);
        self.most.set(most);
    }

    /// Allows any number of bytes.
    pub fn lift(&self) {
        self.set(u64::MAX);
    }

    /// Returns a reader of `inner` that fails beyond the budget.
    pub fn limit<'a, R: Read + 'a>(&'a self, inner: R) -> impl Read + use<'a, R> {
        Limited { inner, budget: self }
    }
}

struct Limited<'a, R> {
    inner: R,
    budget: &'a Budget,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        let left = self.budget.left.get().checked_sub(n as u64).ok_or_else(|| {
            let most = self.budget.most.get() >> 20;
            let what = format!("names and records of one file in it take more than {most} MiB");
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        self.budget.left.set(left);
        Ok(n)
    }
}
