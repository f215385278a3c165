//! A registry on loopback that keeps manifests and blobs in memory, for tests.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use longshore_core::image_reference::Repository;
use longshore_fetch::http::Policy;

use super::Registry;
use crate::artifact::image::digest;

/// Paths of the repository `a`.
const HOME: &str = "/v2/a/";
const UPLOADS: &str = "blobs/uploads/";

#[derive(Debug, Default)]
struct State {
    /// Manifests and blobs, by their paths in the repository.
    files: BTreeMap<String, Vec<u8>>,
    /// Path that is answered with a status alone.
    refused: Option<(String, u16)>,
    /// Method and path of each request.
    log: Vec<String>,
}

/// The registry; its thread ends with the test's process.
#[derive(Debug)]
pub struct StandIn {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl StandIn {
    /// Starts an empty one.
    ///
    /// # Panics
    /// Loopback has no free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let state = Arc::new(Mutex::new(State::default()));
        let served = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&served);
                // A client that disconnects is no fault of the registry's.
                thread::spawn(move || serve(stream, &state));
            }
        });
        Self { address, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("state")
    }

    /// Returns its repository.
    ///
    /// # Panics
    /// Its address makes no reference.
    pub fn repository(&self) -> Repository {
        format!("http://{}/a", self.address).parse().expect("a repository")
    }

    /// Opens its repository for writing.
    ///
    /// # Panics
    /// No client can be set up.
    pub fn open(&self) -> Registry {
        let repository = self.repository();
        Registry::open_to_push_with(Policy::default(), &repository, Path::new("/"), &|_| None)
            .expect("opens")
    }

    /// Puts a blob; returns its path.
    pub fn put_blob(&self, bytes: &[u8]) -> String {
        let path = format!("blobs/{}", digest(bytes));
        self.state().files.insert(path.clone(), bytes.to_vec());
        path
    }

    /// Puts a manifest under a tag; returns its path.
    pub fn put_manifest(&self, tag: &str, bytes: &[u8]) -> String {
        let path = format!("manifests/{tag}");
        self.state().files.insert(path.clone(), bytes.to_vec());
        path
    }

    /// Removes a manifest or blob, as a registry's cleanup does.
    ///
    /// # Panics
    /// It has none.
    pub fn remove(&self, path: &str) {
        assert!(self.state().files.remove(path).is_some(), "{path} was never there");
    }

    /// Returns a manifest or blob.
    ///
    /// # Panics
    /// It has none.
    pub fn get(&self, path: &str) -> Vec<u8> {
        self.state().files.get(path).expect("it is there").clone()
    }

    /// Serves other bytes in the place of a manifest or blob, or none.
    pub fn replace(&self, path: &str, bytes: Option<&[u8]>) {
        self.remove(path);
        if let Some(bytes) = bytes {
            self.state().files.insert(path.to_owned(), bytes.to_vec());
        }
    }

    /// Puts the manifest of a tag under another one.
    pub fn copy_manifest(&self, from: &str, to: &str) {
        let bytes = self.get(&format!("manifests/{from}"));
        self.put_manifest(to, &bytes);
    }

    /// True if it has a manifest or blob.
    pub fn has(&self, path: &str) -> bool {
        self.state().files.contains_key(path)
    }

    /// Answers each request for a path with 400 from now on.
    pub fn refuse(&self, path: &str) {
        self.state().refused = Some((path.to_owned(), 400));
    }

    /// Denies access to a path from now on.
    pub fn deny(&self, path: &str) {
        self.state().refused = Some((path.to_owned(), 401));
    }

    /// Returns the requests since the last call, as `METHOD PATH`.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }
}

/// Answers one request.
fn serve(stream: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length: usize = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<usize>().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = request.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, answer) = state.lock().expect("state").answer(method, target, body);
    let head = format!(
        "HTTP/1.1 {status} X\r\nLocation: {HOME}{UPLOADS}1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    let mut stream = reader.into_inner();
    stream.write_all(head.as_bytes())?;
    match method {
        "HEAD" => Ok(()),
        _ => stream.write_all(&answer),
    }
}

impl State {
    fn answer(&mut self, method: &str, target: &str, body: Vec<u8>) -> (u16, Vec<u8>) {
        let path = target.split('?').next().unwrap_or_default();
        let path = path.strip_prefix(HOME).unwrap_or_default().to_owned();
        self.log.push(format!("{method} {path}"));
        if let Some((_, status)) = self.refused.as_ref().filter(|(refused, _)| *refused == path) {
            return (*status, Vec::new());
        }
        match method {
            "POST" => (202, Vec::new()),
            "PUT" => {
                let is_blob = path.starts_with(UPLOADS);
                let path = if is_blob { format!("blobs/{}", digest(&body)) } else { path };
                self.files.insert(path, body);
                (201, Vec::new())
            }
            _ if path == "tags/list" => {
                let tags: Vec<&str> =
                    self.files.keys().filter_map(|path| path.strip_prefix("manifests/")).collect();
                (200, serde_json::json!({ "tags": tags }).to_string().into_bytes())
            }
            _ => match self.files.get(&path) {
                Some(bytes) => (200, bytes.clone()),
                None => (404, Vec::new()),
            },
        }
    }
}
