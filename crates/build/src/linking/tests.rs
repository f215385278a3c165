//! Links with this machine's ld, outside of the sandbox; tests/tests/linking.rs has those in the sandbox.

use std::process::Command;

use rstest::rstest;

use super::*;
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_core::flavour::Flavour;
use longshore_modules::testing::SIGNATURE;
use longshore_sources::finished::sample::{self, SampleEntry, deb, depends, stanza};
use longshore_sources::finished::{Kernel, find};

const DRIVER: &str = "580.173.02";
const RELEASE: &str = "6.8.0-142-generic";
const DIR: &str = "lib/modules/6.8.0-142-generic/kernel/nvidia-580srv";
const MODULES: &str = "linux-modules-nvidia-580-server-6.8.0-142-generic";
const OBJECTS: &str = "linux-objects-nvidia-580-server-6.8.0-142-generic";
const SIGNATURES: &str = "linux-signatures-nvidia-6.8.0-142-generic";
const VERSION: &str = "6.8.0-142.151";

fn sample() -> sample::Objects<'static> {
    let magic = "6.8.0-142-generic SMP preempt mod_unload modversions ";
    sample::Objects { dir: DIR, driver: DRIVER, magic, crcs: &[("module_layout", 7)] }
}

/// Runs link commands with this machine's ld, in `bits`.
fn link(commands: &[LinkCommand], bits: &Path) {
    for command in commands {
        let mut ld = Command::new("ld.bfd");
        let output = ld.args(&command.arguments).current_dir(bits).output().expect("ld runs");
        assert!(output.status.success(), "{output:?}");
    }
}

/// Returns the SHA256SUMS of the sample's modules, linked by the commands as they stand in its script.
fn sums() -> String {
    sample().sums(|bits| {
        let script = sample().script();
        for line in script.lines().filter_map(|line| line.strip_prefix("/usr/bin/ld.bfd ")) {
            let mut ld = Command::new("ld.bfd");
            let output = ld.args(line.split(' ')).current_dir(bits).output().expect("ld runs");
            assert!(output.status.success(), "{output:?}");
        }
    })
}

/// A store with these packages of objects and signatures, and the modules that are found in their index.
struct Scene {
    dir: tempfile::TempDir,
    store: Store,
    of: FinishedModules,
}

impl Scene {
    fn new(objects: &[SampleEntry], signatures: &[SampleEntry]) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store");
        let needs = format!("{OBJECTS} (= {VERSION}), {SIGNATURES} (= {VERSION}), ");
        let of_modules =
            depends(RELEASE, DRIVER).replace("Depends: ", &format!("Depends: {needs}"));
        let packages = [
            (MODULES, of_modules.as_str(), deb(&[])),
            (OBJECTS, "Depends: binutils\n", deb(objects)),
            (SIGNATURES, "", deb(signatures)),
            ("binutils", "", deb(&[])),
        ];
        let index: String = packages
            .iter()
            .map(|(name, more, deb)| {
                store.put(deb).expect("stored");
                stanza(name, VERSION, more, deb)
            })
            .collect();
        let kernel = Kernel { release: RELEASE.into(), version: "#151-Ubuntu SMP".into() };
        let of = find(&Archive::of_suites(&[("noble", &index)]), &kernel).remove(0);
        Self { dir, store, of }
    }

    /// Unpacks, links with this machine's ld, and stores the modules.
    fn linked(&self) -> Result<ModuleSet, Failure> {
        let (build, modules) = (self.dir.path().join("build"), self.dir.path().join("modules"));
        for dir in [&build.join(BITS), &modules] {
            fs::create_dir_all(dir).expect("directory");
        }
        let from = self.of.linked.as_ref().expect("linked");
        let objects = objects::unpack(&self.of, from, &self.store, &build.join(BITS))?;
        link(&objects.commands, &build.join(BITS));
        take(&self.of, &objects, &build, &modules)?;
        finished::store_from(&modules, &self.of, &self.store)
    }
}

#[test]
fn objects_link_to_the_modules_with_the_stated_digests_and_are_signed() {
    let scene = Scene::new(&sample().entries(&sums()), &sample().signatures());
    let set = scene.linked().expect("a set");
    let key = &set.key;
    assert_eq!((key.driver_version.as_str(), key.flavour), (DRIVER, Flavour::Proprietary));
    assert_eq!(key.headers, scene.of.digests());
    assert_eq!(key.options, [format!("linked-with=binutils {VERSION}")]);
    assert!(key.signed_by.is_some());
    assert_eq!(set.modules.len(), 5);
    for module in &set.modules {
        let image = scene.store.read_blob(&module.sha256).expect("stored");
        assert!(image.ends_with(b"~Module signature appended~\n"), "{}", module.file);
    }
}

/// The linker is a part of the key, and so are all packages.
#[test]
fn another_package_or_linker_is_another_key() {
    let sums = sums();
    let key = |signatures: &[SampleEntry]| {
        Scene::new(&sample().entries(&sums), signatures).linked().expect("a set").key
    };
    let mut more = sample().signatures();
    more.push(SampleEntry::File("./usr/share/doc/x".into(), Vec::new()));
    let (one, other) = (key(&sample().signatures()), key(&more));
    assert_eq!(one.driver_digest, other.driver_digest);
    assert_ne!(one.digest(), other.digest());
}

fn path_of(name: &str) -> String {
    format!("./{DIR}/bits/{name}")
}

fn without(entries: &mut Vec<SampleEntry>, name: &str) {
    let path = path_of(name);
    entries.retain(|entry| !matches!(entry, SampleEntry::File(one, _) if *one == path));
}

fn replace(entries: &mut Vec<SampleEntry>, name: &str, bytes: impl Into<Vec<u8>>) {
    without(entries, name);
    entries.push(SampleEntry::File(path_of(name), bytes.into()));
}

type Change = fn(&mut Vec<SampleEntry>, &mut Vec<SampleEntry>);

#[rstest]
#[case::no_digests(|objects: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| without(objects, "SHA256SUMS"), "no SHA256SUMS")]
#[case::empty_digests(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| replace(o, "SHA256SUMS", ""), "no module of the driver")]
#[case::other_digest(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| replace(o, "SHA256SUMS", sums().replace(&sums()[..8], "00000000")), "SHA256SUMS states 00000000")]
#[case::digest_of_one_module_more(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| replace(o, "BUILD", "ld -r -o nvidia.ko nvidia/interface.o nvidia.mod.o"), "no link command makes")]
#[case::module_without_digest(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| replace(o, "SHA256SUMS", sums().split_once('\n').expect("lines").1), "has no nvidia.ko")]
#[case::changed_object(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| replace(o, "nvidia.mod.o", longshore_modules::testing::symbols::with_info("", &[("module_layout", 8)])), "SHA256SUMS states")]
#[case::no_script(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| without(o, "BUILD"), "no BUILD")]
#[case::hostile_script(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| replace(o, "BUILD", "ld -r -o nvidia.ko /etc/shadow"), "/etc/shadow")]
#[case::linked_object(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| o.push(SampleEntry::Link(path_of("x.o"), "/etc/shadow".into())), "no regular file")]
#[case::object_twice(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| o.push(SampleEntry::File(path_of("nvidia.mod.o"), Vec::new())), "nvidia.mod.o twice")]
#[case::file_as_a_directory(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| o.push(SampleEntry::File(path_of("nvidia.mod.o/x"), Vec::new())), "twice")]
#[case::two_drivers(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| o.push(SampleEntry::File(path_of("x.o").replace("580srv", "580"), Vec::new())), "two directories")]
#[case::no_objects(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| o.clear(), "no objects")]
#[case::huge(|o: &mut Vec<SampleEntry>, _: &mut Vec<SampleEntry>| o.push(SampleEntry::Claimed("./usr/x".into(), 64 << 30)), "more than 1024 MiB")]
#[case::a_missing_signature(|_: &mut Vec<SampleEntry>, s: &mut Vec<SampleEntry>| without(s, "nvidia-uvm.ko.sig"), "not signed as nvidia.ko is")]
#[case::no_signature(|_: &mut Vec<SampleEntry>, s: &mut Vec<SampleEntry>| replace(s, "nvidia.ko.sig", "text"), "the signature of nvidia.ko")]
#[case::signature_of_another_length(|_: &mut Vec<SampleEntry>, s: &mut Vec<SampleEntry>| replace(s, "nvidia.ko.sig", longshore_modules::module_signing::appended::append(b"more", SIGNATURE)[..].to_vec()), "another length")]
#[case::signature_twice(|_: &mut Vec<SampleEntry>, s: &mut Vec<SampleEntry>| s.push(SampleEntry::File(path_of("nvidia.ko.sig"), Vec::new())), "two signatures")]
fn anything_else_is_refused(#[case] change: Change, #[case] why: &str) {
    let (mut objects, mut signatures) = (sample().entries(&sums()), sample().signatures());
    change(&mut objects, &mut signatures);
    let failure = Scene::new(&objects, &signatures).linked().expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains(why), "{failure}");
}

#[rstest]
#[case::none(Vec::new())]
#[case::of_another_driver({
    let other = sample::Objects { dir: "lib/modules/6.8.0-142-generic/kernel/nvidia-570srv", ..sample() };
    other.signatures()
})]
fn modules_without_signatures_are_unsigned(#[case] signatures: Vec<SampleEntry>) {
    let scene = Scene::new(&sample().entries(&sums()), &signatures);
    assert_eq!(scene.linked().expect("a set").key.signed_by, None);
}

#[test]
fn a_bare_message_is_appended_as_sign_file_does() {
    let mut signatures = sample().signatures();
    replace(&mut signatures, "nvidia.ko.sig", SIGNATURE);
    let sums = sums();
    let bare = Scene::new(&sample().entries(&sums), &signatures).linked().expect("a set");
    let whole = Scene::new(&sample().entries(&sums), &sample().signatures()).linked();
    assert_eq!(bare.modules, whole.expect("a set").modules);
}
