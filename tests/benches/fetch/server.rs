//! A server of files in memory, with persistent connections, at full speed or slower.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Latency and speed of a connection.
#[derive(Clone, Copy, Default)]
pub(crate) struct Line {
    /// Delay before each answer.
    pub(crate) latency: Duration,
    /// Speed; 0 is unlimited.
    pub(crate) bytes_per_second: u64,
}

/// An HTTP server, which ends with the process.
pub(crate) struct Server {
    address: SocketAddr,
}

impl Server {
    pub(crate) fn start(files: BTreeMap<String, Vec<u8>>, line: Line) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let files = Arc::new(files);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let files = Arc::clone(&files);
                // A client that disconnects is no fault of the server's.
                thread::spawn(move || serve(stream, &files, line));
            }
        });
        Self { address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn serve(mut stream: TcpStream, files: &BTreeMap<String, Vec<u8>>, line: Line) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut header = String::new();
        while reader.read_line(&mut header)? > 2 {
            header.clear();
        }
        thread::sleep(line.latency);
        let path = first.split_whitespace().nth(1).unwrap_or_default();
        match files.get(path) {
            Some(body) => {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
                send(&mut stream, body, line)?;
            }
            None => write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?,
        }
    }
}

fn send(stream: &mut TcpStream, body: &[u8], line: Line) -> io::Result<()> {
    if line.bytes_per_second == 0 {
        return stream.write_all(body);
    }
    let begun = Instant::now();
    let mut sent = 0;
    for chunk in body.chunks(64 << 10) {
        stream.write_all(chunk)?;
        sent += chunk.len();
        let due = Duration::from_secs_f64(sent as f64 / line.bytes_per_second as f64);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(())
}
