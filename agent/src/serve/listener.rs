//! Listeners: a TCP address, a socket at a path, or the agent's own socket.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::connections::Peer;
use crate::config::Listen;

/// A bound listener.
pub(super) enum Listener {
    Tcp(TcpListener),
    /// Socket at the path of a setting.
    Unix(UnixListener, Listen),
    /// The agent's own socket.
    Private(UnixListener),
}

impl Listener {
    /// Binds the address of a setting; a socket is its owner's alone.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(super) async fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Off => Err(io::ErrorKind::Unsupported.into()),
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => {
                clear(path).await?;
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, Permissions::from_mode(0o600))?;
                Ok(Self::Unix(listener, listen.clone()))
            }
        }
    }

    /// Takes the agent's own socket, which listens already.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(super) fn private(listener: StdUnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener).map(Self::Private)
    }

    /// Returns the address with the actual port.
    ///
    /// # Errors
    /// The errno of the system call; `Unsupported` for the agent's own socket.
    pub(super) fn address(&self) -> io::Result<Listen> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Self::Unix(_, listen) => Ok(listen.clone()),
            Self::Private(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits for a connection, and returns it with its peer.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                (Box::new(stream), Some(peer.ip()))
            }
            Self::Unix(listener, _) | Self::Private(listener) => {
                (Box::new(listener.accept().await?.0), None)
            }
        })
    }
}

/// Removes a socket that has no listener any more; any other file stays, and listening fails.
async fn clear(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket
        && let Err(error) = UnixStream::connect(path).await
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// A connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
