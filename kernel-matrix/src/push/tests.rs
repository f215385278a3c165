use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rstest::rstest;

use super::*;
use crate::results::{AgentUsed, sample};

/// Stand-in for longshore with a registry in its directory: a file for each tag. A push to a reference that `fail`
/// names fails, and `down` fails every request.
const LONGSHORE: &str = r#"#!/bin/sh
dir=$(dirname "$0")
echo "$@" >>"$dir/calls"
fail() { echo '{"exit_code":12,"cause":"PUT manifests: the registry says 500","remedy":"r"}' >&2; exit 12; }
name=$(printf %s "$2" | tr /:@ ___)
[ ! -e "$dir/down" ] || fail
case $1 in
  list) cat "$dir/tags/$name" 2>/dev/null || echo '{"sets":[]}' ;;
  verify)
    case $* in *test-result*) [ -e "$dir/attested" ] || exit 13 ;; esac
    [ -e "$dir/signed" ]
    ;;
  attest)
    [ "$2" != "$(cat "$dir/fail" 2>/dev/null)" ] || fail
    cp "$6" "$dir/attested"
    ;;
  push)
    [ "$2" != "$(cat "$dir/fail" 2>/dev/null)" ] || fail
    case $2 in *:*) ;; *) name=$name"_550.1-open-6.1-x86_64" ;; esac
    cp "$dir/set" "$dir/tags/$name"
    case $* in *--sign-key*) : >"$dir/signed" ;; esac
    echo "$2@sha256:0 pushed"
    ;;
esac
"#;

const REPOSITORY: &str = "registry.example.com/modules";
/// Name of the stand-in's file for the agents' tag.
const AGENTS_TAG: &str = "registry.example.com_modules_550.1-open-6.1-x86_64";

fn set(options: &str) -> String {
    format!(
        r#"{{"key":{{"driver_version":"550.1","flavour":"open","driver_digest":"{0}","kernel_release":"6.1",
        "kernel_version":"v","arch":"x86_64","headers":{{}},"compiler":"gcc","options":["{options}"]}},
        "modules":[]}}"#,
        "a".repeat(64)
    )
}

struct Scene {
    dir: tempfile::TempDir,
    program: PathBuf,
    attests: bool,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("longshore");
        // Another process writes it: a child forked meanwhile by another test would hold the file open.
        let mut write = Command::new("sh");
        write.args(["-c", "printf %s \"$1\" > \"$2\" && chmod +x \"$2\"", "sh", LONGSHORE]);
        assert!(write.arg(&program).status().unwrap().success());
        fs::create_dir(dir.path().join("tags")).unwrap();
        let listed = format!("{{\"sets\":[{{\"digest\":\"sha256:0\",\"set\":{}}}]}}", set(""));
        fs::write(dir.path().join("set"), listed).unwrap();
        Self { dir, program, attests: false }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn push(&self, passed: &Passed, signs: bool) -> Outcome {
        let public = tempfile::NamedTempFile::new_in(self.dir.path()).unwrap();
        let signer = signs.then(|| Signer { secret: "cosign.key".into(), public });
        let target = Target::from_reference(&self.program, &REPOSITORY.parse().unwrap()).unwrap();
        Push { target, store: Path::new("/store"), signer, attests: self.attests }.push(passed)
    }

    /// Returns the program's calls that change the registry, each by its verb and the reference's end.
    fn changes(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.dir.path().join("calls")).unwrap();
        let changes = calls.lines().filter(|c| c.starts_with("push") || c.starts_with("attest"));
        let named = |call: &str| call.split(' ').take(2).collect::<Vec<_>>().join(" ");
        changes.map(|call| named(call).replace(REPOSITORY, "")).collect()
    }

    /// Returns the pushes, each by the reference's end.
    fn pushes(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.dir.path().join("calls")).unwrap();
        let pushes = calls.lines().filter_map(|call| call.strip_prefix("push "));
        pushes.map(|call| call.split(' ').next().unwrap().replace(REPOSITORY, "")).collect()
    }

    fn tags(&self) -> usize {
        fs::read_dir(self.dir.path().join("tags")).unwrap().count()
    }
}

fn passed_cell() -> Passed {
    let set: longshore_modules::artifact::ModuleSet = serde_json::from_str(&set("")).unwrap();
    Passed {
        name: Line::new("cell"),
        key: Digest::from_sha256(&[1; 32]),
        set: Digest::try_from(set.key.digest()).unwrap(),
        test_result: TestResult::default(),
        release: Line::new("6.1"),
        driver: Line::new("550.1"),
    }
}

#[test]
fn a_set_is_pushed_by_its_key_first_and_once() {
    let scene = Scene::new();
    let passed = passed_cell();
    assert_eq!(scene.push(&passed, false), Outcome::Pushed);
    let by_key = format!(":key-{}", passed.key.as_str());
    assert_eq!(scene.pushes(), [by_key, String::new()]);
    let calls = fs::read_to_string(scene.dir.path().join("calls")).unwrap();
    let options =
        format!("--set={} --kernel=6.1 --driver=550.1 --store /store", passed.set.as_str());
    assert!(calls.contains(&options) && !calls.contains("--sign-key"), "{calls}");
    assert_eq!(scene.push(&passed, false), Outcome::There);
    assert_eq!(scene.pushes().len(), 2);
}

#[rstest]
#[case::before_the_first_tag(":key-", 0)]
#[case::before_the_agents_tag("", 1)]
fn a_push_that_failed_is_completed_by_the_next(#[case] at: &str, #[case] tags: usize) {
    let scene = Scene::new();
    let passed = passed_cell();
    let key = if at.is_empty() { "" } else { passed.key.as_str() };
    scene.write("fail", &format!("{REPOSITORY}{at}{key}"));
    let Outcome::Failed(why) = scene.push(&passed, true) else { panic!("pushed") };
    assert!(why.contains("pushing to") && why.contains("the registry says 500"), "{why}");
    assert_eq!(scene.tags(), tags);
    scene.write("fail", "");
    assert_eq!(scene.push(&passed, true), Outcome::Pushed);
    assert_eq!((scene.tags(), scene.push(&passed, true)), (2, Outcome::There));
}

#[test]
fn a_registry_that_does_not_answer_is_a_failure_and_nothing_is_sent() {
    let scene = Scene::new();
    scene.write("down", "");
    let Outcome::Failed(why) = scene.push(&passed_cell(), false) else { panic!("pushed") };
    assert!(why.starts_with("asking for registry.example.com/modules:key-0101"), "{why}");
    assert!(scene.pushes().is_empty());
}

#[test]
fn the_test_result_of_a_set_that_booted_is_attested_before_agents_find_it() {
    let scene = Scene { attests: true, ..Scene::new() };
    let compiled = passed_cell();
    assert_eq!(scene.push(&compiled, true), Outcome::Pushed);
    assert_eq!(scene.push(&compiled, true), Outcome::There);
    let pushes = [format!("push :key-{}", compiled.key.as_str()), "push ".to_owned()];
    assert_eq!(scene.changes(), pushes, "no test result of a set that was compiled alone");

    let results = sample::results();
    let mut booted = compiled;
    booted.test_result.add(&results.run, &results.cells[0]);
    let attests = "attest @sha256:0";
    scene.write("fail", &format!("{REPOSITORY}@sha256:0"));
    let Outcome::Failed(why) = scene.push(&booted, true) else { panic!("pushed") };
    assert!(why.starts_with("attesting the test result of registry.example.com"), "{why}");
    assert!(why.contains("the registry says 500"), "{why}");
    let count = scene.changes().len();
    assert_eq!(scene.changes()[2..], [&pushes[0], attests], "the agents' tag is not set");
    scene.write("fail", "");
    assert_eq!(scene.push(&booted, true), Outcome::Pushed);
    assert_eq!(scene.changes()[count..], [&pushes[0], attests, &pushes[1]]);
    let attested = fs::read(scene.dir.path().join("attested")).unwrap();
    let attested: serde_json::Value = serde_json::from_slice(&attested).unwrap();
    assert_eq!(attested, booted.test_result.predicate());
    assert_eq!(scene.push(&booted, true), Outcome::There);
}

#[test]
fn a_set_without_the_wanted_signature_is_pushed_again() {
    let scene = Scene::new();
    let passed = passed_cell();
    assert_eq!(scene.push(&passed, false), Outcome::Pushed);
    assert_eq!(scene.push(&passed, true), Outcome::Pushed);
    assert_eq!(scene.push(&passed, true), Outcome::There);
}

#[test]
fn another_set_under_the_cells_key_is_not_overwritten() {
    let scene = Scene::new();
    let passed = passed_cell();
    assert_eq!(scene.push(&passed, false), Outcome::Pushed);
    let other = Passed { set: Digest::from_sha256(&[2; 32]), ..passed };
    let Outcome::Failed(why) = scene.push(&other, false) else { panic!("pushed") };
    assert!(why.contains("is of another set"), "{why}");
}

#[rstest]
#[case::moved(Some(r#"{"sets":[{"digest":"sha256:1","set":SET}]}"#))]
#[case::gone(None)]
fn another_set_is_not_overwritten_after_the_agents_tag_moved(#[case] agents: Option<&str>) {
    let scene = Scene::new();
    let passed = passed_cell();
    assert_eq!(scene.push(&passed, false), Outcome::Pushed);
    let tag = scene.dir.path().join("tags").join(AGENTS_TAG);
    match agents {
        Some(listed) => fs::write(tag, listed.replace("SET", &set("b"))).unwrap(),
        None => fs::remove_file(tag).unwrap(),
    }
    let other = Passed { set: Digest::from_sha256(&[2; 32]), ..passed.clone() };
    let Outcome::Failed(why) = scene.push(&other, false) else { panic!("pushed") };
    assert!(why.contains("is of another set"), "{why}");
    assert_eq!(scene.pushes().len(), 2, "nothing more was pushed");
    assert_eq!(scene.push(&passed, false), Outcome::Pushed, "the set itself gets the tag again");
    assert_eq!(scene.push(&passed, false), Outcome::There);
}

#[test]
fn sets_that_passed_are_pushed_and_those_without_a_name_are_reported() {
    let mut results = sample::results();
    for (at, cell) in results.cells.iter_mut().enumerate() {
        let own = Digest::from_sha256(&[u8::try_from(at).unwrap(); 32]);
        cell.key = Some(own.clone());
        if let Some(resolved) = &mut cell.resolved {
            resolved.set = Some(own);
        }
    }
    let is_good = |cell: &&CellResult| {
        matches!(
            cell.verdict,
            Verdict::Works {} | Verdict::WorksPatched { .. } | Verdict::Compiled { .. }
        )
    };
    let (sets, unnamed) = passed(std::slice::from_ref(&results));
    let found: Vec<_> =
        sets.iter().map(|set| (&set.name, Some(&set.key), Some(&set.set))).collect();
    let good = results.cells.iter().filter(is_good);
    let expected: Vec<_> =
        good.map(|cell| (&cell.name, cell.key.as_ref(), cell.key.as_ref())).collect();
    assert_eq!((found.len(), &found), (3, &expected));
    assert_eq!(unnamed, []);
    assert!(sets.iter().all(|set| set.release == Line::new("6.1.0-56-amd64")));
    let tested = sets.iter().map(|set| !set.test_result.is_empty());
    // Works; works, reused of another run; compiled.
    assert_eq!(tested.collect::<Vec<_>>(), [true, false, false]);
    let at = results.cells.iter().position(|cell| is_good(&cell)).unwrap();
    results.cells[at].resolved = None;
    let (_, unnamed) = passed(&[results]);
    assert!(
        unnamed.iter().any(|(_, why)| why.contains("no set: run the cell again")),
        "{unnamed:?}"
    );
}

#[test]
fn a_set_that_failed_in_a_guest_is_not_pushed_though_it_compiled() {
    let mut results = sample::results();
    let cells = &mut results.cells;
    let compiled =
        cells.iter().position(|c| matches!(c.verdict, Verdict::Compiled { .. })).unwrap();
    cells[compiled].key = Some(Digest::from_sha256(&[1; 32]));
    let mut booted = cells[compiled].clone();
    booted.name = Line::new("booted");
    cells[compiled].resolved.as_mut().unwrap().set = Some(Digest::from_sha256(&[3; 32]));
    booted.resolved.clone_from(&cells[compiled].resolved);
    let name = cells[compiled].name.clone();
    cells.retain(|cell| cell.name == name);
    assert_eq!(passed(std::slice::from_ref(&results)).0.len(), 1);
    booted.verdict = Verdict::Faulty { why: vec![Line::new("no driver")] };
    let other = Results { cells: vec![booted], ..results.clone() };
    let (sets, refused) = passed(&[results.clone(), other]);
    assert_eq!(sets, []);
    assert!(refused[0].1.contains("failed in the guest of booted"), "{refused:?}");
    results.cells[0].unproven = true;
    let (sets, refused) = passed(&[results]);
    assert_eq!(sets, []);
    assert!(refused[0].1.contains("no key of this user's sealed"), "{refused:?}");
}

/// A change of the agent of a run.
type Change = fn(&mut AgentUsed);

#[rstest]
#[case::program((|agent| agent.program = None) as Change, "does not name the program (sha256)")]
#[case::commit((|agent| agent.commit = None) as Change, "does not name the commit")]
fn results_that_do_not_name_their_program_are_not_pushed(
    #[case] change: Change,
    #[case] says: &str,
) {
    let mut results = one("run-0", "a", Verdict::Compiled { patches: Vec::new() }, 1, 1);
    assert_eq!(passed(std::slice::from_ref(&results)).0.len(), 1);
    change(&mut results.run.agent);
    let (sets, refused) = passed(&[results]);
    assert_eq!(sets, []);
    assert!(refused.len() == 1 && refused[0].1.contains(says), "{refused:?}");
}

#[test]
fn a_registry_is_named_without_a_tag() {
    let program = Path::new("longshore");
    for reference in
        ["registry.example.com/m:t", &format!("registry.example.com/m@sha256:{}", "a".repeat(64))]
    {
        let error =
            Target::from_reference(program, &reference.parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("leave tag and digest out"), "{error}");
    }
}

/// Returns results of this run with one cell: its name, verdict, the digests of its key and of its set.
fn one(run: &str, name: &str, verdict: Verdict, key: u8, set: u8) -> Results {
    let mut results = sample::results();
    results.run.id = Line::new(run);
    results.cells.truncate(1);
    let cell = &mut results.cells[0];
    (cell.name, cell.verdict, cell.key) =
        (Line::new(name), verdict, Some(Digest::from_sha256(&[key; 32])));
    cell.resolved.as_mut().unwrap().set = Some(Digest::from_sha256(&[set; 32]));
    results
}

#[test]
fn a_test_result_names_every_cell_that_booted_the_set() {
    let compiled = || Verdict::Compiled { patches: Vec::new() };
    let patched = Verdict::WorksPatched { patches: vec![Line::new("p")] };
    let mut t4 = one("run-1", "a-round-trip-t4", Verdict::Works {}, 20, 1);
    t4.cells[0].resolved.as_mut().unwrap().compile_key = Some(Digest::from_sha256(&[1; 32]));
    let mut unproven = one("run-2", "unproven", Verdict::Works {}, 1, 1);
    unproven.cells[0].unproven = true;
    let all = [
        one("run-0", "a", compiled(), 1, 1),
        t4,
        one("run-2", "a-round-trip-h100", patched, 3, 1),
        unproven,
        one("run-0", "b", compiled(), 4, 2),
        one("run-2", "another-of-b's-key", Verdict::Works {}, 4, 3),
    ];
    let (sets, refused) = passed(&all);
    let found: Vec<_> =
        sets.iter().map(|set| (set.name.as_str(), !set.test_result.is_empty())).collect();
    let expected =
        [("a", true), ("a-round-trip-h100", true), ("b", false), ("another-of-b's-key", true)];
    assert_eq!(found, expected);
    assert_eq!(refused.len(), 1, "the unproven one: {refused:?}");
    // The same modules, under the keys of two cells.
    assert_eq!(sets[0].test_result, sets[1].test_result);
    let used = |name: &str, digit: u8, run: &str| {
        serde_json::json!({
            "name": name,
            "digest": { "sha256": Digest::from_sha256(&[digit; 32]) },
            "annotations": {
                "run": run, "longshore": "0.1.0", "commit": "0123456789abcdef0123456789abcdef01234567",
            },
        })
    };
    let predicate = serde_json::json!({
        "result": "PASSED",
        "configuration": [
            used("matrix.lock", 2, "run-1"),
            used("longshore-image", 1, "run-1"),
            used("matrix.lock", 2, "run-2"),
            used("longshore-image", 1, "run-2"),
        ],
        "passedTests": ["a-round-trip-h100", "a-round-trip-t4"],
        "warnedTests": [],
        "failedTests": [],
    });
    assert_eq!(sets[0].test_result.predicate(), predicate);
}
