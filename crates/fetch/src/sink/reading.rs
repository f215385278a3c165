//! A download that a reader processes while it arrives, hashed on the way.

use std::io::{self, Read};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Committed, WAITING, WriterGuard};
use longshore_core::digest::hex;
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// Creates readers of a download from its start. Called again where the download starts over,
/// always in the download's order: of several results, only the last counts.
pub type Reader = Arc<dyn Fn() -> ReadOnce + Send + Sync>;

/// Reads a download once, on a thread of its own. Where the download starts over it may end later
/// than the readers created after it.
pub type ReadOnce = Box<dyn FnOnce(&mut dyn Read) -> Result<(), Failure> + Send>;

/// A download and the thread that reads it.
pub(crate) struct Reading {
    chunks: mpsc::Sender<Vec<u8>>,
    thread: JoinHandle<Ended>,
    size: u64,
    reader: Reader,
    alive: WriterGuard,
}

/// Result of a reader's thread.
struct Ended {
    /// sha256 (hex) of everything that arrived; None where the thread ended before the download.
    sha256: Option<String>,
    read: Result<(), Failure>,
}

impl Reading {
    /// Starts the thread of the first reader.
    pub(crate) fn start(reader: &Reader, alive: &WriterGuard) -> Self {
        let (chunks, waiting) = mpsc::channel::<Vec<u8>>(WAITING);
        let (read, held) = (reader(), alive.clone());
        let thread = tokio::task::spawn_blocking(move || {
            // The resources of `read` are dropped with it, before the thread counts as ended.
            let ended = read_to_end(read, Arriving::new(waiting));
            drop(held);
            ended
        });
        Self { chunks, thread, size: 0, reader: Arc::clone(reader), alive: alive.clone() }
    }

    pub(super) fn again(&self) -> Self {
        Self::start(&self.reader, &self.alive)
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) async fn put(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        if self.chunks.send(chunk.to_vec()).await.is_ok() {
            self.size += chunk.len() as u64;
            return Ok(());
        }
        let ended = (&mut self.thread).await.or_fail(FailureKind::Bug, died)?;
        ended
            .read
            .and_then(|()| Err(Failure::new(FailureKind::Bug, "a reader ended before its file")))
    }

    /// Compares the digest; the reader's error counts only if the file is the expected one.
    pub(super) async fn commit(self, expected: Option<String>) -> Result<Committed, Failure> {
        drop(self.chunks);
        let Ended { sha256, read } = self.thread.await.or_fail(FailureKind::Bug, died)?;
        let found = match sha256 {
            Some(found) => found,
            None => return read.map(|()| Committed::Right(String::new())),
        };
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            let cause = format!("expected sha256 {expected}, got {found} ({} bytes)", self.size);
            let failure = Failure::new(FailureKind::Verification, cause);
            return Ok(Committed::Wrong(match read {
                Ok(()) => failure,
                Err(read) => failure.with_source(read),
            }));
        }
        read.map(|()| Committed::Right(found))
    }
}

fn died() -> &'static str {
    "the thread that reads a download died"
}

/// Reads the download, and hashes the bytes that the reader left, unless the disk failed.
fn read_to_end(read: ReadOnce, mut arriving: Arriving) -> Ended {
    let read = read(&mut arriving);
    if read.as_ref().is_err_and(|failure| failure.kind() != FailureKind::Verification) {
        return Ended { sha256: None, read };
    }
    // This cannot fail: the sink discards, and a closed channel is the end of the file.
    let _ = io::copy(&mut arriving, &mut io::sink());
    Ended { sha256: Some(hex(&arriving.hash.finalize())), read }
}

/// The bytes of a download, as they arrive.
struct Arriving {
    waiting: mpsc::Receiver<Vec<u8>>,
    chunk: Vec<u8>,
    /// Number of bytes read from `chunk`.
    read: usize,
    hash: Sha256,
}

impl Arriving {
    fn new(waiting: mpsc::Receiver<Vec<u8>>) -> Self {
        Self { waiting, chunk: Vec::new(), read: 0, hash: Sha256::new() }
    }
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read == self.chunk.len() {
            let Some(chunk) = self.waiting.blocking_recv() else { return Ok(0) };
            self.hash.update(&chunk);
            (self.chunk, self.read) = (chunk, 0);
        }
        let n = buffer.len().min(self.chunk.len() - self.read);
        buffer[..n].copy_from_slice(&self.chunk[self.read..self.read + n]);
        self.read += n;
        Ok(n)
    }
}
