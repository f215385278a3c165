use rstest::rstest;

use super::*;
use crate::config::{self, Fragment};
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_core::flavour::Flavour;
use longshore_modules::artifact::ModuleKey;
use longshore_sources::driver::DriverOrigin;

fn facts() -> HostFacts {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bookworm-t4");
    HostFacts::read(&tree, &tree).unwrap()
}

fn config() -> Config {
    config::load(Fragment::default(), &|_| None, None).unwrap()
}

fn set(release: &str) -> ModuleSet {
    let key = ModuleKey {
        driver_version: "535.261.03".into(),
        flavour: Flavour::Open,
        driver_digest: "0".repeat(64),
        kernel_release: release.into(),
        kernel_version: "#1".into(),
        arch: "x86_64".into(),
        headers: BTreeMap::new(),
        compiler: "gcc-12".into(),
        options: Vec::new(),
        patches: BTreeMap::new(),
        signed_by: None,
    };
    ModuleSet { key, headers_from: HeadersFrom::Archive, modules: Vec::new() }
}

#[test]
fn nothing_available_is_an_empty_catalog_that_says_why() {
    let why = "the archive was not queried";
    let catalog = gather(&config(), &facts(), None, why).unwrap();
    assert!(catalog.sets.is_empty() && catalog.userspace.is_empty());
    assert_eq!(catalog.drivers, Probe::Unreadable(why.into()));
    assert_eq!(catalog.headers, Probe::Unreadable(why.into()));
}

fn driver(version: &str, name: &str) -> AvailableDriver {
    let origin = DriverOrigin::RunFile { name: name.into() };
    let (version, sha256) = (version.to_owned(), String::new());
    AvailableDriver { version, flavour: Flavour::Open, origin, sha256 }
}

#[test]
fn drivers_of_a_later_source_are_added_and_a_failure_takes_none_away() {
    let mut catalog = gather(&config(), &facts(), None, "not asked").unwrap();
    let kernel = facts().kernel;
    let mut add = |drivers| {
        catalog.add(Offers { drivers: Some(drivers), ..Offers::default() }, &kernel);
        catalog.drivers.clone()
    };
    let (old, new) = (driver("535.261.03", "a"), driver("580.95.05", "b"));
    assert_eq!(add(Probe::Read(vec![old.clone()])), Probe::Read(vec![old.clone()]));
    let both = Probe::Read(vec![new.clone(), old]);
    assert_eq!(add(Probe::Read(vec![new])), both);
    assert_eq!(add(Probe::Unreadable("away".into())), both);
}

fn differs() -> Fit {
    Fit::Differs { place: String::new(), lines: Vec::new(), more: 0 }
}

fn compared(symbols: usize) -> Fit {
    Fit::Fits { place: String::new(), symbols }
}

fn unchecked() -> Fit {
    Fit::Unchecked { why: String::new() }
}

/// A set that was compiled here is refused by the plan; one of a package gives way to other sources.
#[rstest]
#[case::compiled_here(HeadersFrom::Archive, "#1", differs(), true)]
#[case::differs(HeadersFrom::Package, "#1", differs(), false)]
#[case::unchecked(HeadersFrom::Package, "#1", unchecked(), true)]
#[case::for_an_unknown_build(HeadersFrom::Package, "", compared(1), true)]
#[case::for_an_unknown_build_by_its_vermagic(HeadersFrom::Package, "", compared(0), false)]
#[case::for_an_unknown_build_unchecked(HeadersFrom::Package, "", unchecked(), false)]
fn a_packages_set_that_turns_out_not_to_fit_is_left_out(
    #[case] headers_from: HeadersFrom,
    #[case] build: &str,
    #[case] fit: Fit,
    #[case] stays: bool,
) {
    let mut catalog = Catalog::without_sources("");
    let mut set = ModuleSet { headers_from, ..set("6.1.0-50-amd64") };
    set.key.kernel_version = build.to_owned();
    catalog.fits.insert(set.key.file_stem(), fit);
    catalog.sets.push(AvailableSet { set, place: SetPlace::store() });
    catalog.leave_out_unfit_packages(&facts().kernel);
    assert_eq!(!catalog.sets.is_empty(), stays);
}

#[test]
fn a_prebuilt_directory_that_is_none_is_a_failure() {
    let mut config = config();
    config.prebuilt.push("/no/such/directory".into());
    let failure = gather(&config, &facts(), None, "").unwrap_err();
    assert_eq!(failure.code(), ExitCode::Usage);
    let no_layout = tempfile::tempdir().unwrap();
    config.prebuilt = vec![no_layout.path().to_path_buf()];
    let failure = gather(&config, &facts(), None, "").unwrap_err();
    assert_eq!(failure.code(), ExitCode::Download);
}

#[test]
fn unsigned_sets_that_others_may_write_to_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("sets");
    std::fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    std::fs::write(layout.join("oci-layout"), longshore_modules::layout::LAYOUT).unwrap();
    std::fs::write(layout.join("index.json"), r#"{"schemaVersion":2,"manifests":[]}"#).unwrap();
    let mut config = Config { prebuilt: vec![layout.clone()], ..config() };
    gather(&config, &facts(), None, "").unwrap();
    std::os::unix::fs::chown(layout.join("index.json"), Some(1000), Some(1000)).unwrap();
    let failure = gather(&config, &facts(), None, "").unwrap_err();
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(
        failure.report().contains("index.json belongs to another user"),
        "{}",
        failure.report()
    );
    assert!(failure.remedy_text().unwrap().contains("chown root:root"));
    // Signatures decide, where they are required.
    config.signatures.required = true;
    gather(&config, &facts(), None, "").unwrap();
}

#[test]
fn a_damaged_set_for_this_kernel_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Disk::default()).unwrap();
    let mut set = set("6.1.0-50-amd64");
    set.modules.push(longshore_modules::artifact::ModuleEntry {
        name: "nvidia".into(),
        file: "nvidia.ko".into(),
        sha256: store.put(b"image").unwrap(),
        size: 5,
        vermagic: "6.1.0-50-amd64 SMP ".into(),
        version: None,
        srcversion: None,
        depends: Vec::new(),
    });
    store.put_set(&set).unwrap();
    let available = || gather(&config(), &facts(), Some(&store), "").unwrap().sets;
    assert_eq!(available().len(), 1);
    std::fs::write(store.blob_path(&set.modules[0].sha256), b"other").unwrap();
    assert_eq!(available().len(), 0);
}
