//! Hosts as they were reported: units with flags, generated files, snaps, and programs that answer, refuse
//! or hang. The programs are scripts, run in the host's root as the real ones are.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use super::report::{Checked, Report};
use super::*;
use rstest::rstest;

/// A host in a directory, with a shell for its programs.
struct Host {
    dir: tempfile::TempDir,
    runtimes: HostRuntimes,
}

const DUMP_FAILS: &str =
    "echo 'containerd: drop-in config version 4 higher than root config version 2' >&2; exit 1";

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
        let paths = Paths::of(Path::new("/"), dir.path());
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
        self.write(
            path,
            &format!(
                "#!/bin/sh\nif [ \"$1\" = --version ]; then echo '{version}'; exit; fi\n{script}\n"
            ),
        );
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(0o755)).expect("mode");
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
const PART: &str = "/etc/containerd/conf.d/99-nvidia.toml";
const ROOT_2: &str =
    "version = 2\noom_score = -999\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";

#[test]
fn a_containerd_that_does_not_start_is_told_by_its_own_answer() {
    let host = Host::with(&[
        (TOP, ROOT_2),
        (PART, "version = 4\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = true\n"),
    ]);
    host.program("/usr/bin/containerd", "containerd x v2.3.2 0", DUMP_FAILS);
    let checked = host.check(Runtime::Containerd, None);
    let texts = [
        "containerd does not start",
        PART,
        "drop-in config version 4 higher than root",
        "in version 2",
    ];
    assert_is(&checked, "refused", &texts);
    assert_eq!(checked.assessment.state.edit(), None);
    // Without an answer the versions of the files decide.
    host.program("/usr/bin/containerd", "containerd x v2.3.2 0", "kill -STOP $$");
    let host = Host {
        runtimes: HostRuntimes { asking: Duration::from_millis(300), ..host.runtimes },
        ..host
    };
    assert_is(
        &host.check(Runtime::Containerd, None),
        "refused",
        &["could not be asked", "has not ended"],
    );
}

#[test]
fn a_drop_in_without_a_version_counts() {
    let off = "[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = false\n";
    let host = Host::with(&[
        (
            TOP,
            "imports = [\"/etc/containerd/conf.d/*.toml\"]\nversion = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = true\n",
        ),
        (PART, off),
    ]);
    // Its answer is that of the files which it is given: one file with false is false.
    let script = "while read line; do case \"$line\" in enable_cdi*) ;; esac; done </dev/null; dir=${2%/*}; \
         for f in \"$dir\"/conf.d/*.toml \"$dir\"/1.toml; do [ -f \"$f\" ] && while read a b c; do [ \"$a\" = enable_cdi ] && v=$c; done <\"$f\"; done; \
         echo 'version = 3'; echo '[plugins.\"io.containerd.cri.v1.runtime\"]'; echo \"enable_cdi = $v\"";
    host.program("/usr/bin/containerd", "containerd x 2.1.5 0", script);
    let checked = host.check(Runtime::Containerd, None);
    assert_is(&checked, "off", &[PART, "enable_cdi = false"]);
    host.configure(&checked).expect("configured");
    assert_eq!(fs::read_to_string(host.at(PART)).expect("read"), off.replace("false", "true"));
    assert_is(&host.check(Runtime::Containerd, None), "on", &[]);
    let left = fs::read_dir(host.at("/var/lib/longshore/runtimes")).expect("listed").count();
    assert_eq!(left, 2, "the original and the mark, no copy");
}

const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd";

#[rstest]
#[case::server("k3s.service", "systemctl restart k3s.service")]
#[case::agent("k3s-agent.service", "systemctl restart k3s-agent.service")]
fn k3s_is_found_and_its_drop_in_is_made(#[case] unit: &str, #[case] restart: &str) {
    let top = format!("{K3S}/config.toml");
    let text = format!(
        "# File generated by k3s. DO NOT EDIT. Use config-v3.toml.tmpl instead.\nversion = 3\nimports = \
         [\"{K3S}/config-v3.toml.d/*.toml\"]\n\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = false\n"
    );
    let template = format!("{K3S}/config-v3.toml.tmpl");
    let service = format!("/etc/systemd/system/{unit}");
    let host = Host::with(&[
        (&top, &text),
        (&template, "{{ template \"base\" . }}\n"),
        (&service, "[Service]\nExecStart=/usr/local/bin/k3s server\n"),
    ]);
    let found = host.runtimes.found();
    assert_eq!(
        found.iter().map(|one| one.distribution.label()).collect::<Vec<_>>(),
        ["containerd (k3s)"]
    );
    assert_eq!(found[0].restart.command().as_deref(), Some(restart));
    let drop_in = format!("{K3S}/config-v3.toml.d/50-cdi.toml");
    for file in [None, Some(top.as_str()), Some(template.as_str())] {
        let checked = host.check(Runtime::Containerd, file);
        assert_eq!(checked.assessment.state.edit(), None);
        assert!(!checked.assessment.state.is_well());
        assert!(format!("{:?}", checked.failure()).contains(&drop_in), "{checked:?}");
    }
    let checked = host.check(Runtime::Containerd, Some(&drop_in));
    assert_eq!(checked.target.restart.command().as_deref(), Some(restart));
    host.configure(&checked).expect("configured");
    assert_eq!(fs::read_to_string(host.at(&top)).expect("read"), text, "it stays");
    assert_is(&host.check(Runtime::Containerd, None), "on", &[&drop_in]);
    host.runtimes.revert(Runtime::Containerd, false).expect("reverted");
    assert!(!host.at(&drop_in).exists());
}

#[test]
fn a_process_tells_where_its_configuration_is() {
    let top = "/data/k3s/agent/etc/containerd/config.toml";
    let host = Host::with(&[
        (top, "# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl instead.\nversion = 2\n"),
        ("/usr/local/bin/k3s", ""),
        (
            "/etc/systemd/system/k3s.service",
            "[Service]\nExecStart=/usr/local/bin/k3s server --data-dir /data/k3s\n",
        ),
        (
            "/etc/systemd/system/k3s-agent.service",
            "[Service]\nExecStart=/usr/local/bin/k3s agent\n",
        ),
    ]);
    let checked = host.check(Runtime::Containerd, None);
    assert_is(&checked, "refused", &["is absent: k3s writes it when it starts"]);
    assert_eq!(
        checked.target.restart.command().as_deref(),
        Some("systemctl restart k3s.service or k3s-agent.service")
    );
    host.process(
        7,
        "k3s-agent.service",
        &["containerd", "-c", top, "-a", "/run/k3s/containerd/containerd.sock"],
    );
    let checked = host.check(Runtime::Containerd, None);
    assert_eq!(checked.target.file, Path::new(top));
    assert_eq!(checked.target.restart, Restart::Unit("k3s-agent.service".to_owned()));
    let checked = host.check(Runtime::Containerd, Some(top));
    assert_eq!(checked.target.distribution.name, "k3s", "by its first line");
}

#[test]
fn snaps_are_found_and_restarted_as_snaps() {
    let daemon = "/var/snap/docker/current/config/daemon.json";
    let template = "/var/snap/microk8s/current/args/containerd-template.toml";
    let written = "/var/snap/microk8s/current/args/containerd.toml";
    let text = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"${SNAPSHOTTER}\"\n";
    let host =
        Host::with(&[(daemon, "{\"log-level\": \"error\"}\n"), (template, text), (written, text)]);
    let found = host.runtimes.found();
    let found: Vec<_> = found
        .iter()
        .map(|one| (one.distribution.label(), one.restart.command().expect("one")))
        .collect();
    assert_eq!(
        found,
        [
            ("docker (snap)".to_owned(), "snap restart docker".to_owned()),
            (
                "containerd (microk8s)".to_owned(),
                "snap restart microk8s.daemon-containerd".to_owned()
            ),
        ]
    );
    let checked = host.check(Runtime::Docker, None);
    assert_is(&checked, "unknown", &[daemon, "--file /var/snap/docker/current/config/daemon.json"]);
    host.program("/snap/docker/current/bin/dockerd", "Docker version 27.3.1, build x", "");
    assert_is(&host.check(Runtime::Docker, None), "off", &["docker 27.3.1"]);
    let checked = host.check(Runtime::Containerd, Some(template));
    host.configure(&checked).expect("configured");
    assert!(fs::read_to_string(host.at(template)).expect("read").contains("enable_cdi = true"));
    assert_is(&host.check(Runtime::Containerd, Some(written)), "unknown", &[]);
    host.program("/snap/microk8s/current/bin/containerd", "containerd x 1.7.27 0", "exit 0");
    assert_is(&host.check(Runtime::Containerd, Some(written)), "off", &["written anew", template]);
}

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
#[case::a_feature(
    "ExecStart=\nExecStart=/usr/bin/dockerd -H fd:// \\\n # of the site\n --feature containerd-snapshotter\n",
    "off",
    "--feature containerd-snapshotter"
)]
#[case::in_a_variable(
    "Environment=\"OPTS=--feature containerd-snapshotter\"\nExecStart=\nExecStart=/usr/bin/dockerd $OPTS\n",
    "off",
    "--feature containerd-snapshotter"
)]
#[case::without_reset(
    "ExecStart=/usr/bin/dockerd --feature x\n",
    "refused",
    "more than one ExecStart="
)]
#[case::another_file(
    "ExecStart=\nExecStart=/usr/bin/dockerd --config-file /etc/docker/site.json\n",
    "on",
    "/etc/docker/site.json has features.cdi = true"
)]
#[case::a_wrapper(
    "ExecStart=\nExecStart=/opt/start-docker\n",
    "off",
    "off by default in docker 27.3.1"
)]
fn the_unit_of_docker_counts(#[case] lines: &str, #[case] state: &str, #[case] text: &str) {
    let drop_in = format!("[Service]\n{lines}");
    let site = ("/etc/docker/site.json", "{\"features\":{\"cdi\":true}}");
    let host = docker("27.3.1", &[(OVERRIDE, &drop_in), site], "");
    let checked = host.check(Runtime::Docker, None);
    assert_is(&checked, state, &[text]);
    if text.starts_with("--feature") {
        assert_is(
            &checked,
            state,
            &["override.conf, line", "does not start", "systemctl daemon-reload"],
        );
        assert_eq!(checked.assessment.state.edit(), None);
    }
}

#[test]
fn a_running_process_counts_and_so_does_the_next_start() {
    let host = docker("27.3.1", &[], "");
    host.process(41, "docker-0123.scope", &["/usr/bin/dockerd", "--feature", "cdi"]);
    host.process(42, "docker.service", &["/usr/bin/dockerd", "-H", "fd://", "--feature=cdi"]);
    let checked = host.check(Runtime::Docker, None);
    assert_is(
        &checked,
        "on",
        &["process 42 of docker.service", "the running process has other flags"],
    );
    let json = serde_json::to_value(Report::of(&[checked])).expect("JSON");
    assert_eq!(json["runtimes"][0]["invocation"]["source"], "process");
    assert_eq!(json["runtimes"][0]["invocation"]["pid"], 42);
    host.write(OVERRIDE, "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --feature x\n");
    host.process(42, "docker.service", &["/usr/bin/dockerd", "-H", "fd://"]);
    let checked = host.check(Runtime::Docker, None);
    assert_is(
        &checked,
        "off",
        &["--feature x (/etc/systemd/system/docker.service.d/override.conf, line 3)"],
    );
    assert_eq!(checked.assessment.state.edit(), None, "it would not start after the restart");
}

/// dockerd judges the edited text, with the flags of its unit, before the file is replaced.
#[rstest]
#[case::takes_it(
    "for a; do last=$a; done; while read line; do case $line in *cdi*) exit 0;; esac; done <$last; exit 1",
    None
)]
#[case::refuses_it(
    "echo 'unable to configure the Docker daemon: conflict' >&2; exit 1",
    Some("refuses the edited text")
)]
#[case::has_no_such_flag("echo 'unknown flag: --validate' >&2; exit 125", None)]
#[case::is_given_its_flags("[ \"$1 $2 $3\" = '-H fd:// --validate' ]", None)]
#[case::hangs("kill -STOP $$", Some("could not be asked"))]
fn dockerd_judges_an_edit_first(#[case] script: &str, #[case] refused: Option<&str>) {
    let host = docker("27.3.1", &[], script);
    let before = fs::read(host.at(DAEMON)).expect("read");
    let checked = host.check(Runtime::Docker, None);
    let asking = if script.starts_with("kill") {
        Duration::from_millis(300)
    } else {
        Duration::from_secs(60)
    };
    let host = Host { runtimes: HostRuntimes { asking, ..host.runtimes }, ..host };
    let done = host.configure(&checked);
    let now = fs::read(host.at(DAEMON)).expect("read");
    match (refused, done) {
        (None, Ok(())) => assert_ne!(now, before),
        (Some(why), Err(failure)) => {
            assert!(failure.one_line().contains(why), "{failure}");
            assert_eq!(failure.code().number(), 19);
            assert_eq!(now, before);
        }
        (_, done) => panic!("{done:?}"),
    }
    assert!(!host.at("/var/lib/longshore/runtimes/candidate.json").exists());
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
        host.write(&path, "#!/bin/sh\nkill -STOP $$\n");
        fs::set_permissions(host.at(&path), fs::Permissions::from_mode(0o755)).expect("mode");
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

/// The form of `runtime check --json`, which docs/containers.md has.
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
    let made = serde_json::to_value(Report::of(&checked)).expect("JSON");
    assert_eq!(
        made,
        serde_json::json!({
            "format": 1,
            "verdict": "off",
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
                        "argv": ["/usr/bin/dockerd", "--http-proxy=http://***@proxy.example.com"],
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
    let none = serde_json::to_value(Report::of(&[])).expect("JSON");
    assert_eq!((&none["verdict"], &none["exit_code"]), (&"none".into(), &19.into()));
}
