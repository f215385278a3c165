use super::*;
use crate::rules::Rules;
use crate::rules::lock::{LockedPackage, LockedSuite};

const RULES: &str = "format = 1\nfrozen = ['sid']\n[[kernels]]\ndistribution = 'debian'\n\
    suites = ['bookworm-security', 'trixie']\nflavours = ['rt']\narchitecture = 'amd64'\n\
    [[drivers]]\nbranches = ['550', '555']\nflavours = ['open']\nsuites = ['sid', 'trixie']\n\
    [[rule]]\nname = 'all'\n";

fn package(name: &str, version: &str, suite: &str) -> LockedPackage {
    let sha256 = digest(&[name, version]);
    LockedPackage { package: name.into(), version: version.into(), suite: suite.into(), sha256 }
}

fn lock() -> Lock {
    let kernel = |id: &str, unavailable| LockedKernel {
        id: id.into(),
        release: "6.1.0-56-rt-amd64".into(),
        unavailable,
        build_root: None,
        image: Some(package("linux-image-6.1.0-56-rt-amd64", "6.1.192-2", "bookworm-security")),
        headers: vec![package("linux-headers-6.1.0-56-rt-amd64", "6.1.192-2", "bookworm-security")],
    };
    let missing = |part, why: &str| Some(Missing { part, why: why.into() });
    let source = |version: &str, suite: &str| package("nvidia-open-kernel-source", version, suite);
    let driver =
        |id: &str, unavailable, revisions| LockedDriver { id: id.into(), unavailable, revisions };
    Lock::new(
        vec![LockedSuite { suite: "sid".into(), frozen: true, unavailable: None }],
        vec![
            kernel("bookworm-security-rt", None),
            kernel("trixie-rt", missing(Part::Headers, "404")),
        ],
        vec![
            driver(
                "550-open",
                None,
                vec![source("550.163.01-4", "sid"), source("550.163.01-2", "trixie")],
            ),
            driver("555-open", missing(Part::Driver, "none"), Vec::new()),
        ],
    )
}

/// Digest of the inputs that the stand-in states.
const INPUTS: &str = "1111111111111111111111111111111111111111111111111111111111111111";

/// Makes a stand-in for longshore that states its inputs, writes its arguments and ends with `code`.
fn stand_in(dir: &Path, code: i32) -> PathBuf {
    let path = dir.join("longshore");
    let error = "{\\\"exit_code\\\":14,\\\"cause\\\":\\\"c\\\",\\\"remedy\\\":\\\"r\\\"}";
    let inputs = format!("echo '{{\"inputs\":\"{INPUTS}\"}}'");
    let script = format!(
        "#!/bin/sh\ncase $* in *--print-inputs) {inputs}; exit 0 ;; esac\n\
         echo \"$@\" >&2\n{inputs} >&2\necho \"{error}\" >&2\nexit {code}\n"
    );
    // Another process writes it: a child forked meanwhile by another test would hold the file open.
    let mut write = Command::new("sh");
    write.args(["-c", "printf %s \"$1\" > \"$2\" && chmod +x \"$2\"", "sh", &script]).arg(&path);
    assert!(write.status().unwrap().success());
    path
}

fn settings<'a>(lock: &'a Lock, program: &'a Path, dir: &'a Path) -> BuildRun<'a> {
    let (store, limit) = (Path::new("/store"), Duration::from_secs(60));
    BuildRun { lock, archives: &[], program, store, dir, limit }
}

fn build(name: &str) -> (CellResult, String) {
    let dir = tempfile::tempdir().unwrap();
    let (rules, lock, program) = (Rules::parse(RULES).unwrap(), lock(), stand_in(dir.path(), 14));
    let run = settings(&lock, &program, dir.path());
    let cell = rules.cells.iter().find(|cell| cell.name == name).unwrap();
    let result = run.build(cell).unwrap();
    let log = fs::read_to_string(dir.path().join(format!("logs/{name}.log")));
    (result, log.unwrap_or_default())
}

#[test]
fn a_cell_is_compiled_with_the_packages_of_the_lock() {
    let (result, log) = build("bookworm-security-rt-550-open");
    assert_eq!(
        log.lines().next().unwrap(),
        "build --kernel 6.1.0-56-rt-amd64 --driver 550.163.01 --flavour open --store /store \
         --archive-suite bookworm-security --archive-suite bookworm --archive-suite sid \
         --archive-suite trixie --archive-frozen --retry"
    );
    assert!(matches!(result.verdict, Verdict::DoesNotCompile { .. }), "{:?}", result.verdict);
    let resolved = result.resolved.unwrap();
    assert_eq!(resolved.revision.as_str(), "nvidia-open-kernel-source 550.163.01-4 in sid");
    assert!(resolved.notes[0].as_str().contains("PREEMPT_RT"));
    let log = result.log.unwrap();
    assert_eq!((log.excerpt.len(), log.failing_line), (3, Some(2)));
}

#[test]
fn a_key_is_of_the_packages_and_the_stated_inputs() {
    let (rules, lock) = (Rules::parse(RULES).unwrap(), lock());
    let cell = rules.cells.iter().find(|c| c.name == "bookworm-security-rt-550-open").unwrap();
    let inputs = Digest::try_from(INPUTS.to_owned()).unwrap();
    let of = |lock: &Lock, inputs: &Digest| {
        let kernel = lock.kernel(&cell.kernel.id).unwrap();
        key(kernel, lock.driver(&cell.driver.id).unwrap(), inputs).unwrap()
    };
    let mut other_headers = lock.clone();
    other_headers.kernels[0].headers[0].sha256 = "other".into();
    let mut older_gone = lock.clone();
    older_gone.drivers[0].revisions.pop();
    let keys = [
        of(&lock, &inputs),
        of(&lock, &Digest::from_sha256(&[2; 32])),
        of(&other_headers, &inputs),
        of(&older_gone, &inputs),
    ];
    let different: std::collections::BTreeSet<&Digest> = keys.iter().collect();
    assert_eq!(different.len(), keys.len());
    let (result, _) = build(&cell.name);
    assert_eq!(result.key.as_ref(), Some(&keys[0]), "as the build stated in its log");
    let dir = tempfile::tempdir().unwrap();
    let program = stand_in(dir.path(), 14);
    let run = settings(&lock, &program, dir.path());
    assert_eq!(run.key_of(cell).unwrap().as_ref(), Some(&keys[0]), "as it was asked for before");
    let missing = rules.cells.iter().find(|c| c.name == "trixie-rt-550-open").unwrap();
    assert_eq!(run.key_of(missing).unwrap(), None);
}

#[test]
fn a_cell_with_a_missing_part_is_unavailable_and_not_compiled() {
    for (name, part, why) in [
        ("trixie-rt-550-open", Part::Headers, "404"),
        ("bookworm-security-rt-555-open", Part::Driver, "none"),
    ] {
        let (result, log) = build(name);
        assert_eq!(result.verdict, Verdict::Unavailable { part, why: Line::new(why) });
        assert!(log.is_empty() && result.log.is_none());
    }
}

#[test]
fn a_kernel_by_name_is_compiled_in_its_build_root_without_a_suite_of_its_own() {
    let rules = Rules::parse(&RULES.replace(
        "distribution = 'debian'\nsuites = ['bookworm-security', 'trixie']\nflavours = ['rt']\narchitecture = 'amd64'",
        "name = 'el9'\nreleases = ['5.14.0-1.el9.x86_64']\nbuild-root = '/srv/el9'",
    ))
    .unwrap();
    let mut lock = lock();
    let kernel = LockedKernel {
        id: "el9-5.14.0-1.el9.x86_64".into(),
        release: "5.14.0-1.el9.x86_64".into(),
        unavailable: None,
        build_root: Some("/srv/el9".into()),
        image: None,
        headers: Vec::new(),
    };
    lock.kernels = vec![kernel];
    let dir = tempfile::tempdir().unwrap();
    let program = stand_in(dir.path(), 14);
    let builds = BuildRun {
        lock: &lock,
        archives: &[],
        program: &program,
        store: dir.path(),
        dir: dir.path(),
        limit: Duration::from_secs(60),
    };
    let result = builds.build(&rules.cells[0]).unwrap();
    let log = fs::read_to_string(dir.path().join(result.log.unwrap().file.as_str())).unwrap();
    let arguments = log.lines().next().unwrap();
    assert!(arguments.contains("--kernel 5.14.0-1.el9.x86_64 "), "{arguments}");
    assert!(arguments.contains("--build-root /srv/el9 --archive-suite sid "), "{arguments}");
    assert!(!arguments.contains("--archive-suite el9"), "{arguments}");
    assert_eq!(result.resolved.unwrap().kernel_release.as_str(), "5.14.0-1.el9.x86_64");
}

#[test]
fn archives_of_the_rules_are_passed_on_in_a_configuration() {
    let archive = |suites: &[&str]| ArchiveSource {
        url: "http://archive.example.com/ubuntu".into(),
        suites: suites.iter().map(|suite| (*suite).to_owned()).collect(),
        components: vec!["main".into()],
        keyring: "/k.gpg".into(),
        max_age: None,
    };
    let ubuntu = ["noble", "noble-updates"];
    for (archives, arguments, host_apt) in [
        (vec![archive(&["plucky"])], "noble sid trixie", None),
        (vec![archive(&["plucky"]), archive(&ubuntu)], "sid trixie", Some("true")),
        (vec![archive(&ubuntu), archive(&["sid", "trixie"])], "", Some("false")),
    ] {
        let rules = Rules::parse(&RULES.replace(
            "distribution = 'debian'\nsuites = ['bookworm-security', 'trixie']\nflavours = ['rt']\narchitecture = 'amd64'",
            "name = 'fleet'\ndistribution = 'ubuntu'\nsuites = ['noble']\nreleases = ['6.8.0-45-generic']",
        ))
        .unwrap();
        let mut lock = lock();
        lock.kernels[0].id = "fleet-6.8.0-45-generic".into();
        lock.kernels[0].release = "6.8.0-45-generic".into();
        let dir = tempfile::tempdir().unwrap();
        let program = stand_in(dir.path(), 14);
        let run = BuildRun { archives: &archives, ..settings(&lock, &program, dir.path()) };
        let (kernel, driver) = run.parts(&rules.cells[0]).unwrap();
        let (command, file) = run.command(&rules.cells[0], kernel, driver).unwrap();
        let said: Vec<String> =
            command.get_args().map(|of| of.to_string_lossy().into_owned()).collect();
        let suites: Vec<&str> = said
            .windows(2)
            .filter(|two| two[0] == "--archive-suite")
            .map(|two| two[1].as_str())
            .collect();
        assert_eq!(suites.join(" "), arguments);
        assert!(!said.contains(&"--build-root".to_owned()), "{said:?}");
        let text = file.as_ref().map(|file| fs::read_to_string(file.path()).unwrap());
        let Some(host_apt) = host_apt else {
            assert_eq!(text, None);
            continue;
        };
        assert!(
            said.windows(2).any(|two| two[0] == "--config" && Path::new(&two[1]).is_absolute())
        );
        let config: toml::Table = text.unwrap().parse().unwrap();
        assert_eq!(config["host-apt"].to_string(), host_apt);
        let first = &config["archive"].as_array().unwrap()[0];
        assert_eq!(first["suites"].to_string(), "[\"noble\", \"noble-updates\"]");
        assert_eq!(first["keyring"].as_str(), Some("/k.gpg"));
    }
}
