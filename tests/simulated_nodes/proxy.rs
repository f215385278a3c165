//! Way from a node's agent to the API server: counts bytes, and kills the agent at a request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Type of TLS records with data of the application (RFC 8446, section 5.1).
const DATA: u8 = 23;

/// Moment at which an agent is killed, by the number of a record with data that it sends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Death {
    /// The record does not reach the API server.
    Before(usize),
    /// The answer to it does not reach the agent.
    After(usize),
}

/// Counts of a node, and its agent.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// Connections.
    pub(crate) connections: AtomicU64,
    /// Bytes that agents sent, with those of TLS.
    pub(crate) sent: AtomicU64,
    /// Bytes that agents received.
    pub(crate) received: AtomicU64,
    /// Process id of the agent; 0 for none.
    pub(crate) agent: AtomicI32,
    /// The agent of now is to be killed at `death`.
    pub(crate) armed: AtomicBool,
    records: AtomicUsize,
    answer_is_lost: AtomicBool,
}

impl Way {
    fn kill(&self) {
        self.armed.store(false, Ordering::SeqCst);
        let pid = self.agent.load(Ordering::SeqCst);
        if pid > 0 {
            // One that has just ended is as dead.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// Kills the next agent at its moment.
    pub(crate) fn arm(&self) {
        self.records.store(0, Ordering::SeqCst);
        self.answer_is_lost.store(false, Ordering::SeqCst);
        self.armed.store(true, Ordering::SeqCst);
    }
}

/// Serves the way from a port, which is returned, to the API server at `port`.
pub(crate) async fn serve(port: u16, way: Arc<Way>, death: Option<Death>) -> io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let own = listener.local_addr()?.port();
    tokio::spawn(async move {
        loop {
            let Ok((client, _)) = listener.accept().await else { continue };
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
            way.connections.fetch_add(1, Ordering::Relaxed);
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::spawn(requests(from_client, to_server, Arc::clone(&way), death));
            tokio::spawn(answers(from_server, to_client, Arc::clone(&way)));
        }
    });
    Ok(own)
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Arc<Way>,
    death: Option<Death>,
) {
    let (mut buffer, mut records) = (vec![0; 16 << 10], Records::default());
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        way.sent.fetch_add(length as u64, Ordering::Relaxed);
        let data = records.data(&buffer[..length]);
        if way.armed.load(Ordering::SeqCst) && data > 0 {
            let first = way.records.fetch_add(data, Ordering::SeqCst);
            let has = |n: usize| (first..first + data).contains(&n);
            match death {
                Some(Death::Before(n)) if has(n) => return way.kill(),
                Some(Death::After(n)) if has(n) => {
                    way.answer_is_lost.store(true, Ordering::SeqCst);
                }
                _ => {}
            }
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way: Arc<Way>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        way.received.fetch_add(length as u64, Ordering::Relaxed);
        if way.armed.load(Ordering::SeqCst) && way.answer_is_lost.load(Ordering::SeqCst) {
            return way.kill();
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// Reader of the headers of TLS records in a stream.
#[derive(Default)]
struct Records {
    header: Vec<u8>,
    left: usize,
}

impl Records {
    /// Returns the number of records with data that begin in these bytes.
    fn data(&mut self, mut bytes: &[u8]) -> usize {
        let mut count = 0;
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if let [kind, _, _, high, low] = self.header[..] {
                count += usize::from(kind == DATA);
                self.left = usize::from(u16::from_be_bytes([high, low]));
                self.header.clear();
            }
        }
        count
    }
}
