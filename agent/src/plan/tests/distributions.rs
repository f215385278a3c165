//! Hosts of other distributions: `plan` and `doctor` of each, as the table of docs/reference/distributions.md.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::doctor;
use longshore_host::facts::{KernelKey, LiveDriver};
use longshore_modules::module_signing::{Hash, SignedBy};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/distributions.md");
const BEGIN: &str = "<!-- table of hosts: generated -->\n";
const END: &str = "<!-- end of the table of hosts -->\n";
const HEAD: &str = "\
| Host | Kernel | os-release | Kernel's facts | `plan`, no set | `plan`, unsigned set | `doctor` |
|---|---|---|---|---|---|---|
";

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("distributions")
}

/// Names of all hosts, sorted.
fn hosts() -> Vec<String> {
    let names = fs::read_dir(dir()).expect("directory").map(|entry| entry.expect("entry"));
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut hosts: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".tree").map(str::to_owned)).collect();
    hosts.sort();
    hosts
}

/// A host as a tree, with the marks of its facts.
struct Host {
    tree: tempfile::TempDir,
    os_release: String,
    kernel: String,
}

fn host(name: &str) -> Host {
    let text = fs::read_to_string(dir().join(format!("{name}.tree"))).expect("a host");
    let mark = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("# {key}: ")));
        line.unwrap_or_else(|| panic!("{name} has no mark `{key}`")).to_owned()
    };
    let tree = tempfile::tempdir().expect("temporary directory");
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bookworm-t4");
    for part in ["proc", "sys"] {
        copy(&base.join(part), &tree.path().join(part));
    }
    for entry in text.split("\n@ ").skip(1) {
        make(tree.path(), entry);
    }
    Host { os_release: mark("os-release"), kernel: mark("kernel"), tree }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    for entry in fs::read_dir(from).expect("directory").map(|entry| entry.expect("entry")) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().expect("its type") {
            kind if kind.is_dir() => copy(&from, &to),
            kind if kind.is_symlink() => {
                symlink(fs::read_link(&from).expect("link"), to).expect("link")
            }
            _ => drop(fs::copy(&from, &to).expect("copied")),
        }
    }
}

fn make(root: &Path, entry: &str) {
    let (head, text) = entry.split_once('\n').unwrap_or((entry, ""));
    let path = |path: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
        path
    };
    if let Some((link, target)) = head.split_once(" -> ") {
        symlink(target, path(link)).expect("link");
    } else if let Some((file, bytes)) = head.split_once(" = ") {
        fs::write(path(file), from_hex(bytes.trim())).expect("written");
    } else {
        fs::write(path(head), format!("{}\n", text.trim_end())).expect("written");
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(byte).collect()
}

fn facts_of(host: &Host) -> HostFacts {
    HostFacts::read(host.tree.path(), host.tree.path()).expect("facts")
}

/// The archives' drivers; headers for Debian-format distributions alone, for no others are read.
fn catalog_of(facts: &HostFacts) -> Catalog {
    let release = &facts.kernel.release;
    let headers = match facts.os.id.as_str() {
        "ubuntu" => AvailableHeaders::Archive {
            package: format!("linux-headers-{release}"),
            version: "1".into(),
            compiler: Some("gcc".into()),
            passed_over: Vec::new(),
        },
        _ => AvailableHeaders::Missing { nearest: Vec::new(), passed_over: Vec::new() },
    };
    Catalog { headers: Probe::Read(headers), ..archives() }
}

fn stocked_for(facts: &HostFacts) -> Catalog {
    let stocked = stocked(facts, Flavour::Open);
    Catalog { headers: catalog_of(facts).headers, ..stocked }
}

fn planned(facts: &HostFacts, catalog: &Catalog) -> Plan {
    plan(&config("535", "auto"), facts, catalog).expect("a plan")
}

/// Verdict and headline, by the gravest finding.
fn headline(gravest: Option<(Severity, Code)>) -> String {
    match gravest {
        Some((Severity::Refusal, code)) => {
            format!("refused: {code} ({})", code.entry().kind.exit_code().number())
        }
        Some((Severity::Warning, code)) => format!("warned: {code}"),
        Some((Severity::Note, _)) | None => "goes on".to_owned(),
    }
}

fn of_plan(plan: &Plan) -> String {
    headline(plan.findings.first().map(|f| (f.severity, f.code)))
}

async fn of_doctor(host: &Host) -> String {
    let root = host.tree.path().to_str().expect("a path");
    let flags = Fragment {
        driver: Some("535".parse().expect("a driver")),
        root: Some(root.parse().expect("a root")),
        ..Fragment::default()
    };
    let mut config = config::load(flags, &|_| None, None).expect("a configuration");
    config.support.table = Arc::new(built_in().without_judgements());
    let report = doctor::diagnose(&config, false).await.expect("a report");
    headline(report.findings.first().map(|f| (f.severity, f.code)))
}

async fn row(name: &str) -> String {
    let host = host(name);
    let facts = facts_of(&host);
    let cells = [
        name.to_owned(),
        format!("`{}`", facts.kernel.release),
        host.os_release.clone(),
        host.kernel.clone(),
        of_plan(&planned(&facts, &catalog_of(&facts))),
        of_plan(&planned(&facts, &stocked_for(&facts))),
        of_doctor(&host).await,
    ];
    format!("| {} |\n", cells.join(" | "))
}

#[tokio::test]
async fn the_table_of_distributions_is_what_plan_and_doctor_say() {
    let mut table = HEAD.to_owned();
    for name in hosts() {
        table.push_str(&row(&name).await);
    }
    print!("{table}");
    let page = fs::read_to_string(PAGE).expect("docs/reference/distributions.md");
    let (before, rest) = page.split_once(BEGIN).expect("the table's begin");
    let (kept, after) = rest.split_once(END).expect("the table's end");
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(PAGE, format!("{before}{BEGIN}{table}{END}{after}")).expect("written");
    } else {
        assert!(kept == table, "docs/reference/distributions.md differs: WRITE_DOCS=1 renews it");
    }
}

fn refusal_of(facts: &HostFacts, catalog: &Catalog, code: Code) -> Option<Finding> {
    planned(facts, catalog).findings.into_iter().find(|finding| finding.code == code)
}

#[rstest]
#[case("cos-125", "cos-extensions install gpu")]
#[case("bottlerocket-1.47", "-nvidia variant")]
#[case("talos-1.13", "Talos' system extensions")]
#[case("flatcar-secure-boot", "sysext")]
#[case("ubuntu-core-24", "kernel snap")]
fn a_distribution_that_brings_its_own_is_refused_with_its_mechanism(
    #[case] name: &str,
    #[case] mechanism: &str,
) {
    let facts = facts_of(&host(name));
    for catalog in [catalog_of(&facts), archives()] {
        let plan = planned(&facts, &catalog);
        assert_eq!(plan.findings[0].code, Code::HostBringsDriver);
        assert!(plan.findings[0].remedy.contains(mechanism), "{}", plan.findings[0].remedy);
        assert_eq!(plan.refusal().map(|f| f.code().number()), Some(10));
        assert!(plan.findings.iter().all(|f| f.code != Code::KernelByClang), "said once");
    }
}

/// A driver that the host's own mechanism loaded: the wanted one, with all its modules.
fn with_live_driver(facts: &mut HostFacts) {
    facts.live_driver =
        Some(LiveDriver { version: "535.261.03".into(), flavour: Some(Flavour::Open) });
    let live = self::facts("bookworm-t4-live");
    let loaded = live.loaded.into_iter().filter(|(name, _)| name.starts_with("nvidia"));
    facts.loaded.extend(loaded);
}

#[rstest]
#[case("cos-125")]
#[case("bottlerocket-1.47")]
#[case("talos-1.13")]
#[case("flatcar-secure-boot")]
#[case("ubuntu-core-24")]
fn a_driver_that_the_distribution_loaded_is_adopted(#[case] name: &str) {
    let mut facts = facts_of(&host(name));
    with_live_driver(&mut facts);
    let adopted = planned(&facts, &catalog_of(&facts));
    assert!(adopted.refusal().is_none(), "{:?}", adopted.findings);
    facts.loaded.remove("nvidia_uvm");
    let finding = refusal_of(&facts, &catalog_of(&facts), Code::HostBringsDriver).expect("refused");
    assert!(finding.detail.ends_with("not all of the wanted modules are"), "{}", finding.detail);
}

#[rstest]
#[case("cos-125-unpinned")]
#[case("bottlerocket-1.47")]
#[case("flatcar-secure-boot")]
fn a_set_signed_with_a_key_of_the_kernel_fits(#[case] name: &str) {
    let mut facts = facts_of(&host(name));
    let key = KernelKey { name: "Example".into(), id: "25a7".into() };
    facts.security.keys = Probe::Read(vec![key]);
    let mut catalog = stocked_for(&facts);
    for (id, fits) in [("25a7", true), ("ffff", false)] {
        catalog.sets[0].set.key.signed_by = Some(SignedBy {
            certificate: "1".repeat(64),
            name: "Example".into(),
            key_ids: vec![id.into()],
            hash: Hash::Sha512,
        });
        let refused = planned(&facts, &catalog).refusal();
        assert_eq!(refused.is_none(), fits, "{refused:?}");
    }
}

#[test]
fn a_set_that_load_pin_would_refuse_is_refused_before() {
    let mut facts = facts_of(&host("cos-125-unenforced"));
    let catalog = stocked_for(&facts);
    for (pinned, refused) in [(Probe::Read(true), true), (Probe::Read(false), false)] {
        facts.security.load_pin = pinned;
        let finding = refusal_of(&facts, &catalog, Code::HostBringsDriver);
        let named = finding.map(|finding| finding.detail.contains("; LoadPin is enforced"));
        assert_eq!(named, refused.then_some(true));
    }
}

#[test]
fn a_kernel_built_by_clang_is_refused_before_a_compile_and_takes_a_set() {
    let mut facts = self::facts("bookworm-t4");
    facts.kernel.compiler = Some("Debian clang version 19.1.7 (3~deb12u1)".into());
    let finding = refusal_of(&facts, &archives(), Code::KernelByClang).expect("refused");
    assert!(finding.detail.contains("clang version 19.1.7"), "{}", finding.detail);
    assert_eq!(finding.exit_code().number(), 11);
    assert!(planned(&facts, &stocked(&facts, Flavour::Open)).refusal().is_none());
    let headers = AvailableHeaders::BuildRoot {
        place: "/srv/root".into(),
        digest: "1".repeat(64),
        compiler: Some("Debian clang version 19.1.7 (3~deb12u1)".into()),
    };
    let catalog = Catalog { headers: Probe::Read(headers), ..archives() };
    assert!(refusal_of(&facts, &catalog, Code::KernelByClang).is_none());
}

#[rstest]
#[case("rhcos-4.18", "tag 418.94.202505230000-0)")]
#[case("rhcos-4.23", "openshift/driver-toolkit, tag 9.8.20260817-0)")]
#[case("rhel-8", "kernel-devel-4.18.0-553.el8_10.x86_64, gcc and make (dnf install)")]
#[case("rocky-9", "dnf install")]
#[case("al2023", "kernel-devel of 6.1.150-174.273.amzn2023.x86_64")]
#[case("sles-15", "kernel-default-devel of 6.4.0-150600.23.25-default")]
#[case("azurelinux-3", "tdnf install")]
#[case("flatcar", "developer container")]
fn headers_that_no_archive_has_come_from_a_build_root(#[case] name: &str, #[case] way: &str) {
    let facts = facts_of(&host(name));
    let missing = catalog_of(&facts);
    let unknown = Catalog { headers: Probe::Unreadable("no archive".into()), ..archives() };
    for (catalog, code) in [(missing, Code::HeadersMissing), (unknown, Code::HeadersUnknown)] {
        let finding = refusal_of(&facts, &catalog, code).expect("a finding");
        assert!(finding.remedy.starts_with("set build-root to "), "{}", finding.remedy);
        assert!(finding.remedy.contains(way), "{}", finding.remedy);
    }
}

/// A distribution of no table is built like the nearest that its os-release names.
#[test]
fn a_distribution_like_another_has_its_way_to_headers() {
    let mut facts = facts_of(&host("rocky-9"));
    facts.os.id = "example".into();
    facts.os.id_like = ["another", "rhel", "sles"].map(str::to_owned).to_vec();
    let finding = refusal_of(&facts, &catalog_of(&facts), Code::HeadersMissing).expect("a finding");
    assert!(finding.remedy.contains("dnf install"), "{}", finding.remedy);
}

#[test]
fn layouts_of_every_host_are_read_whole() {
    for name in hosts() {
        let facts = facts_of(&host(&name));
        assert_eq!(facts.unread.reasons().next(), None, "{name}");
        assert!(!facts.os.id.is_empty() && facts.kernel.compiler.is_some(), "{name}");
        assert_eq!(facts.needs_of("video"), ["wmi"], "{name}");
        assert!(facts.builtin.contains("i2c_core"), "{name}");
    }
}

/// A read-only /usr and a root of an image are no obstacle: everything is written below /dev, /run, /sys, /var.
#[test]
fn no_step_writes_below_usr_lib_or_etc() {
    for name in hosts() {
        let facts = facts_of(&host(&name));
        for step in planned(&facts, &stocked_for(&facts)).install {
            let json = serde_json::to_value(&step).expect("JSON").to_string();
            for dir in ["\"/usr", "\"/lib", "\"/etc", "\"/opt", "\"/boot"] {
                assert!(!json.contains(dir), "{name}: {json}");
            }
        }
    }
}
