//! Destinations of a download: memory, a blob that a blocking thread writes and hashes, or a reader
//! that processes it while it arrives.

mod reading;

use std::io::Write;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::{BlobWriter, Store};

pub(super) use reading::Reading;
pub use reading::{ReadOnce, Reader};

/// Maximum number of chunks waiting for the disk.
const WAITING: usize = 16;

/// Tracks the threads that still write: a dropped download is gone from the disk only when its
/// thread has ended.
#[derive(Debug)]
pub struct WriterGroup {
    alive: mpsc::Sender<()>,
    ended: mpsc::Receiver<()>,
}

/// Held by a thread while it writes.
pub type WriterGuard = mpsc::Sender<()>;

impl Default for WriterGroup {
    /// Returns a group without any thread yet.
    fn default() -> Self {
        let (alive, ended) = mpsc::channel(1);
        Self { alive, ended }
    }
}

impl WriterGroup {
    /// Returns what a thread of this group holds.
    pub fn alive(&self) -> &WriterGuard {
        &self.alive
    }

    /// Waits until every thread has ended.
    pub async fn all_ended(mut self) {
        drop(self.alive);
        // No message is ever sent; the channel closes with its last sender.
        let _ = self.ended.recv().await;
    }
}

/// Receives a download's bytes in order.
pub(super) enum Sink {
    /// Memory, for small files.
    Memory(Vec<u8>),
    /// A blob, for every other stored file.
    Blob(Writing),
    /// A reader, for files stored only in another form.
    Reader(Reading),
}

/// A finished download, compared with its expected digest.
pub(super) enum Committed {
    /// The expected file, with its sha256 (hex).
    Right(String),
    /// Another file than expected.
    Wrong(Failure),
}

impl Sink {
    /// Returns the number of bytes received.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Blob(writing) => writing.size,
            Self::Reader(reading) => reading.size(),
        }
    }

    /// Returns the bytes in memory; empty for the other kinds.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Blob(_) | Self::Reader(_) => Vec::new(),
        }
    }

    /// Ends the download, and compares its digest.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be written; the reader's error.
    pub(super) async fn commit(self, expected: Option<String>) -> Result<Committed, Failure> {
        match self {
            Self::Memory(_) => Ok(Committed::Right(String::new())),
            Self::Blob(writing) => match writing.commit(expected).await {
                Ok(sha256) => Ok(Committed::Right(sha256)),
                Err(failure) if failure.kind() == FailureKind::Verification => {
                    Ok(Committed::Wrong(failure))
                }
                Err(failure) => Err(failure),
            },
            Self::Reader(reading) => reading.commit(expected).await,
        }
    }

    /// Receives more bytes.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be written.
    pub(super) async fn put(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Memory(bytes) => {
                bytes.extend_from_slice(chunk);
                Ok(())
            }
            Self::Blob(writing) => writing.put(chunk).await,
            Self::Reader(reading) => reading.put(chunk).await,
        }
    }

    /// Discards the received bytes.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be written.
    pub(super) fn restart(&mut self) -> Result<(), Failure> {
        match self {
            Self::Memory(bytes) => bytes.clear(),
            Self::Blob(writing) => *writing = Writing::start(&writing.store, &writing.alive)?,
            Self::Reader(reading) => *reading = reading.again(),
        }
        Ok(())
    }
}

/// Resources of the thread. Fields are dropped in this order: the temporary file is gone before the
/// thread counts as ended.
struct Held {
    writer: BlobWriter,
    alive: WriterGuard,
}

/// A blob being written by a thread of its own. Dropping it removes the blob.
pub(super) struct Writing {
    chunks: mpsc::Sender<Vec<u8>>,
    thread: JoinHandle<Result<Held, Failure>>,
    size: u64,
    store: Store,
    alive: WriterGuard,
}

impl Writing {
    pub(super) fn start(store: &Store, alive: &WriterGuard) -> Result<Self, Failure> {
        let mut held = Held { writer: store.blob_writer()?, alive: alive.clone() };
        let (chunks, mut waiting) = mpsc::channel::<Vec<u8>>(WAITING);
        let tmp = store.dir("tmp");
        let thread = tokio::task::spawn_blocking(move || {
            while let Some(chunk) = waiting.blocking_recv() {
                held.writer.write_all(&chunk).map_err(|e| write_failure(&tmp, e))?;
            }
            Ok(held)
        });
        Ok(Self { chunks, thread, size: 0, store: store.clone(), alive: alive.clone() })
    }

    async fn put(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        if self.chunks.send(chunk.to_vec()).await.is_ok() {
            self.size += chunk.len() as u64;
            return Ok(());
        }
        // The thread has ended with an error.
        let ended = (&mut self.thread).await;
        match ended.or_fail(FailureKind::Bug, || "the thread that writes a download died")? {
            Err(failure) => Err(failure),
            Ok(_) => Err(Failure::new(FailureKind::Bug, "a download was written after its end")),
        }
    }

    /// Verifies, syncs and names the blob; returns its sha256 (hex).
    ///
    /// # Errors
    /// Exit code 13 where the digest differs; 15 where the store cannot be written.
    pub(super) async fn commit(self, expected: Option<String>) -> Result<String, Failure> {
        drop(self.chunks);
        let died = || "the thread that writes a download died";
        let Held { writer, alive } = self.thread.await.or_fail(FailureKind::Bug, died)??;
        let commit = tokio::task::spawn_blocking(move || {
            let committed = writer.commit(expected.as_deref());
            drop(alive);
            committed
        });
        commit.await.or_fail(FailureKind::Bug, died)?
    }
}
