//! Reading ahead on another thread than the one that processes the data.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Size of a message.
const CHUNK: usize = 256 << 10;
/// Maximum number of waiting messages: 2 MiB in all.
const AHEAD: usize = 8;

/// Runs `work` on the reader that `open` returns, which is opened and read on a thread of its own:
/// one processor decompresses while another writes.
pub fn read_ahead<R: Read, T>(
    open: impl FnOnce() -> io::Result<R> + Send,
    work: impl FnOnce(&mut dyn Read) -> T,
) -> T {
    let (sender, receiver) = sync_channel(AHEAD);
    thread::scope(|scope| {
        scope.spawn(move || {
            if let Err(error) = open().and_then(|reader| send(reader, &sender)) {
                // The receiver is gone if `work` has finished early.
                let _ = sender.send(Err(error));
            }
        });
        // Dropped at the end of `work`, which stops a reader that is still running.
        let mut ahead = Ahead { receiver, chunk: Vec::new(), at: 0 };
        work(&mut ahead)
    })
}

/// Sends everything, until the end or until the receiver is gone.
fn send(mut reader: impl Read, sender: &SyncSender<io::Result<Vec<u8>>>) -> io::Result<()> {
    loop {
        let mut chunk = Vec::with_capacity(CHUNK);
        if reader.by_ref().take(CHUNK as u64).read_to_end(&mut chunk)? == 0 {
            return Ok(());
        }
        if sender.send(Ok(chunk)).is_err() {
            return Ok(());
        }
    }
}

struct Ahead {
    receiver: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    at: usize,
}

impl Read for Ahead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.chunk.len() {
            match self.receiver.recv() {
                Ok(chunk) => (self.chunk, self.at) = (chunk?, 0),
                // The other thread reached the end.
                Err(_) => return Ok(0),
            }
        }
        let mut rest: &[u8] = &self.chunk[self.at..];
        let n = rest.read(into)?;
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0)]
    #[case(1)]
    #[case(CHUNK)]
    #[case(CHUNK * 20 + 7)]
    fn every_byte_arrives_in_order(#[case] len: usize) {
        let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        let mut read = Vec::new();
        read_ahead(|| Ok(&bytes[..]), |ahead| ahead.read_to_end(&mut read)).expect("reads");
        assert!(read == bytes);
    }

    /// Returns a chunk, then fails.
    struct Broken(usize);

    impl Read for Broken {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            let n = self.0.min(into.len());
            self.0 -= n;
            Ok(n)
        }
    }

    #[test]
    fn an_error_arrives_and_so_does_one_of_opening() {
        let mut read = Vec::new();
        let failed = read_ahead(|| Ok(Broken(CHUNK)), |ahead| ahead.read_to_end(&mut read));
        assert_eq!(failed.expect_err("broken").kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read.len(), CHUNK, "what came before the error");
        let refused = || Err::<io::Empty, _>(io::Error::from(io::ErrorKind::NotFound));
        let failed = read_ahead(refused, |ahead| ahead.read(&mut [0]));
        assert_eq!(failed.expect_err("not opened").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn who_has_seen_enough_waits_for_nothing() {
        let first = read_ahead(
            || Ok(io::repeat(7)),
            |ahead| {
                let mut first = [0];
                ahead.read_exact(&mut first).map(|()| first[0])
            },
        );
        assert_eq!(first.expect("reads"), 7);
    }
}
