//! Result of a download's last reader.
//!
//! A download may start over, and an earlier reader's result is of bytes that were never compared
//! with the digest. Its thread may end at any time, so each reader has a slot of its own.

use std::sync::{Arc, Mutex, PoisonError};

use super::unpack::{self, Unpacked};
use longshore_core::store::Store;
use longshore_fetch::http::{ReadOnce, Reader};

/// Slot for the result of one reader.
type Slot = Arc<Mutex<Option<Unpacked>>>;

/// The slot of the last reader.
#[derive(Default)]
pub(super) struct Latest(Mutex<Slot>);

impl Latest {
    /// Returns a reader that unpacks a file into the store's temporary directory, each time into
    /// another.
    pub(super) fn reader(self: &Arc<Self>, name: &str, store: &Store) -> Reader {
        let (latest, name, store) = (Arc::clone(self), name.to_owned(), store.clone());
        Arc::new(move || {
            let (slot, name, store) = (latest.begin(), name.clone(), store.clone());
            let read: ReadOnce = Box::new(move |from| {
                let found = unpack::unpack(&name, from, &store, unpack::MOST_UNPACKED)?;
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
                Ok(())
            });
            read
        })
    }

    /// Starts a new slot; the previous slot's result is discarded.
    fn begin(&self) -> Slot {
        let slot = Slot::default();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&slot);
        slot
    }

    /// Takes the result of the last reader, if it reached the end.
    pub(super) fn take(&self) -> Option<Unpacked> {
        let slot = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        slot.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use sha2::{Digest, Sha256};

    use super::*;
    use crate::runfile::sample::{self, Compression, NAME, driver};
    use longshore_core::digest::hex;
    use longshore_core::disk::Disk;
    use longshore_core::progress::{Progress, Silent, Unit};
    use longshore_fetch::http::{Fetcher, Policy};

    const SOON: Duration = Duration::from_secs(20);

    /// Answers each connection with the next response.
    fn serve(answers: Vec<Vec<u8>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let url = format!("http://{}/{NAME}", listener.local_addr().expect("address"));
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("accepted");
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("asked");
                    request.push(byte[0]);
                }
                stream.write_all(&answer).expect("answered");
            }
        });
        url
    }

    fn answer(status: &str, length: usize, body: &[u8]) -> Vec<u8> {
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        [head.as_bytes(), body].concat()
    }

    fn evil() -> Vec<u8> {
        let mut members = driver();
        for member in &mut members {
            if member.path.ends_with("conftest.sh") {
                member.bytes = b"evil".to_vec();
            }
        }
        sample::run_file(&members, Compression::Gzip)
    }

    /// Like `reader`, but the first one ends after the second one.
    fn first_ends_last(reader: Reader) -> Reader {
        let (ended, wait) = mpsc::channel();
        let (wait, begun) = (Mutex::new(Some(wait)), AtomicUsize::new(0));
        Arc::new(move || {
            let (read, ended) = (reader(), ended.clone());
            let first = begun.fetch_add(1, Ordering::SeqCst) == 0;
            let wait = wait.lock().expect("unpoisoned").take().filter(|_| first);
            let read_once: ReadOnce = Box::new(move |from| {
                let Some(wait) = wait else {
                    let result = read(from);
                    ended.send(()).expect("waited for");
                    return result;
                };
                let mut all = Vec::new();
                from.read_to_end(&mut all).expect("read");
                wait.recv_timeout(SOON).expect("the second one ended");
                read(&mut all.as_slice())
            });
            read_once
        })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_broken_off_download_unpacked_is_never_taken() {
        let (right, evil) = (sample::run_file(&driver(), Compression::Gzip), evil());
        let url = serve(vec![
            answer("200 OK", evil.len() + 10, &evil),
            answer("416 Range Not Satisfiable", 0, b""),
            answer("200 OK", right.len(), &right),
        ]);
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store");
        let policy = Policy { backoff: Duration::from_millis(1), ..Policy::default() };
        let fetcher = Fetcher::new(policy, Path::new("/")).expect("fetcher");
        let latest = Arc::new(Latest::default());
        let reader = first_ends_last(latest.reader(NAME, &store));
        let (sha256, most) = (hex(&Sha256::digest(&right)), 1 << 30);
        let task = Silent.begin("", None, Unit::Bytes);
        fetcher.stream(&url, &sha256, most, &reader, task.as_ref()).await.expect("fetched");
        let left = || fs::read_dir(store.dir("tmp")).expect("listed").count();
        assert_eq!(left(), 1, "of the first reading nothing is left");
        let found = latest.take().expect("unpacked");
        let text = fs::read_to_string(found.tree().join("kernel-open/conftest.sh"));
        assert_eq!(text.expect("read"), "open");
        drop(found);
        assert_eq!(left(), 0);
    }
}
