//! docker: the flags of its unit and of its process, and its judgement of an edit.

use super::*;

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
        "off",
        &[
            "the running process has other flags",
            "on until then: dockerd has the flag --feature cdi (process 42 of docker.service)",
            "off by default",
        ],
    );
    let json = serde_json::to_value(Report::from_checked(&[checked])).expect("JSON");
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
    host.write(OVERRIDE, "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --feature cdi\n");
    let checked = host.check(Runtime::Docker, None);
    assert_is(
        &checked,
        "off",
        &["off by default", "restart it: `systemctl restart docker.service`"],
    );
    assert_eq!(checked.assessment.state.edit(), None, "the unit has what is wanted");
}

/// A process that was started with one file, of a unit that names another by now.
#[rstest]
#[case::on_before_and_off_after(ON, "{}", "off", "the running process has other flags", Some(NEXT))]
#[case::off_in_both("{}", "{}", "off", "features.cdi is not set", Some(NEXT))]
#[case::off_before_and_on_after("{}", ON, "off", "`systemctl restart docker.service`", None)]
#[case::on_in_both(ON, ON, "on", "features.cdi = true", None)]
fn the_file_of_the_next_start_has_the_edit(
    #[case] running: &str,
    #[case] next: &str,
    #[case] state: &str,
    #[case] text: &str,
    #[case] edited: Option<&str>,
) {
    let line = format!("[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --config-file {NEXT}\n");
    let host = docker("27.3.1", &[(OVERRIDE, &line), (NEXT, next), (RUNNING, running)], "");
    let argv = ["/usr/bin/dockerd", "--config-file", RUNNING];
    host.process(42, "docker.service", &argv);
    let checked = host.check(Runtime::Docker, None);
    assert_is(&checked, state, &[text]);
    let edit = checked.assessment.state.edit();
    assert_eq!(edit.map(|edit| edit.path.to_str().expect("UTF-8")), edited);
}

const ON: &str = "{\"features\":{\"cdi\":true}}";
const RUNNING: &str = "/etc/docker/a.json";
const NEXT: &str = "/etc/docker/b.json";

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
#[case::is_given_a_short_flag_with_its_value("[ \"$1 $2\" = '-Hfd:// --validate' ]", None)]
#[case::hangs("kill -STOP $$", Some("could not be asked"))]
fn dockerd_judges_an_edit_first(#[case] script: &str, #[case] refused: Option<&str>) {
    let short = (
        "/usr/lib/systemd/system/docker.service",
        "[Service]\nExecStart=/usr/bin/dockerd -Hfd://\n",
    );
    let units = if script.contains("-Hfd") { &[short][..] } else { &[] };
    let host = docker("27.3.1", units, script);
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
