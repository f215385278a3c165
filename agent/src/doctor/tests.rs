use std::fs;
use std::path::Path;

use rstest::rstest;

use super::*;
use crate::config::{self, Fragment};
use crate::console::Form;
use crate::kept::{assert_kept, assert_narrow, tree, trees};
use longshore_debian::settings::ArchiveSource;
use longshore_modules::registry::RegistrySource;

fn config(root: &Path) -> Config {
    with_driver(root, "535")
}

fn with_driver(root: &Path, driver: &str) -> Config {
    let root = root.to_str().unwrap();
    let flags = Fragment {
        driver: Some(driver.parse().unwrap()),
        root: Some(root.parse().unwrap()),
        ..Fragment::default()
    };
    config::load(flags, &|_| None, None).unwrap()
}

async fn diagnosed(config: &Config) -> Report {
    diagnose(config, false).await.unwrap()
}

/// Reports of every tree are kept beside this file; WRITE_DOCS=1 regenerates them.
#[rstest]
#[case("bookworm-t4", 0, &["driver-ended", "nouveau-at-boot"])]
#[case("bookworm-no-gpu", 17, &["no-device", "driver-ended"])]
#[case("bookworm-nouveau", 15, &["gpu-bound-elsewhere", "driver-ended", "nouveau-at-boot"])]
#[case("bookworm-vfio", 15, &["gpu-bound-elsewhere", "driver-ended", "nouveau-at-boot"])]
#[case("bookworm-h100-nvswitch", 0, &["driver-ended", "nouveau-at-boot"])]
#[case("bookworm-secure-boot", 15, &["signature-required", "driver-ended", "nouveau-at-boot"])]
#[case("bookworm-t4-container", 15, &["missing-capability", "run-nvidia-not-shared", "host-root-hidden", "lost-with-container", "driver-ended", "cdi-unpublished"])]
#[case("bookworm-t4-host-driver", 0, &["driver-ended", "host-driver-installed", "driver-autoloads"])]
#[case("bookworm-t4-leftovers", 0, &["driver-ended", "leftovers"])]
#[case("bookworm-t4-live", 0, &["driver-vulnerable", "driver-ended", "nouveau-at-boot"])]
#[case("bookworm-rt-t4", 0, &["driver-ended", "preempt-rt", "nouveau-at-boot"])]
#[case("bookworm-cloud-no-gpu", 17, &["no-device", "driver-ended"])]
#[case("bookworm-cloud-t4", 0, &["driver-ended"])]
#[case("bookworm-k80", 15, &["gpu-unsupported", "driver-ended", "nouveau-at-boot"])]
#[case("bookworm-v100", 0, &["driver-ended", "nouveau-at-boot"])]
#[case("bookworm-b200", 15, &["gpu-unsupported", "driver-ended", "nouveau-at-boot"])]
#[case("bookworm-unknown-gpu", 0, &["driver-ended", "gpu-unknown", "nouveau-at-boot"])]
#[case("bookworm-vm", 17, &["no-device", "driver-ended"])]
#[tokio::test]
async fn every_tree_gives_its_report(#[case] name: &str, #[case] exit: u8, #[case] codes: &[&str]) {
    let report = diagnosed(&config(&tree(name))).await;
    let found: Vec<&str> = report.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert_eq!(found, codes);
    assert_eq!(report.exit_code.number(), exit);
    let json = serde_json::to_string_pretty(&report).unwrap();
    let text = render(&report, Form::PLAIN);
    assert_narrow(&text);
    assert_kept(&format!("doctor/reports/{name}.txt"), &text);
    assert_kept(&format!("doctor/reports/{name}.json"), &format!("{json}\n"));
}

/// A branch has ended whether or not a version of it is known; one that the table does not have is not called supported.
#[rstest]
#[case::ended("535", "refuse", 13, None)]
#[case::ended_and_warned("535", "warn", 0, None)]
#[case::not_in_the_table(
    "99999.10.01",
    "refuse",
    0,
    Some("branch 99999 is not in the support table")
)]
#[tokio::test]
async fn the_branch_of_the_driver_is_judged(
    #[case] driver: &str,
    #[case] ended: &str,
    #[case] exit: u8,
    #[case] skipped: Option<&str>,
) {
    let mut config = with_driver(&tree("bookworm-t4"), driver);
    config.support.ended = ended.parse().unwrap();
    let report = diagnosed(&config).await;
    assert_eq!(report.exit_code.number(), exit, "{:?}", report.findings);
    let is_found = report.findings.iter().any(|finding| finding.code == Code::DriverEnded);
    assert_eq!(is_found, skipped.is_none());
    let its = |check: &&Check| check.name == "support of the driver";
    assert!(report.passed.iter().find(its).is_none());
    let said = report.skipped.iter().find(its).map(|check| check.detail.as_str());
    assert_eq!(said.is_some(), skipped.is_some(), "{said:?}");
    assert!(said.unwrap_or_default().contains(skipped.unwrap_or_default()), "{said:?}");
}

/// As `run` ends there: what is not configured needs no query.
#[rstest]
#[case::no_source(None, false, Some((Code::ArchivesUnread, 12)))]
#[case::no_keyring(Some("/nonexistent.asc"), false, Some((Code::SourcesUnread, 2)))]
#[case::apt_of_another_machine(None, true, None)]
#[tokio::test]
async fn sources_of_which_none_can_be_asked_refuse_without_a_query(
    #[case] keyring: Option<&str>,
    #[case] host_apt: bool,
    #[case] wanted: Option<(Code, u8)>,
) {
    let mut config = config(&tree("bookworm-t4"));
    config.archives.use_host_apt = host_apt;
    config.archives.sources.extend(keyring.map(|keyring| ArchiveSource {
        url: "https://archive.example.com/debian".to_owned(),
        suites: vec!["bookworm".to_owned()],
        components: vec!["main".to_owned()],
        keyring: keyring.into(),
        max_age: None,
    }));
    let report = diagnosed(&config).await;
    let refusal = report.findings.iter().find(|found| found.severity == Severity::Refusal);
    let found = refusal.map(|found| (found.code, report.exit_code.number()));
    assert_eq!(found, wanted);
    // A registry may have what is wanted.
    let registry = "registry.example.com/drivers".parse().unwrap();
    config.registries.push(RegistrySource { reference: registry, mirrors: Vec::new() });
    assert_eq!(diagnosed(&config).await.exit_code.number(), 0);
}

#[test]
fn every_tree_is_among_the_reports() {
    let kept = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doctor/reports"));
    let kept = kept.unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut kept: Vec<String> =
        kept.filter_map(|name| Some(name.strip_suffix(".txt")?.to_owned())).collect();
    kept.sort();
    assert_eq!(kept, trees());
}

/// A copy of a tree that a test may change.
fn changed(change: impl FnOnce(&Path)) -> (tempfile::TempDir, Config) {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().flatten() {
            let to = to.join(entry.file_name());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                copy(&entry.path(), &to);
            } else if kind.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(entry.path()).unwrap(), to).unwrap();
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    copy(&tree("bookworm-t4"), dir.path());
    let blacklist = dir.path().join("etc/modprobe.d/n.conf");
    fs::create_dir_all(blacklist.parent().unwrap()).unwrap();
    fs::write(blacklist, "blacklist nouveau\n").unwrap();
    change(dir.path());
    // Support of no branch ends during these tests.
    let config = with_driver(dir.path(), "newest");
    (dir, config)
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

const STATE: &str = "run/longshore/state.json";
const BOOT: &str = "6f1d3b52-8a0e-4c39-9d57-2f4a6b7c8d90";
const CONFIG: &str = "boot/config-6.1.0-50-amd64";

fn state(boot: &str, phase: &str, entries: &str) -> String {
    format!(
        "{{\"format\":1,\"boot_id\":\"{boot}\",\"agent\":7,\"phase\":\"{phase}\",\"plan\":null,\"entries\":[{entries}]}}"
    )
}

/// Makes a record: the kernel refused 550 as a replacement of the loaded driver.
fn refused(boot: &str) -> String {
    let load = r#"{"do":"load-module","name":"nvidia","origin":{"driver":{"sha256":"SHA256"}},"parameters":"","version":"550.163.01","srcversion":null}"#;
    let load = load.replace("SHA256", &"a".repeat(64));
    let refused = format!(
        r#""refused":{{"loads":[{load}],"why":"init_module nvidia: EINVAL","no_device":false}},"#
    );
    state(boot, "removed", "").replacen('{', &format!("{{{refused}"), 1)
}

const DIR: &str = r#"{"seq":1,"step":{"do":"make-dir","path":"/run/nvidia/driver"},"before":{"was":"missing-dirs","dirs":["/run/nvidia/driver"]},"state":"done"}"#;
const FAILURE: &str = r#"{"inputs":"a","at":"NOW","why":"inputs","jobs":1,"limit-seconds":9,"cause":"no strncpy","remedy":null}"#;

#[rstest]
#[case::well("etc/x", "", None)]
#[case::cut_off(STATE, "{\"format\":", Some((Code::StateUnreadable, 13)))]
#[case::newer(STATE, "{\"format\":99}", Some((Code::StateOutOfReach, 15)))]
#[case::removed(STATE, &state(BOOT, "removed", ""), None)]
#[case::failed(STATE, &state(BOOT, "failed", ""), Some((Code::AgentFailed, 0)))]
#[case::died(STATE, &state(BOOT, "installing", DIR), Some((Code::AgentFailed, 0)))]
#[case::refused(STATE, &refused(BOOT), Some((Code::DriverRefusedBefore, 0)))]
#[case::refused_before_the_boot(STATE, &refused("b"), None)]
#[case::of_another_boot(STATE, &state("b", "installing", DIR), None)]
#[case::a_set_without_its_modules("var/lib/longshore/sets/a.json", "{}", Some((Code::StoreDamaged, 0)))]
#[case::a_store_that_is_a_file("var/lib/longshore", "", Some((Code::StoreUnusable, 15)))]
#[case::no_unload(CONFIG, "CONFIG_MODULES=y\n", Some((Code::CannotUnload, 0)))]
#[case::random(
    CONFIG,
    "CONFIG_MODULES=y\nCONFIG_MODULE_UNLOAD=y\nCONFIG_RANDSTRUCT_FULL=y\n",
    Some((Code::LayoutRandomized, 0))
)]
#[case::pinned(
    CONFIG,
    "CONFIG_MODULE_UNLOAD=y\nCONFIG_SECURITY_LOADPIN=y\nCONFIG_SECURITY_LOADPIN_ENFORCE=y\n",
    Some((Code::ModulesPinned, 0))
)]
#[case::a_driver_root_that_is_a_file("run/nvidia/driver", "", Some((Code::DriverRootOdd, 15)))]
#[case::failed_before(
    "var/lib/longshore/failures/535.261.03-open-6.1-aaaa.json",
    FAILURE,
    Some((Code::CompileFailedBefore, 0))
)]
#[case::next_kernel(
    "lib/modules/6.1.0-51-amd64/modules.dep",
    "",
    Some((Code::NextKernelUnprepared, 0))
)]
#[tokio::test]
async fn one_thing_that_is_not_well(
    #[case] path: &str,
    #[case] text: &str,
    #[case] wanted: Option<(Code, u8)>,
) {
    let now = jiff::Timestamp::now().to_string();
    let (dir, config) = changed(|root| write(root, path, &text.replace("NOW", &now)));
    let report = diagnosed(&config).await;
    let found: Vec<Code> = report.findings.iter().map(|finding| finding.code).collect();
    assert_eq!(found, wanted.iter().map(|(code, _)| *code).collect::<Vec<_>>());
    assert_eq!(report.exit_code.number(), wanted.map_or(0, |(_, exit)| exit));
    let is_empty = report.findings.first().map(|finding| finding.consequence.is_empty());
    assert_ne!(is_empty, Some(true));
    assert!(!dir.path().join("run/longshore/lock").exists(), "nothing is made");
}

#[tokio::test]
async fn a_prebuilt_directory_that_is_none_hides_nothing_else() {
    let mut config = config(&tree("bookworm-nouveau"));
    config.prebuilt.push("/no/such/directory".into());
    let report = diagnosed(&config).await;
    let found: Vec<Code> = report.findings.iter().map(|finding| finding.code).collect();
    assert!(found.contains(&Code::GpuBoundElsewhere), "{found:?}");
    assert!(found.contains(&Code::SourcesUnread), "{found:?}");
    assert_eq!(report.exit_code, ExitCode::Preflight, "the gravest is still what ends `run`");
}

/// Simulates a user other than root, with a file of modprobe.d that only root may read.
#[tokio::test]
async fn what_could_not_be_read_is_not_said_to_be_well() {
    let (dir, config) = changed(|root| write(root, "etc/modprobe.d/n.conf", "blacklist nouveau\n"));
    let rules = dir.path().join("etc/modprobe.d");
    fs::remove_dir_all(&rules).unwrap();
    // Root may read every file; a symlink loop cannot be read at all.
    std::os::unix::fs::symlink("modprobe.d", &rules).unwrap();
    let report = diagnosed(&config).await;
    let found: Vec<Code> = report.findings.iter().map(|finding| finding.code).collect();
    assert_eq!(found, [], "the blacklist for nouveau is unknown");
    for what in ["driver of the host itself", "nouveau and nova"] {
        assert!(report.passed.iter().all(|check| check.name != what), "{what}");
        let not = report.skipped.iter().find(|check| check.name == what);
        assert!(not.is_some_and(|not| not.detail.contains("etc/modprobe.d")), "{what}: {not:?}");
    }
}

#[tokio::test]
async fn a_driver_that_the_kernel_refused_is_named_with_its_reason() {
    let (_dir, config) = changed(|root| write(root, STATE, &refused(BOOT)));
    let report = diagnosed(&config).await;
    let details: Vec<&str> =
        report.findings.iter().map(|finding| finding.detail.as_str()).collect();
    assert_eq!(details, ["nvidia 550.163.01: init_module nvidia: EINVAL"]);
}

#[tokio::test]
async fn an_agent_at_work_is_a_note() {
    let (dir, config) = changed(|root| write(root, STATE, &state(BOOT, "ready", DIR)));
    let lock = crate::journal::Lock::take(&dir.path().join("run/longshore")).unwrap();
    let report = diagnosed(&config).await;
    let details: Vec<&str> =
        report.findings.iter().map(|finding| finding.detail.as_str()).collect();
    let pid = std::process::id();
    let wanted = format!(
        "process {pid} (in its own PID namespace) is running, in phase ready; it does not answer: it has no socket in its state directory"
    );
    assert_eq!(details, [wanted]);
    drop(lock);
    let report = diagnosed(&config).await;
    assert_eq!(report.findings[0].code, Code::AgentFailed, "no agent is left to uninstall it");
}

#[tokio::test]
async fn this_machine_can_be_looked_at_and_nothing_is_made_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(Path::new("/"));
    config.paths.store = dir.path().join("store");
    config.paths.state = dir.path().join("state");
    let report = diagnosed(&config).await;
    assert!(!report.passed.is_empty());
    assert!(report.passed.iter().any(|check| check.name == "free space"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
