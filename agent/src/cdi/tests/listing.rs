//! Lists of the specs of several programs.

use super::*;
use crate::cdi::listing::{failure, read, render};

/// A spec of one kind with these devices.
fn text(kind: &str, names: &[&str]) -> String {
    let device = |name: &&str| {
        format!("{{\"name\": \"{name}\", \"containerEdits\": {{\"env\": [\"A=1\"]}}}}")
    };
    let devices: Vec<_> = names.iter().map(device).collect();
    let devices = devices.join(",");
    format!("{{\"cdiVersion\": \"0.5.0\", \"kind\": \"{kind}\", \"devices\": [{devices}]}}")
}

fn host(files: &[(&str, String)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::create_dir_all(dir.path().join("run")).expect("directory");
    fs::create_dir_all(dir.path().join("var")).expect("directory");
    symlink("/run", dir.path().join("var/run")).expect("link");
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("directories");
        fs::write(path, text).expect("written");
    }
    dir
}

fn listed(files: &[(&str, String)]) -> (String, Option<u8>) {
    let files = read(host(files).path()).expect("listed");
    (render(&files), failure(&files).map(|failure| failure.code().number()))
}

#[test]
fn devices_of_all_programs_are_listed_with_their_files() {
    let files = [
        ("etc/cdi/vendor.json", text("vendor.com/net", &["eth1"])),
        ("run/cdi/a.json", text("nvidia.com/gpu", &["0", "all"])),
        // JSON is YAML.
        ("run/cdi/b.yaml", text("nvidia.com/gpu", &["1"])),
        ("run/cdi/c.json.tmp", "{".to_owned()),
        ("run/cdi/deeper.json/d.json", "{".to_owned()),
    ];
    let expected = "\
vendor.com/net=eth1  /etc/cdi/vendor.json
nvidia.com/gpu=0     /var/run/cdi/a.json
nvidia.com/gpu=all   /var/run/cdi/a.json
nvidia.com/gpu=1     /var/run/cdi/b.yaml
";
    assert_eq!(listed(&files), (expected.to_owned(), None));
}

#[test]
fn a_host_without_specs_says_so() {
    assert_eq!(listed(&[]), ("no CDI spec is in /etc/cdi or /var/run/cdi\n".to_owned(), None));
}

#[test]
fn a_device_that_several_files_have_is_told_with_the_other() {
    let files = [
        ("etc/cdi/a.json", text("a.com/b", &["replaced"])),
        ("etc/cdi/twice.json", text("a.com/b", &["below"])),
        ("etc/cdi/twice-too.json", text("a.com/b", &["below"])),
        ("run/cdi/below.json", text("a.com/b", &["below"])),
        ("run/cdi/a.json", text("a.com/b", &["replaced", "twice"])),
        ("run/cdi/b.json", text("a.com/b", &["twice"])),
    ];
    let expected = "\
a.com/b=replaced  /etc/cdi/a.json  (replaced by /var/run/cdi/a.json)
a.com/b=below     /etc/cdi/twice-too.json  (unresolvable: also in /etc/cdi/twice.json)
a.com/b=below     /etc/cdi/twice.json  (unresolvable: also in /etc/cdi/twice-too.json)
a.com/b=replaced  /var/run/cdi/a.json
a.com/b=twice     /var/run/cdi/a.json  (unresolvable: also in /var/run/cdi/b.json)
a.com/b=twice     /var/run/cdi/b.json  (unresolvable: also in /var/run/cdi/a.json)
a.com/b=below     /var/run/cdi/below.json  (unresolvable: also in /etc/cdi/twice-too.json)
";
    assert_eq!(listed(&files), (expected.to_owned(), None));
}

#[rstest]
#[case::cut_off("run/cdi/a.json", "{", Some(13), "refused     /var/run/cdi/a.json: EOF while")]
#[case::unknown_field("run/cdi/a.json", "{\"x\\u001b[2J\": 1}", Some(13), "\\u{1b}[2J")]
#[case::future(
    "run/cdi/a.json",
    "{\"cdiVersion\": \"9.0.0\"}",
    Some(13),
    "refused     /var/run/cdi/a.json: cdiVersion \"9.0.0\" is none that readers know"
)]
#[case::odd_name("run/cdi/a\n.json", "{", Some(13), "refused     /var/run/cdi/a\\n.json: ")]
#[case::yaml(
    "run/cdi/nvidia.yaml",
    "---\ncdiVersion: 0.5.0\nkind: \"nvidia.com/gpu\"\n",
    None,
    "not read    /var/run/cdi/nvidia.yaml: a spec of kind nvidia.com/gpu in YAML"
)]
#[case::yaml_in_json(
    "run/cdi/x.json",
    "cdiVersion: 0.5.0\nkind: a.com/b\u{1b}\n",
    None,
    "not read    /var/run/cdi/x.json: a spec of kind a.com/b\\u{1b} in YAML"
)]
#[case::neither(
    "run/cdi/x.json",
    "hello",
    Some(13),
    "refused     /var/run/cdi/x.json: expected value"
)]
#[case::yaml_without_kind(
    "etc/cdi/x.yaml",
    "",
    None,
    "not read    /etc/cdi/x.yaml: a spec in YAML"
)]
fn a_file_without_known_devices_is_named(
    #[case] path: &str,
    #[case] text: &str,
    #[case] code: Option<u8>,
    #[case] expected: &str,
) {
    let (list, failed) = listed(&[(path, text.to_owned())]);
    assert_eq!(failed, code);
    assert!(list.contains(expected) && list.lines().count() == 1, "{list}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let host = host(&[]);
    fs::create_dir_all(host.path().join("etc/cdi")).expect("directory");
    symlink("loop.json", host.path().join("etc/cdi/loop.json")).expect("link");
    let files = read(host.path()).expect("listed");
    assert!(render(&files).starts_with("unreadable  /etc/cdi/loop.json: "), "{}", render(&files));
    assert_eq!(failure(&files).expect("a failure").code().number(), 15);
}
