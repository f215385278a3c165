//! The agent's socket `agent.sock`: made in a directory that only root can enter, and believed only where root, or
//! the caller's own user, listens on it.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_to, getsockopt, setsockopt,
    socket,
};
use nix::sys::time::TimeVal;
use nix::unistd::Uid;

use crate::config::SOCKET as NAME;
use crate::journal::private_dir::PrivateDir;
use longshore_host::values::DirId;

/// Its name until it is complete.
const UNFINISHED: &str = "agent.sock.new";

/// Path of a name in a directory, by the open directory: short enough for a socket's address, of which the path
/// has 107 bytes (unix(7)), and never in a directory that was put in its place.
fn path_in(dir: &PrivateDir, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}

/// Makes the socket, mode 0600, in place of the one that an ended agent left, and returns it with its device
/// and inode. It has its name only once it listens and is its owner's alone. The caller holds the directory's
/// lock: no live agent listens there.
///
/// # Errors
/// The errno of the system call.
pub(super) fn bind(dir: &PrivateDir) -> io::Result<(UnixListener, DirId)> {
    // Of an agent that was killed between two of these calls.
    dir.remove(UNFINISHED)?;
    let path = path_in(dir, UNFINISHED);
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    let made = fs::symlink_metadata(&path)?;
    dir.rename(UNFINISHED, NAME)?;
    Ok((listener, (made.dev(), made.ino())))
}

/// Connects to the socket in `dir`; waits for `limit` at most, for an agent that accepts none.
///
/// # Errors
/// The errno of the system call, `NotFound` where there is no socket; another error where neither root nor the
/// caller's own user listens there.
pub(super) fn connect(dir: &PrivateDir, limit: Duration) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let micros = i64::try_from(limit.as_micros()).unwrap_or(i64::MAX);
    setsockopt(&socket, SendTimeout, &TimeVal::new(micros / 1_000_000, micros % 1_000_000))?;
    connect_to(socket.as_raw_fd(), &UnixAddr::new(&path_in(dir, NAME))?)?;
    // Credentials of the process that listens, as of its call of listen(2) (SO_PEERCRED, unix(7)).
    let listens = Uid::from_raw(getsockopt(&socket, PeerCredentials)?.uid());
    if !listens.is_root() && listens != Uid::effective() {
        return Err(io::Error::other(format!("user {listens} listens there, and not root")));
    }
    Ok(UnixStream::from(socket))
}
