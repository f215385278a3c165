use std::fs;

use rstest::rstest;

use super::*;
use crate::catalog::SetPlace;
use crate::config::{self, Fragment};
use crate::plan;
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_core::finding::Code;
use longshore_core::flavour::Flavour;
use longshore_core::paths::Paths;
use longshore_modules::artifact::{HeadersFrom, ModuleEntry};
use longshore_modules::sets::SetStore;
use longshore_modules::testing::symbols::module;

const RELEASE: &str = "6.1.0-50-amd64";
const MAGIC: &str = "6.1.0-50-amd64 SMP preempt mod_unload modversions ";
const KERNEL: [(&str, u32); 3] = [("module_layout", 0x1111), ("vmap", 0x2222), ("kfree", 0x3333)];

/// A host with modules of its own, and a set in the store that was compiled on another machine.
struct Scene {
    dir: tempfile::TempDir,
    config: Config,
    facts: HostFacts,
    store: Store,
}

impl Scene {
    fn new(images: &[(&str, Vec<u8>)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bookworm-t4");
        let mut facts = HostFacts::read(&fixture, &fixture).unwrap();
        assert_eq!(facts.kernel.release, RELEASE);
        let own = ["kernel/drivers/gpu/drm/drm.ko.xz", "kernel/fs/a.ko", "updates/dkms/b.ko"];
        facts.available = own.map(|file| format!("{file}:\n")).concat().into();
        let mut config = config::load(Fragment::default(), &|_| None, None).unwrap();
        config.paths = Paths { root: "/".into(), ..Paths::below(dir.path()) };
        let store = Store::open(&config.paths.store, Disk::default()).unwrap();
        let mut set = longshore_modules::testing::set();
        let (key, kernel) = (&mut set.key, &facts.kernel);
        (key.driver_version, key.flavour) = ("535.261.03".into(), Flavour::Proprietary);
        key.kernel_release = kernel.release.clone();
        key.kernel_version = kernel.version.clone();
        key.arch = kernel.arch.clone();
        let entry = |(file, image): &(&str, Vec<u8>)| {
            store.put(image).unwrap();
            ModuleEntry::describe(file, image, RELEASE).unwrap()
        };
        set.modules = images.iter().map(entry).collect();
        store.put_set(&set).unwrap();
        Self { dir, config, facts, store }
    }

    /// Makes the set of three modules, `nvidia.ko` with these CRCs and options.
    fn with_symbols(magic: &str, crcs: &[(&str, u32)]) -> Self {
        Self::new(&[
            ("nvidia.ko", module("nvidia", magic, crcs)),
            ("nvidia-uvm.ko", module("nvidia_uvm", MAGIC, &[("nvidia_own", 0x9999)])),
            ("nvidia-modeset.ko", module("nvidia_modeset", MAGIC, &KERNEL)),
        ])
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn with_headers(self, crcs: &[(&str, u32)]) -> Self {
        let line = |(symbol, crc): &(&str, u32)| format!("{crc:#010x}\t{symbol}\tvmlinux\tE\t\n");
        let text: String = crcs.iter().map(line).collect();
        self.write(&format!("usr/src/h/{RELEASE}/Module.symvers"), text.as_bytes());
        let build = self.dir.path().join(format!("lib/modules/{RELEASE}/build"));
        fs::create_dir_all(build.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(format!("/usr/src/h/{RELEASE}"), build).unwrap();
        self
    }

    fn with_own_modules(self, crcs: &[(&str, u32)]) -> Self {
        use std::io::Write;
        let mut packed = liblzma::write::XzEncoder::new(Vec::new(), 1);
        packed.write_all(&module("drm", MAGIC, &crcs[..1])).unwrap();
        let own = |file: &str| format!("lib/modules/{RELEASE}/{file}");
        self.write(&own("kernel/drivers/gpu/drm/drm.ko.xz"), &packed.finish().unwrap());
        self.write(&own("kernel/fs/a.ko"), &module("a", MAGIC, crcs));
        let foreign = [("vmap", 0x7777)];
        self.write(&own("updates/dkms/b.ko"), &module("b", "other", &foreign));
        self
    }

    fn sets(&self) -> Vec<AvailableSet> {
        let sets = self.store.sets().unwrap().into_iter();
        sets.map(|set| AvailableSet { set, place: SetPlace::store() }).collect()
    }

    fn fit(&self) -> Option<Fit> {
        fits_of(&self.config, &self.facts, &self.store, &self.sets()).into_values().next()
    }
}

/// The next build of the same release may have other symbols.
#[test]
fn a_set_for_an_unknown_build_is_compared_each_time() {
    let scene = Scene::with_symbols(MAGIC, &KERNEL).with_headers(&KERNEL);
    let mut set = scene.store.sets().unwrap().remove(0);
    set.key.kernel_version.clear();
    set.headers_from = HeadersFrom::Package;
    scene.store.put_set(&set).unwrap();
    let name = set.key.file_stem();
    let fit = || fits_of(&scene.config, &scene.facts, &scene.store, &scene.sets()).remove(&name);
    assert!(matches!(fit(), Some(Fit::Fits { .. })), "{:?}", fit());
    let other = "0x00001111\tmodule_layout\tvmlinux\tE\t\n0xbad00bad\tvmap\tvmlinux\tE\t\n";
    scene.write(&format!("usr/src/h/{RELEASE}/Module.symvers"), other.as_bytes());
    assert!(matches!(fit(), Some(Fit::Differs { .. })), "{:?}", fit());
}

const TAMPERED: [(&str, u32); 3] =
    [("module_layout", 0x1111), ("vmap", 0xbad0_0bad), ("kfree", 0x3333)];

fn line_of(symbol: &str) -> String {
    format!("nvidia.ko: {symbol} wants 0xbad00bad, the kernel has 0x00002222")
}

#[rstest]
#[case::headers(|scene: Scene| scene.with_headers(&KERNEL), "Module.symvers")]
#[case::own_modules(|scene: Scene| scene.with_own_modules(&KERNEL), "the host's own modules")]
#[case::both(|scene: Scene| scene.with_headers(&KERNEL).with_own_modules(&KERNEL), "symvers")]
fn a_module_with_another_crc_is_found_and_named(
    #[case] host: fn(Scene) -> Scene,
    #[case] against: &str,
) {
    let scene = host(Scene::with_symbols(MAGIC, &TAMPERED));
    let Some(Fit::Differs { place, lines, more: 0 }) = scene.fit() else {
        panic!("{:?}", scene.fit())
    };
    assert!(place.contains(against), "{place}");
    assert_eq!(lines, [line_of("vmap")]);
    assert!(scene.store.known_to_fit().is_empty());
}

/// The whole plan is refused before any step. The attack is a set whose modules were compiled for
/// another build of this kernel, imported under this one's name.
#[test]
fn a_set_that_does_not_fit_refuses_the_plan_before_anything_is_touched() {
    let scene = Scene::with_symbols(MAGIC, &TAMPERED).with_headers(&KERNEL);
    let mut catalog =
        crate::catalog::gather(&scene.config, &scene.facts, Some(&scene.store), "").unwrap();
    catalog.fits = fits_of(&scene.config, &scene.facts, &scene.store, &catalog.sets);
    let plan = plan::plan(&scene.config, &scene.facts, &catalog).unwrap();
    let found = plan.findings.iter().find(|f| f.code == Code::SymbolsDiffer).expect("found");
    assert!(found.detail.contains(&line_of("vmap")), "{}", found.detail);
    assert_eq!(found.exit_code(), ExitCode::Preflight);
    assert!(plan.refusal().is_some());
}

#[test]
fn a_set_that_fits_is_remembered_and_not_looked_at_again() {
    let scene = Scene::with_symbols(MAGIC, &KERNEL).with_own_modules(&KERNEL);
    let fit = scene.fit();
    assert!(matches!(fit, Some(Fit::Fits { symbols: 3, .. })), "{fit:?}");
    assert_eq!(scene.fit(), None);
    fs::write(scene.store.dir("fits.json"), "{").unwrap();
    assert!(scene.fit().is_some(), "a damaged record is not used");
}

#[test]
fn what_was_compiled_here_is_not_looked_at() {
    let scene = Scene::with_symbols(MAGIC, &TAMPERED).with_headers(&KERNEL);
    scene.store.note_compiled(&scene.sets()[0].set);
    assert_eq!(scene.fit(), None);
}

#[test]
fn where_there_is_nothing_to_compare_with_it_says_so() {
    let scene = Scene::with_symbols(MAGIC, &TAMPERED);
    let Some(Fit::Unchecked { why }) = scene.fit() else { panic!("{:?}", scene.fit()) };
    assert!(why.contains("Module.symvers"), "{why}");
    assert!(scene.store.known_to_fit().is_empty());
}

/// A kernel without CONFIG_MODVERSIONS.
#[test]
fn without_crcs_vermagic_alone_counts() {
    let scene = Scene::new(&[("nvidia.ko", module("nvidia", MAGIC, &[]))]);
    let fit = scene.with_own_modules(&KERNEL).fit();
    assert!(matches!(fit, Some(Fit::Fits { symbols: 0, .. })), "{fit:?}");
}

#[test]
fn symbols_that_no_module_of_the_kernels_imports_are_not_said_to_be_checked() {
    let fit = Scene::with_symbols(MAGIC, &TAMPERED).with_own_modules(&[("other", 1)]).fit();
    assert!(matches!(fit, Some(Fit::Unchecked { .. })), "{fit:?}");
}

/// Headers of a later build of the same release are installed beside the running kernel.
#[test]
fn the_kernels_own_modules_count_for_more_than_headers() {
    let newer = [("module_layout", 0x1111), ("vmap", 0x4444), ("kfree", 0x3333)];
    let scene = Scene::with_symbols(MAGIC, &KERNEL).with_headers(&newer).with_own_modules(&KERNEL);
    let fit = scene.fit();
    assert!(matches!(fit, Some(Fit::Fits { .. })), "{fit:?}");
}

#[test]
fn another_vermagic_is_found() {
    let other = "6.1.0-50-amd64 SMP preempt_rt mod_unload modversions ";
    let scene = Scene::with_symbols(other, &KERNEL).with_headers(&KERNEL).with_own_modules(&KERNEL);
    let Some(Fit::Differs { lines, .. }) = scene.fit() else { panic!("{:?}", scene.fit()) };
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with("nvidia.ko: vermagic is \"6.1.0-50-amd64 SMP preempt_rt"),
        "{lines:?}"
    );
}

/// A set for another build differs in most of thousands of symbols.
#[test]
fn a_finding_stays_short() {
    let names: Vec<String> = (0..500).map(|n| format!("symbol_{n:03}")).collect();
    let crcs = |crc: u32| names.iter().map(|n| (n.as_str(), crc)).collect::<Vec<_>>();
    let scene = Scene::with_symbols(MAGIC, &crcs(1)).with_headers(&crcs(2));
    let Some(Fit::Differs { lines, more, .. }) = scene.fit() else { panic!("{:?}", scene.fit()) };
    assert_eq!((lines.len(), more), (MOST_SYMBOLS, 500 - MOST_SYMBOLS));
}
