//! Registries behind another server: a redirection, or one in front of the blobs.

use longshore_tests::module_sets;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::*;

/// Status, further header lines, body.
pub(super) type Reply = (u16, String, Vec<u8>);

/// A server on loopback that answers `METHOD /path` by a function and logs each client's
/// credentials.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<()>,
}

impl Server {
    pub(super) fn start(answer: impl Fn(&str) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let log = Arc::new(Mutex::new(Vec::new()));
        let shared = log.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let Some((asked, asker)) = request(&stream) else { return };
                shared.lock().expect("log").push(format!("{asked} {asker}"));
                let (status, header, body) = answer(&asked);
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n"
                );
                let _ = (&stream).write_all(format!("{head}{header}\r\n").as_bytes());
                if !asked.starts_with("HEAD ") {
                    let _ = (&stream).write_all(&body);
                }
            }
        });
        Self { address, log, thread }
    }

    /// Ends it, and returns the requests.
    pub(super) fn end(self) -> Vec<String> {
        // An empty request ends it.
        drop(TcpStream::connect(self.address));
        self.thread.join().expect("the server ends");
        self.log.lock().expect("log").clone()
    }
}

/// Returns `METHOD /path` without query, and the credentials; None for a request that ends the
/// server.
fn request(stream: &TcpStream) -> Option<(String, String)> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let asked = first.split('?').next()?.trim_end_matches(" HTTP/1.1").to_owned();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let asker = headers.iter().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization").then(|| value.to_owned())
    });
    Some((asked, asker.unwrap_or_default()))
}

fn open(scene: &Scene, address: SocketAddr, realms: &[SocketAddr]) -> Registry {
    let source = format!("http://{address}/a").parse().expect("a registry");
    let host = |address: SocketAddr| address.to_string().parse().expect("a host");
    let rules = LoginRules {
        insecure: vec![host(address)],
        realms: realms.iter().map(|realm| host(*realm)).collect(),
    };
    Registry::open_with(hasty(), &source, Path::new("/"), &scene.env())
        .expect("opens")
        .with_login_rules(&rules)
}

pub(super) fn log_in(scene: &Scene, address: SocketAddr) {
    let docker = scene.dir.path().join("docker");
    fs::create_dir(&docker).expect("dir");
    let json = format!(r#"{{"auths":{{"{address}":{{"auth":"dXNlcjpnZWhlaW0="}}}}}}"#);
    fs::write(docker.join("config.json"), json).expect("writes");
}

#[tokio::test]
async fn a_download_that_is_denied_behind_the_registry_ends() {
    let mut scene = Scene::new();
    scene.set = module_sets::put_of(&scene.store, "6.1.0-50-amd64", &["nvidia"], 0);
    let digest = scene.push().await.expect("pushes");
    let manifest = fs::read(scene.hub.blob(&digest)).expect("reads");
    let parsed: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let config = parsed["config"]["digest"].as_str().expect("a digest").to_owned();
    let config_bytes = fs::read(scene.hub.blob(&config)).expect("reads");
    let server = Server::start(move |asked| match asked {
        a if a.contains("/manifests/") => (200, String::new(), manifest.clone()),
        a if a.ends_with(&config) => (200, String::new(), config_bytes.clone()),
        a if a.starts_with("HEAD ") => (200, String::new(), Vec::new()),
        _ => (403, String::new(), Vec::new()),
    });
    let registry = open(&scene, server.address, &[]);
    let failure = registry.pull(&digest, &scene.other, &Silent).await.expect_err("denied");
    assert_eq!(failure.code(), ExitCode::Download, "{}", failure.report());
    assert!(failure.report().contains("403"), "{}", failure.report());
    assert_eq!(server.end().len(), 4);
    module_sets::assert_sound(&scene.other);
}

#[tokio::test]
async fn who_answers_behind_a_redirection_gets_no_login() {
    let scene = Scene::new();
    let other = Server::start(|_| {
        (401, "Www-Authenticate: Basic realm=\"x\"\r\n".to_owned(), b"{}".to_vec())
    });
    let to = format!("Location: http://{}/elsewhere\r\n", other.address);
    let server = Server::start(move |_| (307, to.clone(), Vec::new()));
    log_in(&scene, server.address);
    let failure = open(&scene, server.address, &[]).describe("latest").await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Download, "{}", failure.report());
    assert_eq!(server.end(), ["GET /v2/a/manifests/latest "]);
    assert_eq!(other.end(), ["GET /elsewhere "]);
}

#[tokio::test]
async fn a_realm_that_redirects_takes_the_login_nowhere() {
    let scene = Scene::new();
    let other = Server::start(|_| (200, String::new(), br#"{"token":"x"}"#.to_vec()));
    let to = format!("Location: http://{}/token\r\n", other.address);
    let realm = Server::start(move |_| (307, to.clone(), Vec::new()));
    let challenge =
        format!("Www-Authenticate: Bearer realm=\"http://{}/token\"\r\n", realm.address);
    let server = Server::start(move |_| (401, challenge.clone(), b"{}".to_vec()));
    log_in(&scene, server.address);
    let registry = open(&scene, server.address, &[realm.address]);
    let failure = registry.describe("latest").await.expect_err("refused");
    assert!(failure.report().contains("gives no token: 307"), "{}", failure.report());
    assert_eq!(server.end().len(), 1);
    assert_eq!(realm.end(), ["GET /token ", "GET /token Basic dXNlcjpnZWhlaW0="]);
    assert!(other.end().is_empty());
}
