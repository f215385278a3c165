//! The process that downloads.
//!
//! ```text
//! PROGRAM __fetch
//! ```
//!
//! Its standard input is the control socket. It ends with 0 when that is closed, with 1 where its messages are none,
//! and with 2 where it could not begin.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::sync::Arc;

use longshore_core::confinement::{NOBODY, close_all_others, give_up_rights};
use nix::sys::resource::Resource;
use nix::unistd::geteuid;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use super::super::client_error::{Class, ClientError};
use super::super::head::Head;
use super::super::settings::Settings;
use super::filter;
use super::wire::{
    DATA, END, FAILURE, HeadMessage, MOST_BODY, MOST_PIECE, MOST_SETTINGS, Question, Start, framed,
    invalid, length_of, read_message, receive, send, write_message,
};

/// Exit status where the messages of the control socket are none.
const NO_MESSAGE: u8 = 1;
/// Exit status of a process that could not begin.
const NOT_BEGUN: u8 = 2;

/// User and group of the process where root starts it: no other program may have them, because the process reads its
/// own user's files below /proc. A user namespace may have nobody alone.
const USERS: [u32; 2] = [2_104_104_105, NOBODY];

/// Threads that resolve names; further names wait.
const RESOLVERS: usize = 8;

/// Bytes of a body that are gathered before they are sent on.
const GATHERED: usize = 256 << 10;

/// Limits of resources. Sockets count for none of them but the files.
const LIMITS: [(Resource, u64); 5] = [
    (Resource::RLIMIT_NOFILE, 1024),
    (Resource::RLIMIT_FSIZE, 0),
    (Resource::RLIMIT_CORE, 0),
    (Resource::RLIMIT_MEMLOCK, 0),
    (Resource::RLIMIT_AS, 4 << 30),
];

/// Runs the process: sets up the client, gives up all rights, then downloads. `args` begin with [`SUBCOMMAND`]. To be
/// called before anything else in the process, above all before it has a second thread. Returns the exit status.
///
/// [`SUBCOMMAND`]: super::SUBCOMMAND
pub fn fetch_main(args: impl IntoIterator<Item = OsString>) -> u8 {
    if args.into_iter().count() != 1 {
        return NOT_BEGUN;
    }
    let Ok((control, settings)) = begin() else { return NOT_BEGUN };
    let (start, ready) = match set_up(settings) {
        Ok(ready) => (Start::Ready { is_root: geteuid().is_root() }, Some(ready)),
        Err(start) => (start, None),
    };
    let reported = write_message(&control, &start);
    let (Some((runtime, client)), Ok(())) = (ready, reported) else { return NOT_BEGUN };
    let served = runtime.block_on(serve(control, client));
    // A name server may keep a thread for long.
    runtime.shutdown_background();
    match served {
        Ok(()) => 0,
        Err(_) => NO_MESSAGE,
    }
}

/// Reads the settings from the control socket.
fn begin() -> io::Result<(BlockingStream, Settings)> {
    close_all_others()?;
    let control = BlockingStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let settings = read_message(&control, MOST_SETTINGS)?;
    Ok((control, settings))
}

/// Makes the client, for which certificates are read, and gives up all rights.
fn set_up(settings: Settings) -> Result<(Runtime, Client), Start> {
    let client = settings.client().map_err(Start::Unusable)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(RESOLVERS)
        .build()
        .map_err(|e| Start::Unusable(e.to_string()))?;
    give_up_rights(&USERS, &LIMITS).map_err(Start::Unconfined)?;
    filter::install().map_err(|e| Start::Unconfined(format!("the seccomp filter: {e}")))?;
    Ok((runtime, Client { client, settings: Arc::new(settings) }))
}

/// The client, shared by all exchanges.
#[derive(Clone)]
struct Client {
    client: reqwest::Client,
    settings: Arc<Settings>,
}

/// Serves exchanges until the control socket is closed.
async fn serve(control: BlockingStream, client: Client) -> io::Result<()> {
    control.set_nonblocking(true)?;
    let control = UnixStream::from_std(control)?;
    while let Some(socket) = next_socket(&control).await? {
        let socket = BlockingStream::from(socket);
        socket.set_nonblocking(true)?;
        let (socket, client) = (UnixStream::from_std(socket)?, client.clone());
        // An exchange fails only with its socket, which longshore has closed or filled with nonsense.
        tokio::spawn(async move { client.exchange(socket).await.ok() });
    }
    Ok(())
}

/// Receives the socket of the next exchange; None once the control socket is closed.
async fn next_socket(control: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut socket = None;
    let received = control.async_io(Interest::READABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let (mut byte, flags) = ([0], RecvFlags::CMSG_CLOEXEC);
        let into = &mut [IoSliceMut::new(&mut byte)];
        let received = recvmsg(control, into, &mut ancillary, flags)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(sockets) = message {
                socket = sockets.last();
            }
        }
        Ok(received.bytes)
    });
    match (received.await?, socket) {
        (0, _) => Ok(None),
        (_, Some(socket)) => Ok(Some(socket)),
        (_, None) => Err(invalid("a byte without a socket")),
    }
}

impl Client {
    /// Serves an exchange: until its end, or until longshore closes the socket.
    async fn exchange(&self, socket: UnixStream) -> io::Result<()> {
        let (mut from, mut to) = socket.into_split();
        let question: Question = receive(&mut from).await?;
        let mut body = None;
        if let Some(length) = question.body {
            if length > MOST_BODY {
                return Err(invalid("a body that is too long"));
            }
            let mut bytes = vec![0; length];
            from.read_exact(&mut bytes).await?;
            body = Some(bytes);
        }
        let mut one = [0];
        tokio::select! {
            answered = self.answer(question, body, &mut to) => answered,
            _ = from.read(&mut one) => Ok(()),
        }
    }

    /// Sends a request, and passes its response on.
    async fn answer(
        &self,
        question: Question,
        body: Option<Vec<u8>>,
        to: &mut (impl tokio::io::AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let reach = self.settings.reach();
        if let Some(reach) = reach {
            reach.learn(question.resolves_to_loopback);
        }
        let sent = match question.into_request(body) {
            Ok(request) => {
                let response = self.client.execute(request).await;
                response.map_err(|e| self.settings.error(&e))
            }
            Err(cause) => Err(ClientError::new(Class::Request, cause)),
        };
        let known = reach.and_then(|reach| reach.resolves_to_loopback());
        let mut response = match sent {
            Ok(response) => response,
            Err(error) => return send(to, &HeadMessage::new(Err(error), known)).await,
        };
        send(to, &HeadMessage::new(Ok(&Head::from_response(&response)), known)).await?;
        let mut goes_on = true;
        while goes_on {
            let mut pieces = Vec::new();
            goes_on = self.append(response.chunk().await, &mut pieces)?;
            // Bytes that have arrived meanwhile go with it: fewer changes between the processes.
            while goes_on && pieces.len() < GATHERED {
                let arrived = tokio::select! {
                    biased;
                    chunk = response.chunk() => chunk,
                    () = std::future::ready(()) => break,
                };
                goes_on = self.append(arrived, &mut pieces)?;
            }
            to.write_all(&pieces).await?;
        }
        Ok(())
    }

    /// Adds the pieces of a part of a body, its end, or its failure; true if more follows.
    fn append(
        &self,
        part: reqwest::Result<Option<impl AsRef<[u8]>>>,
        pieces: &mut Vec<u8>,
    ) -> io::Result<bool> {
        match part {
            Ok(Some(chunk)) => {
                for piece in chunk.as_ref().chunks(MOST_PIECE) {
                    pieces.push(DATA);
                    pieces.extend(length_of(piece)?);
                    pieces.extend(piece);
                }
                return Ok(true);
            }
            Ok(None) => pieces.push(END),
            Err(error) => {
                pieces.push(FAILURE);
                pieces.extend(framed(&self.settings.error(&error))?);
            }
        }
        Ok(false)
    }
}
