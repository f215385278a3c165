use rstest::rstest;

use super::sample::{Modules, SampleEntry, deb, depends, stanza};
use super::*;
use longshore_core::disk::Disk;
use longshore_core::failure::{ExitCode, Failure};
use longshore_core::store::Store;
use longshore_modules::artifact::{HeadersFrom, ModuleSet};
use longshore_modules::testing::SIGNATURE;

const DRIVER: &str = "580.173.02";
const RELEASE: &str = "6.8.0-142-generic";
const MAGIC: &str = "6.8.0-142-generic SMP preempt mod_unload modversions ";
const SIGNED: &str = "linux-modules-nvidia-580-open-6.8.0-142-generic";

fn kernel() -> Kernel {
    let version = "#151-Ubuntu SMP PREEMPT_DYNAMIC Mon Nov  2 10:00:00 UTC 2026".to_owned();
    Kernel { release: RELEASE.to_owned(), version }
}

fn found(index: &str) -> Vec<FinishedModules> {
    find(&Archive::of_suites(&[("noble-updates", index)]), &kernel())
}

/// The stanza of a package that states this driver version.
fn offering(name: &str, version: &str, driver: &str) -> String {
    stanza(name, version, &depends(RELEASE, driver), name.as_bytes())
}

#[test]
fn the_best_package_comes_first() {
    let name = |branch: &str| format!("linux-modules-nvidia-{branch}-open-{RELEASE}");
    let index = [
        offering(&name("570"), "6.8.0-142.151", "570.211.01"),
        offering(&name("580"), "6.8.0-142.151+1", DRIVER),
        offering(&format!("linux-objects-nvidia-580-open-{RELEASE}"), "6.8.0-142.151+1", DRIVER),
        offering(&name("580-server"), "6.8.0-142.152~22.04.1", DRIVER),
    ]
    .concat();
    let found = found(&index);
    let ranked: Vec<_> = found
        .iter()
        .map(|one| (one.driver_version.as_str(), one.of_build, one.may_be_signed))
        .collect();
    let wanted = [
        (DRIVER, Some(true), true),
        (DRIVER, Some(true), false),
        (DRIVER, Some(false), true),
        ("570.211.01", Some(true), true),
    ];
    assert_eq!(ranked, wanted);
    assert_eq!(found[0].describe(), format!("{SIGNED} 6.8.0-142.151+1"));
    assert_eq!((found[0].flavour, found[0].kernel.clone()), (Flavour::Open, kernel()));
}

/// Returns the first of the packages of noble-updates and noble-security, each a version and its
/// percentage.
fn first(updates: &[(&str, &str)], security: &[(&str, &str)]) -> String {
    let text = |offered: &[(&str, &str)]| -> String {
        let stanza = |(version, phase): &(&str, &str)| {
            let mut more = depends(RELEASE, DRIVER);
            if !phase.is_empty() {
                more += &format!("Phased-Update-Percentage: {phase}\n");
            }
            stanza(SIGNED, version, &more, version.as_bytes())
        };
        offered.iter().map(stanza).collect()
    };
    let (updates, security) = (text(updates), text(security));
    let archive = Archive::of_suites(&[("noble-updates", &updates), ("noble-security", &security)]);
    let found = find(&archive, &kernel());
    format!("{} {}", found[0].package.version, found[0].package.origin.text)
}

#[rstest]
#[case::of_two(&[("6.8.0-142.151+2", "0"), ("6.8.0-142.151+1", "")], &[], "6.8.0-142.151+1 noble-updates")]
#[case::going_on(&[("6.8.0-142.151+2", "10"), ("6.8.0-142.151+1", "")], &[], "6.8.0-142.151+2 noble-updates")]
#[case::alone(&[("6.8.0-142.151+2", "0")], &[], "6.8.0-142.151+2 noble-updates")]
#[case::whole_in_security(
    &[("6.8.0-142.151+2", "0"), ("6.8.0-142.151+1", "")],
    &[("6.8.0-142.151+2", "")],
    "6.8.0-142.151+2 noble-security"
)]
#[case::whole_in_both(&[("6.8.0-142.151", "")], &[("6.8.0-142.151", "")], "6.8.0-142.151 noble-updates")]
fn an_update_that_its_archive_stopped_is_passed_over(
    #[case] updates: &[(&str, &str)],
    #[case] security: &[(&str, &str)],
    #[case] chosen: &str,
) {
    assert_eq!(first(updates, security), chosen);
}

#[rstest]
#[case::meta_package("linux-modules-nvidia-580-open-generic")]
#[case::another_release("linux-modules-nvidia-580-open-6.8.0-141-generic")]
#[case::a_longer_release("linux-modules-nvidia-580-open-6.8.0-142-generic64")]
#[case::the_kernels_own("linux-modules-extra-6.8.0-142-generic")]
#[case::signatures("linux-signatures-nvidia-6.8.0-142-generic")]
#[case::objects_to_link("linux-objects-nvidia-580-server-6.8.0-142-generic")]
#[case::debug_symbols("linux-modules-nvidia-580-open-6.8.0-142-generic-dbgsym")]
fn other_packages_are_not_offered(#[case] name: &str) {
    assert_eq!(found(&offering(name, "6.8.0-142.151", DRIVER)), []);
}

#[test]
fn modules_that_are_linked_first_or_state_no_driver_are_left_out() {
    let linked = format!(
        "Depends: linux-objects-nvidia-580-{RELEASE} (= 1), nvidia-kernel-common-580 (>= {DRIVER})\n"
    );
    let linked = stanza(&format!("linux-modules-nvidia-580-{RELEASE}"), "6.8.0-1", &linked, b"a");
    let silent = stanza(SIGNED, "6.8.0-142.151", "", b"b");
    assert_eq!(found(&(linked + &silent)), []);
}

const OF_OBJECTS: &str = "linux-modules-nvidia-580-6.8.0-142-generic";
const OBJECTS: &str = "linux-objects-nvidia-580-6.8.0-142-generic";
const SIGNATURES: &str = "linux-signatures-nvidia-6.8.0-142-generic";
const VERSION: &str = "6.8.0-142.151";

/// The stanzas of modules that are linked from objects, of these and their signatures, and of a linker.
fn linked_packages() -> [(&'static str, String); 4] {
    let depends = format!(
        "Depends: {OBJECTS} (= {VERSION}), {SIGNATURES} (= {VERSION}), \
         nvidia-kernel-common-580 (>= {DRIVER})\n"
    );
    let of = |name: &str, version: &str, more: &str| stanza(name, version, more, name.as_bytes());
    [
        (OF_OBJECTS, of(OF_OBJECTS, VERSION, &depends)),
        (OBJECTS, of(OBJECTS, VERSION, "Depends: binutils\n") + &of(OBJECTS, "6.8.0-142.152", "")),
        (SIGNATURES, of(SIGNATURES, VERSION, "")),
        (
            "binutils",
            of("binutils", "2.42-4ubuntu2.3", "Depends: libc6\n") + &of("libc6", "2.39", ""),
        ),
    ]
}

#[test]
fn proprietary_modules_are_linked_from_objects() {
    let index: String = linked_packages().map(|(_, stanza)| stanza).concat();
    let whole = offering(SIGNED, VERSION, DRIVER);
    let found = found(&(index + &whole));
    let names: Vec<_> = found.iter().map(|one| one.package.name.as_str()).collect();
    assert_eq!(names, [SIGNED, OF_OBJECTS]);
    let one = &found[1];
    assert_eq!((one.flavour, one.may_be_signed), (Flavour::Proprietary, true));
    let linked = one.linked.as_ref().expect("linked");
    let described = format!("linked from {OBJECTS} {VERSION} with ld of binutils 2.42-4ubuntu2.3");
    assert_eq!(linked.describe(), described);
    let linker: Vec<_> = linked.linker.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(linker, ["binutils", "libc6"]);
    let ids = [OF_OBJECTS, OBJECTS, SIGNATURES].map(|name| format!("{name}_{VERSION}_amd64"));
    assert_eq!(one.digests().into_keys().collect::<Vec<_>>(), ids);
}

#[rstest]
#[case::objects(OBJECTS)]
#[case::signatures(SIGNATURES)]
#[case::linker("binutils")]
fn modules_without_what_they_are_linked_from_are_left_out(#[case] missing: &str) {
    let packages = linked_packages().into_iter().filter(|(name, _)| *name != missing);
    let index: String = packages.map(|(_, stanza)| stanza).collect();
    assert_eq!(found(&index), []);
}

/// The release of NVIDIA's own kernel flavour contains the word that tells the driver's packages.
#[test]
fn a_release_with_nvidia_in_it_is_no_driver() {
    let release = "6.8.0-1055-nvidia";
    let offer = |part: &str| offering(&format!("{part}-{release}"), "6.8.0-1055.58", DRIVER);
    let index =
        offer("linux-modules") + &offer("linux-headers") + &offer("linux-modules-nvidia-580-open");
    let kernel = Kernel { release: release.into(), version: "#58-Ubuntu SMP".into() };
    let found = find(&Archive::of_suites(&[("noble-updates", &index)]), &kernel);
    let names: Vec<&str> = found.iter().map(|one| one.package.name.as_str()).collect();
    assert_eq!(names, ["linux-modules-nvidia-580-open-6.8.0-1055-nvidia"]);
}

#[rstest]
#[case::depends("6.8.0-142.151", "Depends: nvidia-kernel-common-580 (>= 580.173.02)\n")]
#[case::provides("6.8.0-142.151", "Provides: nvidia-modules (= 580.173.02-0ubuntu1)\n")]
#[case::its_own("580.173.02+6.8.0-142-1", "")]
#[case::the_higher("570.1.2-1", "Depends: nvidia-kernel-common-580 (= 580.173.02-1)\n")]
fn a_driver_version_is_stated_in_several_ways(#[case] version: &str, #[case] more: &str) {
    let found = found(&stanza(SIGNED, version, more, b""));
    assert_eq!(found[0].driver_version, DRIVER);
}

#[rstest]
#[case::ubuntu("#151-Ubuntu SMP", "6.8.0-142.151", Some(true))]
#[case::rebuilt("#151-Ubuntu SMP", "6.8.0-142.151+1", Some(true))]
#[case::another_upload("#151-Ubuntu SMP", "6.8.0-142.150", Some(false))]
#[case::another_release("#151-Ubuntu SMP", "6.8.0-142.151~22.04.1", Some(false))]
#[case::kernel_rebuilt("#15~24.04.1+1-Ubuntu SMP", "6.8.0-142.15~24.04.1+1", Some(true))]
#[case::backported("#151~22.04.1-Ubuntu SMP", "6.8.0-142.151~22.04.1+1", Some(true))]
#[case::named_otherwise("#151-Ubuntu SMP", "580.173.02-1", None)]
#[case::debian("#1 SMP PREEMPT_DYNAMIC Debian 6.8.7-1 (2026-07-02)", "580.1+6.8.7-1", Some(true))]
#[case::debians_other("#1 SMP PREEMPT_DYNAMIC Debian 6.8.7-2 (2026-07-02)", "580.1+6.8.7-1", None)]
#[case::unknown("1", "6.8.0-142.151", None)]
fn the_kernels_build_is_told_by_the_version(
    #[case] of_kernel: &str,
    #[case] version: &str,
    #[case] wanted: Option<bool>,
) {
    let kernel = Kernel { version: of_kernel.into(), ..kernel() };
    assert_eq!(stanza::names_build(version, &kernel), wanted);
}

fn modules() -> Modules<'static> {
    let dir = "lib/modules/6.8.0-142-generic/kernel/nvidia-580-open";
    Modules { dir, driver: DRIVER, magic: MAGIC, crcs: &[], signed: true }
}

/// Reads a package with these entries.
fn read_of(entries: &[SampleEntry]) -> (tempfile::TempDir, Store, Result<ModuleSet, Failure>) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let store = Store::open(dir.path(), Disk::default()).expect("store");
    let deb = deb(entries);
    store.put(&deb).expect("stored");
    let found = found(&stanza(SIGNED, "6.8.0-142.151+1", &depends(RELEASE, DRIVER), &deb));
    let set = read(&found[0], &store);
    (dir, store, set)
}

#[rstest]
#[case::as_it_was("lib")]
#[case::merged("usr/lib")]
fn modules_become_a_set_of_the_kernel(#[case] lib: &str) {
    let dir = format!("{lib}/modules/{RELEASE}/kernel/nvidia-580-open");
    let entries = Modules { dir: &dir, ..modules() }.entries();
    let (_dir, store, set) = read_of(&entries);
    let set = set.expect("a set");
    let key = &set.key;
    assert_eq!((key.driver_version.as_str(), key.flavour), (DRIVER, Flavour::Open));
    assert_eq!((key.kernel_release.as_str(), &key.kernel_version), (RELEASE, &kernel().version));
    assert_eq!(set.headers_from, HeadersFrom::Package);
    let package = format!("{SIGNED}_6.8.0-142.151+1_amd64");
    assert_eq!(key.headers, [(package, key.driver_digest.clone())].into());
    let signer = key.signed_by.as_ref().expect("signed");
    assert!(!signer.has_certificate() && signer.name.ends_with("Module signing"), "{signer}");
    assert_eq!(set.modules.len(), 5);
    assert!(set.modules.iter().all(|module| store.has_blob(&module.sha256)));
}

#[test]
fn compressed_modules_are_decompressed() {
    let pack = |entry: SampleEntry| match entry {
        SampleEntry::File(path, bytes) => {
            SampleEntry::File(path + ".zst", zstd::encode_all(&bytes[..], 1).expect("packed"))
        }
        other => other,
    };
    let plain = modules().entries();
    let (_dir, _, set) = read_of(&plain.iter().cloned().map(pack).collect::<Vec<_>>());
    let (_other, _, wanted) = read_of(&plain);
    assert_eq!(set.expect("a set").modules, wanted.expect("a set").modules);
}

#[test]
fn unsigned_modules_have_no_signer() {
    let (_dir, _, set) = read_of(&Modules { signed: false, ..modules() }.entries());
    assert_eq!(set.expect("a set").key.signed_by, None);
}

fn path_of(file: &str) -> String {
    format!("./{}/{file}", modules().dir)
}

#[rstest]
#[case::no_nvidia(|all: &mut Vec<SampleEntry>| all.retain(|e| !matches!(e, SampleEntry::File(p, _) if p.ends_with("nvidia.ko"))), "no nvidia.ko")]
#[case::of_another_kernel(|all: &mut Vec<SampleEntry>| *all = Modules { magic: "6.8.0-141-generic SMP ", ..modules() }.entries(), "6.8.0-141-generic")]
#[case::in_another_place(|all: &mut Vec<SampleEntry>| *all = Modules { dir: "lib/modules/6.8.0-141-generic", ..modules() }.entries(), "no nvidia.ko")]
#[case::huge(|all: &mut Vec<SampleEntry>| all.push(SampleEntry::Claimed("./usr/big".into(), 64 << 30)), "more than 512 MiB")]
#[case::link(|all: &mut Vec<SampleEntry>| all[0] = SampleEntry::Link(path_of("nvidia.ko"), "/etc/passwd".into()), "no regular file")]
#[case::twice(|all: &mut Vec<SampleEntry>| all.push(SampleEntry::File(path_of("deeper/nvidia.ko"), Vec::new())), "nvidia.ko twice")]
#[case::no_module(|all: &mut Vec<SampleEntry>| all[1] = SampleEntry::File(path_of("nvidia-uvm.ko"), b"text".into()), "nvidia-uvm.ko")]
#[case::partly_signed(|all: &mut Vec<SampleEntry>| all[1] = SampleEntry::File(path_of("nvidia-uvm.ko"), Modules { signed: false, ..modules() }.image("nvidia_uvm")), "not signed as nvidia.ko is")]
fn anything_else_is_refused(#[case] change: fn(&mut Vec<SampleEntry>), #[case] why: &str) {
    let mut entries = modules().entries();
    change(&mut entries);
    let (_dir, store, set) = read_of(&entries);
    let failure = set.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    let text = failure.to_string();
    assert!(text.contains(why) && text.contains("linux-modules-nvidia-580-open"), "{text}");
    assert_eq!(std::fs::read_dir(store.dir("tmp")).expect("listed").count(), 0);
}

#[test]
fn a_damaged_signature_is_none_that_a_kernel_takes() {
    let mut entries = Modules { signed: false, ..modules() }.entries();
    for entry in &mut entries {
        let SampleEntry::File(_, bytes) = entry else { continue };
        *bytes = longshore_modules::module_signing::appended::append(bytes, &SIGNATURE[..99]);
    }
    let (_dir, _, set) = read_of(&entries);
    let failure = set.expect_err("refused");
    assert!(failure.to_string().contains("the signature of nvidia.ko"), "{failure}");
}
