//! Plans where MOFED's headers are on the host.

use std::fs;

use super::*;
use longshore_build::mofed::Mofed;

/// Settings of the operator with GPUDirect RDMA, a host with MOFED, and a store with a set.
struct Scene {
    config: Config,
    facts: HostFacts,
    catalog: Catalog,
    mofed: Mofed,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let (dir, facts) = (tempfile::tempdir().unwrap(), facts("bookworm-t4"));
        let tree = dir.path().join("usr/src/ofa_kernel").join(&facts.kernel.release);
        fs::create_dir_all(tree.join("include")).unwrap();
        fs::write(tree.join("Module.symvers"), "").unwrap();
        let mofed = Mofed::find(dir.path(), &facts.kernel.release, "x86_64").unwrap().unwrap();
        let mut config = config("535", "open");
        config.driver.extra_modules = vec!["nvidia_peermem".into()];
        let mut catalog = stocked(&facts, Flavour::Open);
        catalog.sets[0].set.modules.push(entry("nvidia_peermem", &["nvidia", "ib_core"]));
        catalog.mofed = Probe::Read(Some(mofed.clone()));
        Self { config, facts, catalog, mofed, _dir: dir }
    }

    fn plan(&self) -> Plan {
        plan(&self.config, &self.facts, &self.catalog).unwrap()
    }

    fn compiled(&self) -> Option<Option<Mofed>> {
        self.plan().acquire.into_iter().find_map(|acquire| match acquire {
            Acquire::BuildSet(build) => Some(build.mofed),
            _ => None,
        })
    }

    fn is_left_out(&self) -> bool {
        codes(&self.plan(), Severity::Warning).contains(&"mofed-left-out")
    }
}

#[test]
fn a_set_of_this_host_without_the_headers_gives_way_to_a_compile_with_them() {
    let scene = Scene::new();
    assert_eq!(scene.compiled(), Some(Some(scene.mofed.clone())));
    assert!(!scene.is_left_out());
    let why = why(&scene.plan(), "MOFED's headers");
    assert!(why.contains("usr/src/ofa_kernel/6.1.0-50-amd64 (sha256 "), "{why}");
    let json = serde_json::to_string(&scene.plan().acquire).unwrap();
    assert!(json.contains("\"mofed\":"), "{json}");
}

#[test]
fn a_set_with_the_headers_is_used_before_one_without() {
    let mut scene = Scene::new();
    let mut with = scene.catalog.sets[0].clone();
    with.set.key.headers.extend([scene.mofed.keyed()]);
    scene.catalog.sets.push(with);
    assert_eq!((scene.compiled(), scene.is_left_out()), (None, false));
    // Sets from elsewhere fit too, and the better one is taken.
    scene.config.prebuilt.push("/prebuilt".into());
    assert_eq!((scene.compiled(), scene.is_left_out()), (None, false));
}

#[rstest]
#[case::sets_from_elsewhere(|scene: &mut Scene| scene.config.prebuilt.push("/prebuilt".into()))]
#[case::no_compile(|scene: &mut Scene| scene.config.compile = false)]
#[case::no_headers_of_the_kernel(
    |scene: &mut Scene| scene.catalog.headers = Probe::Unreadable("no connection".into())
)]
fn a_set_without_the_headers_fits_with_a_finding(#[case] change: fn(&mut Scene)) {
    let mut scene = Scene::new();
    change(&mut scene);
    assert_eq!((scene.compiled(), scene.is_left_out()), (None, true));
}

#[test]
fn without_the_headers_a_plan_is_as_it_was() {
    let mut scene = Scene::new();
    scene.catalog.mofed = Probe::Read(None);
    assert_eq!((scene.compiled(), scene.is_left_out()), (None, false));
    scene.catalog.sets.clear();
    assert_eq!(scene.compiled(), Some(None));
    let json = serde_json::to_string(&scene.plan().acquire).unwrap();
    assert!(!json.contains("mofed"), "{json}");
}

#[test]
fn unusable_headers_keep_no_driver_from_being_installed() {
    let mut scene = Scene::new();
    scene.catalog.mofed = Probe::Unreadable("include/a.h is a link out".into());
    assert_eq!((scene.compiled(), scene.is_left_out()), (None, true));
    assert!(scene.plan().refusal().is_none());
}
