//! Hosts as they were reported: units with flags, generated files, snaps, and programs that answer, refuse
//! or hang. The programs are scripts, run in the host's root as the real ones are.

mod containerd;
mod docker;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use super::report::{Checked, Report};
use super::*;
use longshore_core::testing::write_program;
use rstest::rstest;

/// A host in a directory, with a shell for its programs.
struct Host {
    dir: tempfile::TempDir,
    runtimes: HostRuntimes,
}

impl Host {
    fn with(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |path: &str| dir.path().join(path.trim_start_matches('/'));
        for made in ["etc", "var/lib", "bin", "usr/bin", "dev", "proc"] {
            fs::create_dir_all(at(made)).expect("made");
        }
        // The standard input of the programs.
        fs::write(at("dev/null"), "").expect("written");
        let ldd = Command::new("ldd").arg("/bin/sh").output().expect("ldd");
        let libraries = String::from_utf8(ldd.stdout).expect("UTF-8");
        let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        for path in libraries.chain(["/bin/sh"]) {
            fs::create_dir_all(at(path).parent().expect("parent")).expect("made");
            fs::copy(path, at(path)).expect("copied");
        }
        let root = Root::open(dir.path()).expect("root");
        let paths = Paths::new(Path::new("/"), dir.path());
        let asking = Duration::from_secs(60);
        let runtimes = HostRuntimes { root, paths, disk: Disk::default(), asking };
        let host = Self { dir, runtimes };
        for (path, text) in files {
            host.write(path, text);
        }
        host
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().expect("parent")).expect("made");
        fs::write(self.at(path), text).expect("written");
    }

    /// Writes a program that prints its version, and otherwise does as the script says.
    fn program(&self, path: &str, version: &str, script: &str) -> &Self {
        fs::create_dir_all(self.at(path).parent().expect("parent")).expect("made");
        let version = format!("if [ \"$1\" = --version ]; then echo '{version}'; exit; fi");
        write_program(&self.at(path), &format!("#!/bin/sh\n{version}\n{script}\n"));
        self
    }

    /// Makes a running process of a unit.
    fn process(&self, pid: u32, unit: &str, argv: &[&str]) {
        let name = argv[0].rsplit('/').next().expect("a name");
        self.write(&format!("/proc/{pid}/comm"), &format!("{name}\n"));
        self.write(&format!("/proc/{pid}/cgroup"), &format!("0::/system.slice/{unit}\n"));
        self.write(&format!("/proc/{pid}/status"), "Name:\tx\nUid:\t0\t0\t0\t0\n");
        self.write(&format!("/proc/{pid}/cmdline"), &format!("{}\0", argv.join("\0")));
    }

    fn check(&self, runtime: Runtime, file: Option<&str>) -> Checked {
        let target = self.runtimes.target(runtime, file.map(Path::new)).expect("one");
        let assessment = self.runtimes.assess(&target);
        Checked { target, assessment }
    }

    fn configure(&self, checked: &Checked) -> Result<(), Failure> {
        let edit = checked.assessment.state.edit().expect("an edit");
        self.runtimes.configure(&checked.target, edit)
    }
}

/// Asserts the verdict, and that reason and remedy have these texts.
#[track_caller]
fn assert_is(checked: &Checked, state: &str, texts: &[&str]) {
    let shown = format!("{}{:?}", checked.line(), checked.failure());
    assert_eq!(checked.assessment.state.name(), state, "{shown}");
    for text in texts {
        assert!(shown.contains(text), "{text}\n{shown}");
    }
}

const TOP: &str = "/etc/containerd/config.toml";
const UNIT: &str = "/usr/lib/systemd/system/docker.service";
const OVERRIDE: &str = "/etc/systemd/system/docker.service.d/override.conf";
const BASE: &str = "[Service]\nType=notify\nExecStart=/usr/bin/dockerd -H fd://\n";
const DAEMON: &str = "/etc/docker/daemon.json";

fn docker(version: &str, files: &[(&str, &str)], script: &str) -> Host {
    let host = Host::with(
        &[&[(UNIT, BASE), (DAEMON, "{\n  \"log-driver\": \"json-file\"\n}\n")], files].concat(),
    );
    host.program("/usr/bin/dockerd", &format!("Docker version {version}, build x"), script);
    host
}

#[rstest]
#[case("5.4.0", &[], "on")]
#[case("5.5.1", &[], "off")]
#[case("5.5.2", &[("/etc/containers/containers.conf", "[engine]\ncdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n")], "on")]
#[case("5.6.0", &[], "on")]
#[case("5.6.0", &[("/etc/environment", "CONTAINERS_CONF=/srv/c.conf\n"), ("/srv/c.conf", "[engine]\ncdi_spec_dirs = [\"/etc/cdi\"]\n")], "off")]
fn podman_is_judged_by_its_release(
    #[case] version: &str,
    #[case] files: &[(&str, &str)],
    #[case] state: &str,
) {
    let host = Host::with(files);
    host.program("/usr/bin/podman", &format!("podman version {version}"), "exit 1");
    let texts = if state == "off" { &["cdi_spec_dirs", "/var/run/cdi"][..] } else { &[] };
    assert_is(&host.check(Runtime::Podman, None), state, texts);
}

#[test]
fn bad_input_has_one_answer() {
    // A program that hangs when it is asked for its version.
    let host = Host::with(&[(DAEMON, "{}"), (TOP, "version = 3\n")]);
    for program in ["dockerd", "containerd"] {
        let path = format!("/usr/bin/{program}");
        write_program(&host.at(&path), "#!/bin/sh\nkill -STOP $$\n");
    }
    let host = Host {
        runtimes: HostRuntimes { asking: Duration::from_millis(300), ..host.runtimes },
        ..host
    };
    let checked = host.check(Runtime::Docker, None);
    assert_is(
        &checked,
        "unknown",
        &["docker: whether it reads CDI specs is not known", "has not ended"],
    );
    assert!(!format!("{:?}", checked.failure()).contains("does not read"));
    assert_is(&host.check(Runtime::Containerd, None), "refused", &["could not be asked"]);
    // A megabyte, and a depth that no stack has.
    host.write("/usr/bin/dockerd", "");
    let large = format!("{{\"a\": \"{}\"}}", "x".repeat((1 << 20) - 20));
    host.write(DAEMON, &large);
    assert_is(&host.check(Runtime::Docker, None), "unknown", &["docker"]);
    for text in ["[".repeat(1 << 20), "{\"a\":".repeat(200_000)] {
        host.write(DAEMON, &text);
        assert_is(
            &host.check(Runtime::Docker, None),
            "refused",
            &["is a file that docker refuses"],
        );
        host.write(TOP, &format!("a = {}", "[".repeat(1 << 19)));
        assert_is(&host.check(Runtime::Containerd, None), "refused", &[]);
    }
}

#[test]
fn links_out_of_the_root_and_in_circles_are_not_followed() {
    let host = docker("27.3.1", &[("/etc/systemd/system/docker.service.d/a.conf", "")], "");
    let dir = host.at("/etc/systemd/system/docker.service.d");
    symlink("b.conf", dir.join("c.conf")).expect("link");
    symlink("c.conf", dir.join("b.conf")).expect("link");
    symlink("../../../../../../../../etc/passwd", dir.join("d.conf")).expect("link");
    nix::unistd::mkfifo(&dir.join("e.conf"), Mode::S_IRWXU).expect("pipe");
    symlink("/etc/systemd/system", host.at("/run")).expect("link");
    assert_is(&host.check(Runtime::Docker, None), "off", &["off by default"]);
}

/// The form of `runtime check --json`, which docs/operate/containers.md has.
#[test]
fn the_json_has_its_form() {
    let host = docker(
        "27.3.1",
        &[(
            OVERRIDE,
            "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --http-proxy=http://u:secret@proxy.example.com\n",
        )],
        "",
    );
    host.program("/usr/bin/podman", "podman version 5.6.0", "exit 1");
    let checked = [host.check(Runtime::Docker, None), host.check(Runtime::Podman, None)];
    let made = serde_json::to_value(Report::from_checked(&checked)).expect("JSON");
    assert_eq!(
        made,
        serde_json::json!({
            "format": 2,
            "verdict": "refused",
            "exit_code": 19,
            "runtimes": [
                {
                    "name": "docker",
                    "distribution": null,
                    "version": "27.3.1",
                    "invocation": {
                        "source": "unit",
                        "pid": null,
                        "unit": "docker.service",
                        "file": OVERRIDE,
                        "line": 3,
                        "argv": ["/usr/bin/dockerd", "--http-proxy=***"],
                    },
                    "file": DAEMON,
                    "state": "off",
                    "reason": "features.cdi is not set, and off by default in docker 27.3.1",
                    "remedy": "`longshore runtime configure docker` shows the edit",
                    "restart_unit": "docker.service",
                    "restart": "systemctl restart docker.service",
                    "notes": [],
                },
                {
                    "name": "podman",
                    "distribution": null,
                    "version": "5.6.0",
                    "invocation": null,
                    "file": "/etc/containers/containers.conf",
                    "state": "on",
                    "reason": "podman always reads CDI specs: nothing to set",
                    "remedy": null,
                    "restart_unit": null,
                    "restart": null,
                    "notes": [],
                },
            ],
        })
    );
    let none = serde_json::to_value(Report::from_checked(&[])).expect("JSON");
    assert_eq!((&none["verdict"], &none["exit_code"]), (&"refused".into(), &19.into()));
}
