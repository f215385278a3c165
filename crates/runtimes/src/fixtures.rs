//! Configurations of different make, in `fixtures`: verdict, edit, and the bytes that an edit keeps.

use std::fs;
use std::path::{Path, PathBuf};

use similar::{ChangeTag, TextDiff};

use super::*;
use crate::files::memory::Memory;

/// Verdicts of fixtures that are neither off nor, by the begin of their name, refused.
const WELL: [&str; 4] =
    ["cdi-on.json", "version-2-on.toml", "version-3-default.toml", "docker-s-own.toml"];
/// Number of lines that an edit may change, beside those that it adds: one gets a comma or a value.
const CHANGED: usize = 1;

fn all(kind: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(kind);
    let entries = fs::read_dir(dir).expect("fixtures").map(|entry| entry.expect("entry").path());
    let name = |path: &PathBuf| path.file_name().expect("name").to_string_lossy().into_owned();
    entries.map(|path| (name(&path), fs::read(&path).expect("read"))).collect()
}

fn assessed(name: &str, bytes: &[u8]) -> Assessment {
    let path = PathBuf::from("/etc").join(name);
    if name.ends_with(".json") {
        return docker::assess(Some(Version::new(26, 1, 5)), &path, Some(bytes.to_vec()), None);
    }
    let files = Memory([(path.clone(), bytes.to_vec())].into());
    let version = if name.starts_with("version-3") { (2, 1) } else { (1, 7) };
    let asked = containerd::Question {
        version: Some(Version::new(version.0, version.1, 0)),
        path: &path,
        edited: None,
        distribution: Distribution::usual(Runtime::Containerd),
        dump: &containerd::Dump::NotAsked,
    };
    containerd::assess(asked, &files)
}

/// Asserts that an edit changes nothing but what it has to.
fn assert_minimal(name: &str, before: &str, after: &str) {
    let difference = TextDiff::from_lines(before, after);
    let removed = difference.iter_all_changes().filter(|change| change.tag() == ChangeTag::Delete);
    let removed: Vec<_> = removed.map(|change| change.value()).collect();
    assert!(removed.len() <= CHANGED, "{name}: {removed:?}\n{after}");
    let ends = |text: &str| text.matches('\n').count() == text.matches("\r\n").count();
    assert!(!before.contains("\r\n") || ends(after), "{name}: its line ends changed");
    assert_eq!(before.starts_with('\u{feff}'), after.starts_with('\u{feff}'), "{name}");
}

#[test]
fn every_fixture_has_its_verdict_and_an_edit_that_holds() {
    let fixtures = [all("docker"), all("containerd")].concat();
    assert!(fixtures.len() >= 60, "{}", fixtures.len());
    for (name, bytes) in fixtures {
        let made = assessed(&name, &bytes);
        match &made.state {
            State::Off { edit, .. } => {
                assert!(!name.starts_with("bad") && !WELL.contains(&name.as_str()), "{name}");
                let before = edit.before.as_deref().expect("a file");
                assert_eq!(before.as_bytes(), bytes, "{name}");
                assert_minimal(&name, before, &edit.after);
                let again = assessed(&name, edit.after.as_bytes());
                assert!(matches!(again.state, State::On { .. }), "{name}: {again:?}");
            }
            State::Manual { reason, .. } => {
                assert!(name.contains("spec-dirs"), "{name}");
                assert!(reason.contains("lists no /var/run/cdi"), "{name}: {reason}");
            }
            State::Refused { .. } => assert!(name.starts_with("bad"), "{name}: {made:?}"),
            _ => assert!(WELL.contains(&name.as_str()), "{name}: {made:?}"),
        }
    }
}

/// The edits of some, as a person would make them.
#[test]
fn edits_look_like_the_file() {
    for (kind, name, wanted) in [
        (
            "docker",
            "tabs.json",
            "\t\"iptables\": false,\n\t\"features\": {\n\t\t\"cdi\": true\n\t}\n}\n",
        ),
        (
            "docker",
            "features-one-line.json",
            "{\n  \"features\": { \"buildkit\": true, \"cdi\": true },\n",
        ),
        (
            "docker",
            "crlf.json",
            "  \"debug\": false,\r\n  \"features\": {\r\n    \"cdi\": true\r\n  }\r\n}\r\n",
        ),
        ("docker", "cdi-off.json", "    \"cdi\": true,\n    \"buildkit\": true\n"),
        (
            "containerd",
            "version-2-default.toml",
            "    enable_cdi = true\n    enable_selinux = false\n",
        ),
        (
            "containerd",
            "version-2-comments.toml",
            "[plugins.\"io.containerd.grpc.v1.cri\"] # CRI\n  enable_cdi = true\n",
        ),
        ("containerd", "version-2-tabs.toml", "\tenable_cdi =\ttrue\t# later\n"),
        (
            "containerd",
            "version-2-only-below.toml",
            "    SystemdCgroup = true\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = true\n",
        ),
    ] {
        let (_, bytes) = all(kind).into_iter().find(|(file, _)| file == name).expect("fixture");
        let State::Off { edit, .. } = assessed(name, &bytes).state else { panic!("{name}") };
        assert!(edit.after.contains(wanted), "{name}:\n{}", edit.after);
    }
}
