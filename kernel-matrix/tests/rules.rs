//! Runs over rules, with a stand-in for longshore: one that is killed is continued, with the verdicts on disk and no
//! others; sets that a registry has are left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

const RULES: &str = "format = 1\n[[kernels]]\ndistribution = 'debian'\nsuites = ['sid']\n\
    flavours = ['generic']\narchitecture = 'amd64'\n\
    [[drivers]]\nbranches = ['535', '550', '555']\nflavours = ['open']\nsuites = ['sid']\n\
    [[rule]]\nname = 'all'\n";

const PACKAGE: &str = "version = '1-1'\nsuite = 'sid'\n\
    sha256 = '1111111111111111111111111111111111111111111111111111111111111111'\n";

/// Stands in for longshore: sources for 535 do not compile, and those for the others wait until there is a file `go`.
/// Its registry has a file in `tags` for each tag; `down` is one that does not answer.
const LONGSHORE: &str = r#"#!/bin/sh
dir=${0%/*}
case $* in
  --version) echo longshore 0.1.0; exit 0 ;;
  list*)
    if [ -e "$dir/down" ]; then
      echo '{"exit_code":12,"cause":"the registry says 500","remedy":"r"}' >&2
      exit 12
    fi
    cat "$dir/tags/${2##*/}" 2>/dev/null || echo '{"sets":[]}'
    exit 0
    ;;
  *--print-inputs*) echo '{"inputs":"INPUTS"}'; exit 0 ;;
  *' --driver 535.1 '*) ;;
  *) echo >"$dir/waits"; while [ ! -e "$dir/go" ]; do sleep 0.05; done ;;
esac
echo build "$*" >>"$dir/calls"
echo '{"inputs":"INPUTS"}' >&2
echo '{"exit_code":14,"cause":"c","remedy":"r","class":"interface-gone","name":"strncpy"}' >&2
exit 14
"#;

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { dir: tempfile::tempdir().expect("temporary directory") };
        let package = |table: &str, name: &str| format!("[{table}]\npackage = '{name}'\n{PACKAGE}");
        let mut lock = String::from("format = 1\n[[suite]]\nsuite = 'sid'\nfrozen = false\n");
        lock.push_str("[[kernel]]\nid = 'sid'\nrelease = '7.2-amd64'\n");
        lock.push_str(&package("kernel.image", "linux-image-7.2-amd64"));
        lock.push_str(&package("[kernel.headers]", "linux-headers-7.2-amd64"));
        for branch in ["535", "550", "555"] {
            let revision = package("[driver.revisions]", "nvidia-open-kernel-source");
            let revision = revision.replace("'1-1'", &format!("'{branch}.1-1'"));
            let revision = revision.replace("'111", &format!("'{branch}"));
            lock.push_str(&format!("[[driver]]\nid = '{branch}-open'\n{revision}"));
        }
        let longshore = LONGSHORE.replace("INPUTS", &"2".repeat(64));
        for (name, text) in [("rules.toml", RULES), ("lock", &lock)] {
            fs::write(scene.path(name), text).expect("written");
        }
        longshore_core::testing::write_program(&scene.path("longshore"), &longshore);
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn build(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kernel-matrix"));
        command.args(["build", "--locked", "--rules"]).arg(self.path("rules.toml"));
        command.arg("--lock").arg(self.path("lock")).arg("--out").arg(self.path("out"));
        command.arg("--longshore").arg(self.path("longshore")).args(options);
        command.env("LONGSHORE_CACHE", self.path("cache")).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        command
    }

    /// Starts a run, and kills it in its second cell.
    fn killed_in_its_second_cell(&self) {
        let mut child: Child = self.build(&[]).spawn().expect("it starts");
        let begun = Instant::now();
        while !self.path("waits").exists() {
            assert!(begun.elapsed() < LIMIT, "the second cell did not begin");
            thread::sleep(Duration::from_millis(20));
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        fs::write(self.path("go"), "").expect("written");
    }

    fn ended(&self, options: &[&str]) -> Output {
        self.build(options).output().expect("it runs")
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.path("calls")).unwrap_or_default().lines().count()
    }
}

fn results(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("results")).expect("JSON")
}

#[test]
fn a_killed_run_is_continued_and_has_the_results_of_all_its_cells() {
    let scene = Scene::new();
    let out = scene.path("out/results.json");
    fs::create_dir_all(scene.path("out")).expect("made");
    fs::write(&out, "{}").expect("written");
    scene.killed_in_its_second_cell();
    assert!(!out.exists(), "results of an earlier run are left beside the log of a killed one");
    let resumed = scene.ended(&["--resume"]);
    let text = String::from_utf8_lossy(&resumed.stdout).into_owned();
    assert!(text.contains(": 1 cells are done"), "{text}");
    assert_eq!(resumed.status.code(), Some(0), "{text}");
    let results = results(&out);
    assert_eq!(results["run"]["complete"], true);
    let cells = results["cells"].as_array().expect("cells");
    let names: Vec<&str> = cells.iter().filter_map(|cell| cell["name"].as_str()).collect();
    assert_eq!(names, ["sid-535-open", "sid-550-open", "sid-555-open"]);
    assert!(cells.iter().all(|cell| cell["verdict"]["kind"] == "does-not-compile"));
    // The build that was going on ends with its harness, or a moment later.
    assert!((3..=4).contains(&scene.calls()), "{} builds", scene.calls());
}

#[test]
fn a_verdict_that_was_written_into_the_log_is_refused() {
    let scene = Scene::new();
    scene.killed_in_its_second_cell();
    let log = scene.path("out/run.jsonl");
    let text = fs::read_to_string(&log).expect("log");
    let forged = text.lines().last().expect("a verdict").replace("sid-535-open", "sid-550-open");
    fs::write(&log, format!("{text}{forged}\n")).expect("written");
    let resumed = scene.ended(&["--resume"]);
    let error = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert_eq!(resumed.status.code(), Some(2), "{error}");
    assert!(error.contains("line 3 is not one that this run wrote"), "{error}");
    assert!(!scene.path("out/results.json").exists());
}

#[test]
fn a_lock_of_other_rules_is_refused() {
    let scene = Scene::new();
    let more = RULES.replace("['535', ", "['470', '535', ");
    fs::write(scene.path("rules.toml"), more).expect("written");
    let ended = scene.ended(&[]);
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{error}");
    assert!(error.contains("the lock has no 470-open"), "{error}");
}

const SET: &str = r#"{"sets":[{"digest":"sha256:DIGEST","set":{"key":{"driver_version":"535.1","flavour":"open",
    "driver_digest":"1","kernel_release":"7.2-amd64","kernel_version":"v","arch":"x86_64","headers":{},
    "compiler":"gcc","options":[]},"modules":[]}}]}"#;

#[test]
fn sets_that_the_registry_has_under_both_tags_are_left_out() {
    let scene = Scene::new();
    fs::write(scene.path("go"), "").expect("written");
    let out = scene.path("out/results.json");
    assert_eq!(scene.ended(&[]).status.code(), Some(0));
    let keys = results(&out)["cells"].as_array().expect("cells").clone();
    let key = |cell: usize| keys[cell]["key"].as_str().expect("a key").to_owned();
    fs::create_dir(scene.path("tags")).expect("made");
    let tag = |name: &str, digest: &str| {
        let set = SET.replace("DIGEST", digest);
        fs::write(scene.path("tags").join(name), set).expect("written");
    };
    // Agents find the set of 535 under its tag, and another one than that of 550.
    tag(&format!("modules:key-{}", key(0)), "1");
    tag(&format!("modules:key-{}", key(1)), "2");
    tag("modules:535.1-open-7.2-amd64-x86_64", "1");
    let registry = ["--fresh", "--changed-only", "--registry", "registry.example.com/modules"];
    let ended = scene.ended(&registry);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{text}");
    assert!(text.contains("1 of 3 sets are in registry.example.com/modules"), "{text}");
    let found = results(&out);
    let names = |list: &str| -> Vec<String> {
        let cells = found[list].as_array().expect("a list").iter();
        cells.map(|cell| cell["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names("cells"), ["sid-550-open", "sid-555-open"]);
    assert_eq!(names("planned"), names("cells"));
    // Nothing has changed: no cell is left, and the run and its report are good.
    (1..3).for_each(|cell| tag(&format!("modules:key-{}", key(cell)), "1"));
    assert_eq!(scene.ended(&registry).status.code(), Some(0));
    assert_eq!(results(&out)["cells"], serde_json::json!([]));
    let mut report = Command::new(env!("CARGO_BIN_EXE_kernel-matrix"));
    report.arg("report").arg(&out).arg("--check").env("LONGSHORE_CACHE", scene.path("cache"));
    let ended = report.output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{said}");
    fs::write(scene.path("down"), "").expect("written");
    let ended = scene.ended(&registry);
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{error}");
    assert!(error.contains("the registry says 500"), "{error}");
}
