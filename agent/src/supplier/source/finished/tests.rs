use std::fs;

use rstest::rstest;

use super::*;
use crate::plan::{Acquire, Plan};
use crate::provider::Provider;
use crate::supplier::test_scene::{DRIVER, Scene};
use longshore_core::failure::ExitCode;
use longshore_debian::archive::Archive;
use longshore_modules::artifact::HeadersFrom;
use longshore_sources::finished::sample::{Modules, Objects, SampleEntry, deb, depends, stanza};

const RELEASE: &str = "6.1.0-50-amd64";
const MAGIC: &str = "6.1.0-50-amd64 SMP preempt mod_unload modversions ";
const DIR: &str = "lib/modules/6.1.0-50-amd64/kernel/nvidia-535-open";
const CRCS: [(&str, u32); 2] = [("module_layout", 0x1111), ("vmap", 0x2222)];
const OTHER_CRCS: [(&str, u32); 2] = [("module_layout", 0x1111), ("vmap", 0x3333)];

fn modules() -> Modules<'static> {
    Modules { dir: DIR, driver: DRIVER, magic: MAGIC, crcs: &CRCS, signed: false }
}

/// A host with headers, and an archive with these packages: name and entries.
struct Offering {
    scene: Scene,
    index: String,
}

impl Offering {
    fn new(packages: &[(&str, Vec<SampleEntry>)]) -> Self {
        Self::for_kernel(RELEASE, packages)
    }

    fn for_kernel(release: &str, packages: &[(&str, Vec<SampleEntry>)]) -> Self {
        let mut scene = Scene::new("bookworm-t4");
        let headers = scene.dir.path().join("headers");
        fs::create_dir_all(&headers).expect("a directory");
        let line = |(symbol, crc): &(&str, u32)| format!("{crc:#010x}\t{symbol}\tvmlinux\tE\t\n");
        fs::write(headers.join("Module.symvers"), CRCS.iter().map(line).collect::<String>())
            .expect("written");
        scene.config.headers.push(headers);
        scene.put_tree();
        let stanza = |(name, entries): &(&str, Vec<SampleEntry>)| {
            let deb = deb(entries);
            scene.store().put(&deb).expect("stored");
            stanza(&format!("{name}-{release}"), "1", &depends(release, DRIVER), &deb)
        };
        let index = packages.iter().map(stanza).collect();
        Self { scene, index }
    }

    fn provisioner(&self) -> Provisioner<'_> {
        let provisioner = Provisioner::new(&self.scene.config);
        let archive = Archive::of_suites(&[("noble-updates", &self.index)]);
        provisioner.inventory.sources.archive.set(archive).expect("not read yet");
        provisioner
    }
}

async fn planned(provisioner: &Provisioner<'_>) -> Plan {
    let gathered = provisioner.gather().await.expect("gathered");
    provisioner.plan(&gathered).expect("a plan")
}

#[tokio::test]
async fn finished_modules_become_the_stores_set() {
    let offering = Offering::new(&[("linux-modules-nvidia-535-open", modules().entries())]);
    let provisioner = offering.provisioner();
    let plan = planned(&provisioner).await;
    assert!(matches!(plan.acquire[..], [Acquire::Fetch(Item::Package(_))]), "{:?}", plan.acquire);
    provisioner.acquire(&plan).await.expect("acquired");
    for again in [&provisioner, &offering.provisioner()] {
        let plan = planned(again).await;
        assert!(plan.acquire.is_empty() && plan.exact, "{:?}", plan.acquire);
    }
    let sets = offering.scene.store().sets().expect("sets");
    let origins: Vec<HeadersFrom> = sets.iter().map(|set| set.headers_from).collect();
    assert_eq!(origins, [HeadersFrom::Package]);
}

#[tokio::test]
async fn fetch_takes_them_too_and_a_switched_off_source_is_not_used() {
    let mut offering = Offering::new(&[("linux-modules-nvidia-535-open", modules().entries())]);
    let (set, _) = offering.provisioner().fetch(None).await.expect("fetched");
    assert_eq!((set.headers_from, set.modules.len()), (HeadersFrom::Package, 5));
    offering.scene.config.module_packages = false;
    let plan = planned(&offering.provisioner()).await;
    assert!(plan.refusal().is_some(), "{:?}", plan.reasons);
}

const OTHER: &str = "6.1.0-51-amd64";

/// Returns a package's modules for a kernel that does not run here.
fn for_other(crcs: &'static [(&'static str, u32)]) -> Vec<SampleEntry> {
    let (dir, magic) = (
        "lib/modules/6.1.0-51-amd64/kernel/nvidia",
        "6.1.0-51-amd64 SMP preempt mod_unload modversions ",
    );
    Modules { dir, magic, crcs, ..modules() }.entries()
}

/// Only the release of another kernel is known; its build is compared on the host that runs it.
#[tokio::test]
async fn fetch_for_another_kernel_takes_a_package_of_its_release() {
    let packages = [("linux-modules-nvidia-535-open", for_other(&CRCS))];
    let offering = Offering::for_kernel(OTHER, &packages);
    for _ in 0..2 {
        let (set, _) = offering.provisioner().fetch(Some(OTHER)).await.expect("fetched");
        let key = &set.key;
        assert_eq!((key.kernel_release.as_str(), key.kernel_build()), (OTHER, None));
        assert_eq!(set.headers_from, HeadersFrom::Package);
    }
    let sets = offering.scene.store().sets().expect("sets");
    assert_eq!(sets.len(), 1, "{sets:?}");
    let mut kernel = offering.scene.facts().kernel;
    assert!(!sets[0].key.is_for(&kernel.id()), "it is not for the running kernel");
    OTHER.clone_into(&mut kernel.release);
    assert!(sets[0].key.is_for(&kernel.id()), "it is for that kernel once it runs");
}

#[tokio::test]
async fn a_package_for_another_kernel_is_compared_with_its_headers() {
    let packages = [("linux-modules-nvidia-535-open", for_other(&OTHER_CRCS))];
    let offering = Offering::for_kernel(OTHER, &packages);
    let failure = offering.provisioner().fetch(Some(OTHER)).await.expect_err("it differs");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.one_line().contains("vmap wants 0x00003333"), "{}", failure.one_line());
}

/// The stanzas of proprietary modules that are linked from these objects, with an empty linker's package.
fn linked(scene: &Scene, objects: &[SampleEntry]) -> String {
    let name = |kind: &str| format!("linux-{kind}-nvidia-535-{RELEASE}");
    let signatures = format!("linux-signatures-nvidia-{RELEASE}");
    let needs = format!("Depends: {}, {signatures}, ", name("objects"));
    let packages = [
        (name("modules"), depends(RELEASE, DRIVER).replace("Depends: ", &needs), deb(&[])),
        (name("objects"), "Depends: binutils\n".to_owned(), deb(objects)),
        (signatures, String::new(), deb(&[])),
        ("binutils".to_owned(), String::new(), deb(&[])),
    ];
    let stanzas = packages.iter().map(|(name, more, deb)| {
        scene.store().put(deb).expect("stored");
        stanza(name, "1", more, deb)
    });
    stanzas.collect()
}

/// No script of a package is run; one that the reader refuses leaves no set, and the next source is used.
#[rstest]
#[case::hostile("ld.bfd -r -o ../nvidia.ko /etc/shadow", "/etc/shadow")]
#[case::no_commands("touch /tmp/ran", "no link command")]
#[case::no_linker("ld.bfd -r -o ../nvidia.ko nvidia.mod.o", "has no /usr/bin/ld.bfd")]
#[tokio::test]
async fn objects_that_cannot_be_linked_are_followed_by_the_next_package(
    #[case] script: &str,
    #[case] why: &str,
) {
    let mut offering = Offering::new(&[("linux-modules-nvidia-535-open", modules().entries())]);
    let whole = std::mem::take(&mut offering.index);
    let dir = "lib/modules/6.1.0-50-amd64/kernel/nvidia-535";
    let sample = Objects { dir, driver: DRIVER, magic: MAGIC, crcs: &CRCS };
    let sums = format!("{}  nvidia.ko\n", "0".repeat(64));
    let mut objects = sample.entries(&sums);
    let is_script = |entry: &SampleEntry| matches!(entry, SampleEntry::File(path, _) if path.ends_with("BUILD"));
    objects.retain(|entry| !is_script(entry));
    objects.push(SampleEntry::File(format!("{dir}/bits/BUILD"), script.into()));
    offering.index = linked(&offering.scene, &objects);
    {
        let alone = offering.provisioner();
        let plan = planned(&alone).await;
        assert!(
            matches!(plan.acquire[..], [Acquire::Fetch(Item::Package(_))]),
            "{:?}",
            plan.acquire
        );
        let failure = alone.acquire(&plan).await.expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.one_line().contains(why), "{}", failure.one_line());
        assert!(offering.scene.store().sets().expect("sets").is_empty());
    }
    offering.index.push_str(&whole);
    let provisioner = offering.provisioner();
    provisioner.acquire(&planned(&provisioner).await).await.expect("the whole modules");
    assert_eq!(offering.scene.store().sets().expect("sets").len(), 1);
}

/// Another build of the same release has other symbols: found before anything is loaded.
#[tokio::test]
async fn a_package_of_another_build_is_followed_by_the_next() {
    let other = Modules { crcs: &OTHER_CRCS, ..modules() };
    let offering = Offering::new(&[
        ("linux-modules-nvidia-535-open", other.entries()),
        ("linux-modules-nvidia-535-server-open", modules().entries()),
    ]);
    let provisioner = offering.provisioner();
    provisioner.acquire(&planned(&provisioner).await).await.expect("acquired");
    let sets = offering.scene.store().sets().expect("sets");
    let packages: Vec<&String> = sets.iter().flat_map(|set| set.key.headers.keys()).collect();
    assert_eq!(packages, ["linux-modules-nvidia-535-server-open-6.1.0-50-amd64_1_amd64"]);
}

#[rstest]
#[case::other_symbols(Modules { crcs: &OTHER_CRCS, ..modules() }.entries(), "vmap wants 0x00003333")]
#[case::another_release(Modules { magic: "6.1.0-49-amd64 SMP ", ..modules() }.entries(), "6.1.0-49-amd64")]
#[case::too_few(modules().entries()[..1].to_vec(), "no nvidia_uvm")]
#[case::none(Vec::new(), "no nvidia.ko")]
#[case::link(vec![SampleEntry::Link(format!("{DIR}/nvidia.ko"), "/etc/passwd".into())], "no regular file")]
#[case::huge(vec![SampleEntry::Claimed("usr/big".into(), 64 << 30)], "more than 512 MiB")]
#[tokio::test]
async fn a_package_that_does_not_fit_is_the_reason_where_no_source_is_left(
    #[case] entries: Vec<SampleEntry>,
    #[case] why: &str,
) {
    let offering = Offering::new(&[("linux-modules-nvidia-535-open", entries)]);
    let provisioner = offering.provisioner();
    let plan = planned(&provisioner).await;
    let failure = provisioner.acquire(&plan).await.expect_err("it does not fit");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.one_line().contains(why), "{}", failure.one_line());
    assert!(failure.one_line().contains("linux-modules-nvidia-535-open-6.1.0-50-amd64"));
    assert!(offering.scene.store().sets().expect("sets").is_empty());
    // The plan is then one without the package.
    let again = planned(&provisioner).await;
    assert!(!again.acquire.iter().any(|a| matches!(a, Acquire::Fetch(Item::Package(_)))));
}
