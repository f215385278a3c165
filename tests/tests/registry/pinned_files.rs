//! A .run file and a source tree as blobs of a real docker-registry: fetched by their digests and compiled by the program.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use longshore_tests::archive::digest;
use longshore_tests::packages::{DRIVER, KERNEL};
use longshore_tests::run_file::packed;
use longshore_tests::scene::{Ended, Scene as Host, finish};

use super::core_objects::{NEXT, suite, tree};
use super::together::MODULES;
use super::*;

/// Name and password of the registry, and both as its clients send them.
const LOGIN: (&str, &str) = ("user", "geheim");
const BASIC: &str = "dXNlcjpnZWhlaW0=";

/// Sends a request with the login; returns the answer's head.
fn send(address: &str, method: &str, target: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("connects");
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Basic {BASIC}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answers");
    answer
}

/// Puts a file into the repository `files`, as a push of an artifact does before its manifest; returns its sha256.
fn put(hub: &Hub, bytes: &[u8]) -> String {
    let sha256 = digest(bytes);
    let answer = send(&hub.address, "POST", "/v2/files/blobs/uploads/", b"");
    let location = answer.lines().find_map(|line| line.strip_prefix("Location: "));
    let location = location.unwrap_or_else(|| panic!("no upload: {answer}"));
    let path = location.trim_start_matches("http://").trim_start_matches(hub.address.as_str());
    let answer = send(&hub.address, "PUT", &format!("{path}&digest=sha256:{sha256}"), bytes);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    sha256
}

/// Returns a .run file whose open modules the stand-in for make makes.
fn run_file() -> Vec<u8> {
    let kbuild = format!("ccflags-y += -DNV_VERSION_STRING=\\\"{DRIVER}\\\"\n");
    let manifest =
        format!("NVIDIA\n{DRIVER}\n\n\n\n\nkernel\n\nnvidia-smi 0755 UTILITY_BINARY MODULE:a\n");
    let mut files = vec![
        ("kernel-open/Kbuild".to_owned(), kbuild.into_bytes()),
        ("kernel-open/conftest.sh".to_owned(), Vec::new()),
        ("kernel-open/go".to_owned(), Vec::new()),
        ("nvidia-smi".to_owned(), b"tool".to_vec()),
        (".manifest".to_owned(), manifest.into_bytes()),
    ];
    let module =
        |name: &str| (format!("kernel-open/{name}.ko.in"), module_sets::module(name, KERNEL));
    files.extend(MODULES.map(module));
    packed(DRIVER, files)
}

/// A host with an archive of headers and compiler, and a registry that requires a login.
struct Files {
    host: Host,
    hub: Hub,
    /// Setting of the file, with its digest's setting and value.
    settings: [String; 2],
    pin: String,
    sha256: String,
}

impl Files {
    /// Puts the file into the registry.
    fn new(setting: &str, bytes: &[u8]) -> Self {
        let (host, hub) = (Host::with(suite()), Hub::start(Some(LOGIN)));
        let sha256 = put(&hub, bytes);
        let pin = match setting {
            "--source-tree" => format!("{DRIVER}={sha256}"),
            _ => sha256.clone(),
        };
        let auths = format!(r#"{{"auths":{{"{}":{{"auth":"{BASIC}"}}}}}}"#, hub.address);
        fs::write(host.path("config.json"), auths).expect("writes");
        let settings = [setting.to_owned(), format!("{setting}-sha256")];
        Self { host, hub, settings, pin, sha256 }
    }

    fn url(&self, repository: &str) -> String {
        format!("oci://http://{}/{repository}", self.hub.address)
    }

    /// Builds for a kernel with the file of these places.
    fn build(&self, kernel: &str, urls: &[&str], has_login: bool) -> Ended {
        let mut args = vec!["build", "--kernel", kernel, "--flavour", "open", "--driver", DRIVER];
        args.extend(urls.iter().flat_map(|url| [self.settings[0].as_str(), url]));
        let mut command = self.host.agent(&args);
        command.args([&self.settings[1], &self.pin]);
        command.env("LONGSHORE_INSECURE_REGISTRIES", &self.hub.address);
        if has_login {
            command.env("DOCKER_CONFIG", self.host.path("config.json"));
        }
        finish(&mut command)
    }

    fn refuses(&self, repository: &str, has_login: bool, code: i32, said: &[&str]) {
        let said: Vec<String> = said.iter().map(|text| (*text).to_owned()).collect();
        let ended = self.build(KERNEL, &[&self.url(repository)], has_login);
        ended.assert_failed(code, &said);
        assert!(!ended.err.contains(LOGIN.1) && !ended.err.contains(BASIC), "{ended}");
        self.host.assert_sound();
    }
}

fn a_file_is_fetched_once_and_compiled(setting: &str, bytes: &[u8]) {
    let mut files = Files::new(setting, bytes);
    let url = files.url("files");
    let name = url.trim_start_matches("oci://");
    files.refuses("files", false, 12, &[name, "does not grant access", "DOCKER_CONFIG"]);
    let absent = format!("{} has no blob sha256:{}", name.replace("files", "none"), files.sha256);
    files.refuses("none", true, 12, &[&absent]);
    let blob = files.hub.blob(&files.sha256);
    let mut wrong = bytes.to_vec();
    *wrong.last_mut().expect("bytes") ^= 1;
    fs::write(&blob, wrong).expect("writes");
    files.refuses("files", true, 13, &[&files.sha256, "its digest differs"]);
    fs::write(&blob, bytes).expect("writes");

    let unreachable = format!("oci://http://{}/files", hub::free_address());
    files.build(KERNEL, &[&unreachable, &url], true).assert_done();
    let address = files.hub.address.clone();
    files.hub = Hub::gone(address);
    files.build(NEXT, &[&url], false).assert_done();
    let sets = Store::open(&files.host.path("store"), disk()).expect("store").sets().expect("sets");
    assert_eq!(sets.len(), 2);
    files.host.assert_sound();
}

#[test]
fn a_run_file_of_a_registry_is_fetched_once_and_compiled() {
    a_file_is_fetched_once_and_compiled("--run-file", &run_file());
}

#[test]
fn a_source_tree_of_a_registry_is_fetched_once_and_compiled() {
    a_file_is_fetched_once_and_compiled("--source-tree", &tree());
}
