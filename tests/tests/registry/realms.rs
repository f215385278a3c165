//! Realms and redirections that lead elsewhere: to another host, to this machine, to a metadata service.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use longshore_tests::scene::{Ended, finish, longshore};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::behind::{Server, log_in};
use super::other_tools::openssl;
use super::*;

/// `user:geheim` in base64, as [`log_in`] configures it.
const LOGIN: &str = "Basic dXNlcjpnZWhlaW0=";

fn host(address: &str) -> longshore_core::image_reference::Host {
    address.parse().expect("a host")
}

/// Opens a registry on loopback, without TLS; it gets its login as the configuration permits it.
fn open(scene: &Scene, address: SocketAddr, realms: &[&str]) -> Registry {
    let source = format!("http://{address}/a").parse().expect("a registry");
    let rules = LoginRules {
        insecure: vec![host(&address.to_string())],
        realms: realms.iter().map(|realm| host(realm)).collect(),
    };
    Registry::open_with(hasty(), &source, Path::new("/"), &scene.env())
        .expect("opens")
        .with_login_rules(&rules)
}

/// A registry that demands a token of this realm.
fn demanding(realm: &str) -> Server {
    let challenge = format!("Www-Authenticate: Bearer realm=\"{realm}\"\r\n");
    Server::start(move |_| (401, challenge.clone(), b"{}".to_vec()))
}

#[tokio::test]
async fn a_realm_at_another_port_is_asked_for_nothing() {
    let scene = Scene::new();
    let other = Server::start(|_| (200, String::new(), br#"{"access_token":"x"}"#.to_vec()));
    let server = demanding(&format!("http://{}/latest/meta-data/iam", other.address));
    log_in(&scene, server.address);
    let registry = open(&scene, server.address, &[]);
    let failure = registry.describe("latest").await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Download);
    let report = failure.report().to_string();
    assert!(report.contains("on another host than the registry"), "{report}");
    assert!(report.contains(&format!("registry-realms = [\"{}\"]", other.address)), "{report}");
    assert_eq!(server.end(), ["GET /v2/a/manifests/latest "]);
    assert!(other.end().is_empty(), "it got a request");
}

#[tokio::test]
async fn a_realm_that_is_configured_gets_the_login() {
    let scene = Scene::new();
    let realm = Server::start(|_| (200, String::new(), br#"{"token":"x"}"#.to_vec()));
    let server = demanding(&format!("http://{}/token", realm.address));
    log_in(&scene, server.address);
    let named = realm.address.to_string();
    let failure = open(&scene, server.address, &[&named]).describe("latest").await;
    assert!(failure.expect_err("refused").report().contains("check the login"));
    assert_eq!(realm.end(), ["GET /token ".to_owned(), format!("GET /token {LOGIN}")]);
    drop(server.end());
}

#[tokio::test]
async fn a_metadata_service_is_no_realm_even_if_it_is_configured() {
    let scene = Scene::new();
    let server = demanding("http://169.254.169.254/latest/meta-data/iam");
    log_in(&scene, server.address);
    let registry = open(&scene, server.address, &["169.254.169.254"]);
    let failure = registry.describe("latest").await.expect_err("refused");
    assert!(failure.report().contains("a link-local address"), "{}", failure.report());
    assert_eq!(server.end().len(), 1);
}

#[tokio::test]
async fn without_tls_there_is_no_login_unless_the_registry_is_named() {
    let scene = Scene::new();
    let server =
        Server::start(|_| (401, "Www-Authenticate: Basic realm=\"x\"\r\n".into(), b"{}".to_vec()));
    log_in(&scene, server.address);
    let source = format!("http://{}/a", server.address).parse().expect("a registry");
    let registry =
        Registry::open_with(hasty(), &source, Path::new("/"), &scene.env()).expect("opens");
    let failure = registry.describe("latest").await.expect_err("refused");
    let report = failure.report().to_string();
    assert!(report.contains("is not sent without TLS"), "{report}");
    assert!(report.contains("insecure-registries"), "{report}");
    let named = open(&scene, server.address, &[]).describe("latest").await;
    assert!(named.expect_err("refused").report().contains("check the login"));
    let asked = "GET /v2/a/manifests/latest ";
    let with_login = format!("{asked}{LOGIN}");
    assert_eq!(server.end(), [asked, asked, &with_login]);
}

#[tokio::test]
async fn no_redirection_leads_to_a_metadata_service() {
    let scene = Scene::new();
    let server = Server::start(|_| {
        (307, "Location: http://169.254.169.254/latest/meta-data\r\n".into(), Vec::new())
    });
    let registry = open(&scene, server.address, &[]);
    let failure = registry.describe("latest").await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Download);
    assert!(failure.report().contains("169.254.169.254 is a link-local"), "{}", failure.report());
    assert_eq!(server.end().len(), 1, "retrying does not help");
}

/// A proxy that answers for the servers of TLS behind it: a registry, whose tokens come from `realm`.
struct Proxy {
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
}

impl Proxy {
    fn start(realm: &'static str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let config = certificate(dir.path());
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let log = Arc::new(Mutex::new(Vec::new()));
        let shared = log.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A client that disconnects is no fault of the proxy's.
                drop(tunnel(stream, &config, realm, &shared));
            }
        });
        Self { address, log, dir }
    }

    /// Runs `longshore list` behind it, with a login for the registry.
    fn list(&self, more: &[&str]) -> (Ended, Vec<String>) {
        let json = r#"{"auths":{"registry.example.com":{"auth":"dXNlcjpnZWhlaW0="}}}"#;
        fs::write(self.dir.path().join("config.json"), json).expect("writes");
        let mut command = Command::new(longshore());
        command.env_clear().env("https_proxy", format!("http://{}", self.address));
        command.env("DOCKER_CONFIG", self.dir.path());
        command.env("LONGSHORE_STORE", self.dir.path().join("store"));
        command.args(["list", "registry.example.com/a:latest", "--host-root"]);
        let ended = finish(command.arg(self.dir.path()).args(more));
        (ended, self.log.lock().expect("log").clone())
    }
}

/// Makes an authority that the host `dir` trusts, and a certificate of it for the servers.
fn certificate(dir: &Path) -> Arc<ServerConfig> {
    let path = |name: &str| dir.join(name).to_str().expect("a path").to_owned();
    fs::create_dir_all(dir.join("etc/ssl/certs")).expect("made");
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let (ca, ca_key) = (path("etc/ssl/certs/ca-certificates.crt"), path("ca.key"));
    let authority = ["req", "-x509", "-subj", "/CN=an authority of our own", "-days", "2"];
    openssl(&[&authority[..], &curve, &["-keyout", &ca_key, "-out", &ca]].concat());
    let (key, pem) = (path("key.pem"), path("cert.pem"));
    let names = "subjectAltName=DNS:registry.example.com,DNS:auth.example.com,DNS:auth.example.org";
    let names = ["-addext", names, "-addext", "basicConstraints=CA:FALSE"];
    let by = ["-CA", &ca, "-CAkey", &ca_key, "-keyout", &key, "-out", &pem];
    let server = ["req", "-x509", "-subj", "/CN=registry", "-days", "2"];
    openssl(&[&server[..], &curve, &names, &by].concat());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(pem).expect("a certificate")],
            PrivateKeyDer::from_pem_file(key).expect("a key"),
        );
    Arc::new(config.expect("they fit"))
}

/// Reads a request's path or target, and its credentials.
fn head(stream: &mut dyn Read) -> Option<(String, String)> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let target = first.split(' ').nth(1)?.split('?').next()?.to_owned();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let asker = headers.iter().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization").then(|| value.to_owned())
    });
    Some((target, asker.unwrap_or_default()))
}

/// Serves one request behind a CONNECT.
fn tunnel(
    mut stream: TcpStream,
    config: &Arc<ServerConfig>,
    realm: &str,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let Some((server, _)) = head(&mut stream) else { return Ok(()) };
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let connection = ServerConnection::new(config.clone()).map_err(std::io::Error::other)?;
    let mut tls = StreamOwned::new(connection, stream);
    let Some((path, asker)) = head(&mut tls) else { return Ok(()) };
    log.lock().expect("log").push(format!("{server}{path} {asker}"));
    let (status, header, body) = match (path.as_str(), asker.as_str()) {
        ("/token", "") => (200, String::new(), r#"{"token":"anybody"}"#),
        ("/token", LOGIN) => (200, String::new(), r#"{"token":"user"}"#),
        (_, "Bearer user") => (404, String::new(), "{}"),
        _ => (401, format!("Www-Authenticate: Bearer realm=\"{realm}\",service=\"s\"\r\n"), "{}"),
    };
    let length = body.len();
    write!(
        tls,
        "HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n{header}\r\n{body}"
    )?;
    tls.conn.send_close_notify();
    tls.flush()
}

#[test]
fn a_realm_on_a_sister_domain_gets_the_login_over_tls() {
    let proxy = Proxy::start("https://auth.example.com/token");
    let (ended, log) = proxy.list(&[]);
    ended.assert_done();
    assert!(ended.out.contains("\"sets\": []"), "{}", ended.out);
    let expected = [
        "registry.example.com:443/v2/a/manifests/latest ",
        "auth.example.com:443/token ",
        "registry.example.com:443/v2/a/manifests/latest Bearer anybody",
        &format!("auth.example.com:443/token {LOGIN}"),
        "registry.example.com:443/v2/a/manifests/latest Bearer user",
    ];
    assert_eq!(log, expected);
}

#[test]
fn a_realm_on_another_domain_gets_nothing_until_it_is_configured() {
    let proxy = Proxy::start("https://auth.example.org/token");
    let (ended, log) = proxy.list(&[]);
    assert_eq!(ended.code, Some(12), "{}", ended.err);
    let remedy = "check that auth.example.org issues the tokens of registry.example.com";
    assert!(ended.err.contains(remedy), "{}", ended.err);
    assert_eq!(log, ["registry.example.com:443/v2/a/manifests/latest "]);
    let (ended, log) = proxy.list(&["--registry-realm", "auth.example.org"]);
    ended.assert_done();
    assert!(log.contains(&format!("auth.example.org:443/token {LOGIN}")), "{log:?}");
}
