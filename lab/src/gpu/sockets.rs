//! Sockets between this process and QEMU.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use command_fds::FdMapping;

use crate::host::error::{At, Error};

/// QEMU's ends of sockets. In this process they are closed on exec: no other VM or program that is
/// started at the same time inherits them.
#[derive(Default)]
pub struct Sockets(Vec<FdMapping>);

impl Sockets {
    /// Adds a pair: returns our end, and the descriptor number of the other one in QEMU.
    ///
    /// # Errors
    /// No more sockets can be made.
    pub fn add(&mut self) -> Result<(UnixStream, i32), Error> {
        let (ours, theirs) = UnixStream::pair().at("make", Path::new("a socket for QEMU"))?;
        // 0, 1 and 2 are the console.
        let child_fd = 3 + i32::try_from(self.0.len()).unwrap_or(i32::MAX);
        self.0.push(FdMapping { parent_fd: OwnedFd::from(theirs), child_fd });
        Ok((ours, child_fd))
    }

    /// Returns QEMU's ends with their numbers there.
    pub fn into_mappings(self) -> Vec<FdMapping> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_at_the_same_time_inherits_no_socket() {
        use nix::fcntl::{FcntlArg, FdFlag, fcntl};
        let mut sockets = Sockets::default();
        let (ours, number) = sockets.add().unwrap();
        assert_eq!((number, sockets.add().unwrap().1), (3, 4));
        let theirs = sockets.0.iter().map(|mapping| fcntl(&mapping.parent_fd, FcntlArg::F_GETFD));
        for flags in theirs.chain([fcntl(&ours, FcntlArg::F_GETFD)]) {
            assert!(FdFlag::from_bits_truncate(flags.unwrap()).contains(FdFlag::FD_CLOEXEC));
        }
    }
}
