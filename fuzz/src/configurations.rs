//! Files of a host that other programs, or its users, write: of container runtimes, of systemd, and of apt.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use longshore_debian::{apt_sources, testing};
use longshore_runtimes::systemd::{Service, variables};
use longshore_runtimes::{
    Assessment, Distribution, Files, Invocation, Runtime, State, Version, containerd, docker,
};

use super::inside;

/// Path of containerd's file, and of docker's.
const CONTAINERD: &str = "/etc/containerd/config.toml";
const DOCKER: &str = "/etc/docker/daemon.json";

/// Files in memory.
struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Memory {
    fn new(files: &[(&str, &[u8])]) -> Self {
        Self(files.iter().map(|(path, bytes)| (path.into(), bytes.to_vec())).collect())
    }
}

impl Files for Memory {
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.get(path).cloned())
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        let here = self.0.keys().filter(|path| path.parent() == Some(dir));
        Ok(here.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }
}

/// Asserts that an edit, where there is one, is of these bytes and makes the runtime read specs.
fn assert_edit_holds(assess: impl Fn(&[u8]) -> Assessment, bytes: &[u8]) {
    let made = assess(bytes);
    let State::Off { edit, .. } = &made.state else { return };
    let before = edit.before.as_deref().unwrap_or_default();
    assert_eq!(before.as_bytes(), bytes, "the edit is of another text");
    let again = assess(edit.after.as_bytes());
    assert!(matches!(again.state, State::On { .. }), "{again:?}\n{}", edit.after);
}

/// Reads containerd's configuration, by the versions whose rules differ, and edits it.
pub fn toml_edit(bytes: &[u8]) {
    for version in [Version::new(1, 7, 24), Version::new(2, 1, 0)] {
        let assess = |bytes: &[u8]| {
            let asked = containerd::Question {
                version: Some(version),
                path: Path::new(CONTAINERD),
                edited: None,
                distribution: Distribution::usual(Runtime::Containerd),
                dump: &containerd::Dump::NotAsked,
            };
            containerd::assess(asked, &Memory::new(&[(CONTAINERD, bytes)]))
        };
        assert_edit_holds(assess, bytes);
    }
    // As the output of `containerd config dump`, and as one of several files.
    let dump = containerd::Dump::Text(String::from_utf8_lossy(bytes).into_owned());
    let main = b"version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";
    let asked = containerd::Question {
        version: Some(Version::new(2, 1, 0)),
        path: Path::new(CONTAINERD),
        edited: None,
        distribution: Distribution::usual(Runtime::Containerd),
        dump: &dump,
    };
    let files = Memory::new(&[(CONTAINERD, main), ("/etc/containerd/conf.d/a.toml", bytes)]);
    let _ = containerd::assess(asked, &files);
}

/// Reads docker's daemon.json, and edits it.
pub fn json_edit(bytes: &[u8]) {
    let assess = |bytes: &[u8]| {
        let version = Some(Version::new(26, 1, 5));
        docker::assess(version, Path::new(DOCKER), Some(bytes.to_vec()), None)
    };
    assert_edit_holds(assess, bytes);
}

/// Reads a unit, a drop-in and a file of variables of systemd, and the command line that they have.
pub fn units(bytes: &[u8]) {
    const UNIT: &str = "docker.service";
    let _ = variables(&String::from_utf8_lossy(bytes));
    let whole: &[u8] = b"[Service]\nEnvironmentFile=-/etc/default/docker\n\
        ExecStart=/usr/bin/dockerd -H fd:// $DOCKER_OPTS\n";
    for files in [
        Memory::new(&[("/etc/systemd/system/docker.service", bytes)]),
        Memory::new(&[
            ("/lib/systemd/system/docker.service", whole),
            ("/etc/systemd/system/docker.service.d/a.conf", bytes),
        ]),
        Memory::new(&[
            ("/lib/systemd/system/docker.service", whole),
            ("/etc/default/docker", bytes),
        ]),
    ] {
        let Ok(Some(service)) = Service::read(&files, UNIT) else { continue };
        assert!(!service.argv.is_empty(), "a service without a program");
        let invocation = Invocation::from(service);
        let _ = invocation.values(&["config-file", "cdi-spec-dir"]);
        let _ = docker::assess(None, Path::new(DOCKER), None, Some(&invocation));
    }
}

/// Writes a file below `root`.
fn put(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(path, bytes).expect("written");
}

/// Reads the sources of a host's apt, in both of its formats.
pub fn apt_lists(bytes: &[u8]) {
    inside(|root| {
        put(root, "etc/apt/sources.list", bytes);
        put(root, "etc/apt/sources.list.d/a.sources", bytes);
        let _ = apt_sources::read(root, "amd64");
    });
}

/// Reads the logins and the settings of a host's apt.
pub fn apt_conf(bytes: &[u8]) {
    inside(|root| {
        put(root, "etc/apt/auth.conf", bytes);
        put(root, "etc/apt/apt.conf", bytes);
        let urls = ["https://archive.example.com/debian", "http://mirror.example.com:8080/a"];
        let shown = format!("{:?}", testing::logins(root));
        // A host may have any name, also that of the password.
        let text = String::from_utf8_lossy(bytes);
        let is_password_alone = !text.replace("\"a b\"", "").contains(['"', '\''])
            && text.matches("s3cret").count() == text.matches(" password s3cret\n").count();
        assert!(!is_password_alone || !shown.contains("s3cret"), "{shown}");
        let _ = testing::proxies(root, &urls);
    });
}
