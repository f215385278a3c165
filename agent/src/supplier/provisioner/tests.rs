use std::fs;
use std::path::Path;

use rstest::rstest;

use super::*;
use crate::catalog::Item;
use crate::config::{ModuleSigning, SignBy};
use crate::plan::Acquire;
use crate::provider::Provider;
use crate::supplier::missed::{LeftOut, Missed, not_built};
use crate::supplier::test_scene::{DRIVER, Scene, module_of};
use longshore_build::build_root::BuildRootSource;
use longshore_build::mofed::Mofed;
use longshore_core::failure::ExitCode;
use longshore_core::flavour::Flavour;
use longshore_debian::archive::Archive;
use longshore_modules::sets::SetStore;
use longshore_sources::driver::DriverOrigin;
use longshore_sources::headers::AvailableHeaders;
use longshore_sources::source_tree::SourceTree;

fn remove(path: &Path) {
    fs::remove_file(path).expect("removed");
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).expect("read");
    bytes[0] ^= 1;
    fs::write(path, bytes).expect("written");
}

/// Puts a link to itself in the place of a file: reading it fails, and not because it is absent.
fn make_unreadable(path: &Path) {
    fs::remove_file(path).expect("removed");
    std::os::unix::fs::symlink(path, path).expect("link");
}

/// Two layouts with the same set, the first of which has a fault.
#[rstest]
#[case::absent(remove, None)]
#[case::damaged(damage, Some(ExitCode::Verification))]
#[case::unreadable(make_unreadable, Some(ExitCode::Preflight))]
#[tokio::test]
async fn a_source_that_lacks_a_module_is_followed_by_the_next_and_no_other_fault_is(
    #[case] fault: fn(&Path),
    #[case] ends: Option<ExitCode>,
) {
    let mut scene = Scene::new("bookworm-t4");
    let first = scene.add_layout("a");
    scene.add_layout("b");
    scene.put_tree();
    fault(&module_of(&first));
    let provisioner = Provisioner::new(&scene.config);
    let gathered = provisioner.gather().await.expect("gathered");
    let plan = provisioner.plan(&gathered).expect("a plan");
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert!(
        matches!(&plan.acquire[..], [Acquire::Fetch(Item::Set(place))] if Path::new(&place.at) == first),
        "{:?}",
        plan.acquire
    );
    let acquired = provisioner.acquire(&plan).await;
    assert_eq!(acquired.err().map(|failure| failure.code()), ends);
    let is_stored = ends.is_none();
    assert_eq!(scene.store().sets().expect("sets").len(), usize::from(is_stored));
    // The next plan uses the store's set, and never the source that failed.
    let gathered = provisioner.gather().await.expect("gathered");
    let again = provisioner.plan(&gathered).expect("a plan");
    assert_eq!(again.acquire.is_empty(), is_stored, "{:?}", again.acquire);
}

#[tokio::test]
async fn where_no_source_is_left_its_own_failure_is_the_reason() {
    let mut scene = Scene::new("bookworm-t4");
    let layout = scene.add_layout("a");
    scene.put_tree();
    let module = module_of(&layout);
    fs::remove_file(&module).expect("removed");
    let provisioner = Provisioner::new(&scene.config);
    let gathered = provisioner.gather().await.expect("gathered");
    let plan = provisioner.plan(&gathered).expect("a plan");
    let failure = provisioner.acquire(&plan).await.expect_err("no other source");
    assert_eq!(failure.code(), ExitCode::Download);
    assert!(failure.to_string().contains(&module.display().to_string()), "{failure}");
}

const NEWER: &str = "535.270.01";

/// A T4 without a driver, and two .run files that are not in the store. The newer one's list of GPUs, which is read once it is
/// there, refers to an older branch. Without an archive, from which the compiler would come, a compile ends there.
fn with_two_run_files() -> Scene {
    const OLD: &str = r#"{"devid": "0x1EB8", "name": "T4", "legacybranch": "470.xx"}"#;
    const DRIVEN: &str = r#"{"devid": "0x1EB8", "name": "T4", "features": ["kernelopen"]}"#;
    let mut scene = Scene::new("bookworm-t4");
    scene.config.driver.version = None;
    scene.config.compile = true;
    // No archive is needed then, and the compile fails once the files are there: the root has no headers.
    let root = scene.dir.path().join("root");
    fs::create_dir_all(root.join("usr/bin")).expect("directory");
    scene.config.build_root = Some(BuildRootSource::Path(root));
    for (driver, chip) in [(NEWER, OLD), (DRIVER, DRIVEN)] {
        scene.add_run_file(driver, chip);
    }
    scene
}

#[tokio::test]
async fn a_run_file_is_fetched_in_place_of_one_that_does_not_drive_the_gpu() {
    let scene = with_two_run_files();
    let provisioner = Provisioner::new(&scene.config);
    let gathered = provisioner.gather().await.expect("gathered");
    let plan = provisioner.plan(&gathered).expect("a plan");
    assert_eq!(plan.driver_version, NEWER, "{:?}", plan.findings);
    let failure = provisioner.acquire(&plan).await.expect_err("no headers");
    assert_eq!(failure.code(), ExitCode::Toolchain, "{failure:?}");
    let again = provisioner.plan(&provisioner.gather().await.expect("gathered")).expect("a plan");
    assert_eq!(again.driver_version, DRIVER, "{:?}", again.findings);
    let to_fetch = |item: &Acquire| matches!(item, Acquire::Fetch(Item::RunFile(_)));
    assert!(!again.acquire.iter().any(to_fetch), "{:?}", again.acquire);
}

#[tokio::test]
async fn a_build_chooses_again_once_a_run_file_is_known() {
    let scene = with_two_run_files();
    let provisioner = Provisioner::new(&scene.config);
    let facts = provisioner.gather().await.expect("gathered").facts;
    let driver = provisioner.choose(&facts).await.expect("a driver");
    assert_eq!(driver.version, DRIVER);
}

/// An unreadable .run file beside a tree: a build goes on where the tree has the driver, and else ends with the file's
/// failure.
#[rstest]
#[case::version(Some(NEWER), None, true)]
#[case::branch(Some("535"), None, true)]
#[case::newest(None, None, true)]
#[case::other_version(Some(DRIVER), None, false)]
#[case::other_flavour(Some(NEWER), Some(Flavour::Proprietary), false)]
#[tokio::test]
async fn a_build_goes_on_with_a_tree_without_the_run_files(
    #[case] version: Option<&str>,
    #[case] flavour: Option<Flavour>,
    #[case] goes_on: bool,
) {
    let mut scene = with_two_run_files();
    for file in &mut scene.config.run_files {
        file.urls = vec!["file:///no/such/driver.run".to_owned()];
    }
    scene.config.driver.version = version.map(str::to_owned);
    scene.config.driver.flavour = flavour;
    let urls = vec!["/srv/tree.tar.gz".to_owned()];
    let tree = SourceTree { version: NEWER.to_owned(), sha256: "2".repeat(64), urls };
    scene.config.source_trees.push(tree);
    let provisioner = Provisioner::new(&scene.config);
    let (sources, store) = (&provisioner.inventory.sources, scene.store());
    let offers = sources.drivers(&store).await;
    assert_eq!(offers.is_ok(), goes_on);
    match offers {
        Ok(_) => {
            let found = sources.find_driver(version, flavour, &store).await.expect("the tree");
            assert_eq!(found.version, NEWER);
        }
        Err(failure) => assert_eq!(failure.code(), ExitCode::Download, "{failure}"),
    }
}

fn build(driver: Option<AvailableDriver>) -> BuildSet {
    BuildSet {
        driver_version: "535.261.03".into(),
        flavour: Flavour::Open,
        kernel_release: "6.1.0-50-amd64".into(),
        kernel_version: Some("#1 SMP".into()),
        driver,
        headers: Some(AvailableHeaders::Missing { nearest: Vec::new(), passed_over: Vec::new() }),
        mofed: None,
        signs: true,
    }
}

#[rstest]
#[case::compile(true, FailureKind::Compile, true)]
#[case::download(true, FailureKind::Download, false)]
#[case::no_headers(false, FailureKind::Compile, false)]
fn a_compile_that_failed_with_mofeds_headers_is_planned_again_without(
    #[case] headers: bool,
    #[case] kind: FailureKind,
    #[case] again: bool,
) {
    let (host, planned) = (tempfile::tempdir().expect("directory"), build(None));
    let tree = host.path().join("usr/src/ofa_kernel").join(&planned.kernel_release);
    fs::create_dir_all(tree.join("include")).expect("directories");
    fs::write(tree.join("Module.symvers"), "").expect("written");
    let found = Mofed::find(host.path(), &planned.kernel_release, "x86_64").expect("usable");
    let planned = BuildSet { mofed: found.filter(|_| headers), ..planned };
    let missed = not_built(&planned, Failure::new(kind, "no such type"));
    let wanted = LeftOut::Mofed { release: planned.kernel_release, place: tree };
    assert_eq!(matches!(missed, Missed::Part(part, _) if part == wanted), again);
}

/// Without any archive a second search for the driver would fail.
#[tokio::test]
async fn a_compile_uses_the_plans_driver_and_headers() {
    let scene = Scene::new("bookworm-t4");
    let driver = AvailableDriver {
        version: "535.261.03".into(),
        flavour: Flavour::Open,
        origin: DriverOrigin::RunFile { name: "driver.run".into() },
        sha256: "1".repeat(64),
    };
    let provisioner = Provisioner::new(&scene.config).retrying(true);
    let planned = build(Some(driver.clone()));
    let request = provisioner.request(&planned).await.expect("no search");
    assert_eq!(request.driver, driver);
    assert_eq!(request.kernel_version, planned.kernel_version);
    assert_eq!(request.available_headers, planned.headers);
    assert!(request.retry);
    provisioner.request(&build(None)).await.expect_err("the driver is searched for");
}

#[tokio::test]
async fn a_tree_that_the_store_has_is_not_assembled_again() {
    let scene = Scene::new("bookworm-t4");
    scene.put_tree();
    let provisioner = Provisioner::new(&scene.config);
    let tree = provisioner.assemble("535.261.03", None, None).await.expect("the store's");
    assert_eq!(tree.root, scene.store().dir("userspace").join("tree/root"));
    provisioner.assemble("550.163.01", None, None).await.expect_err("no source has it");
}

/// A key is configured, and no archive has the program that signs with it.
#[rstest]
#[case::not_required("bookworm-t4", None)]
#[case::required("bookworm-secure-boot", Some(ExitCode::Toolchain))]
#[tokio::test]
async fn a_set_that_nothing_can_sign_is_fetched_where_no_signature_is_required(
    #[case] tree: &str,
    #[case] ends: Option<ExitCode>,
) {
    let mut scene = Scene::new(tree);
    let set = scene.set_in(&scene.store());
    scene.store().put_set(&set).expect("stored");
    scene.put_tree();
    let testdata = "../crates/modules/src/module_signing/testdata/signer.pem";
    scene.config.module_signing = Some(ModuleSigning {
        certificate: Path::new(env!("CARGO_MANIFEST_DIR")).join(testdata),
        by: SignBy::Key("/no/such/key".into()),
        hash: None,
    });
    let provisioner = Provisioner::new(&scene.config);
    let archive = Archive::of_suites(&[("bookworm", "")]);
    provisioner.inventory.sources.archive.set(archive).expect("not read yet");
    match (provisioner.fetch(None).await, ends) {
        (Ok((fetched, _)), None) => assert_eq!(fetched.key, set.key),
        (Err(failure), Some(code)) => {
            assert_eq!(failure.code(), code, "{failure:?}");
            assert!(failure.one_line().contains("sign-file-missing"), "{failure:?}");
        }
        (ended, _) => panic!("{ended:?}"),
    }
}

#[rstest]
#[case::none(None, "plain")]
#[case::open(Some(Flavour::Open), "open")]
#[tokio::test]
async fn the_tree_with_the_wanted_sources_is_taken(
    #[case] sources: Option<Flavour>,
    #[case] name: &str,
) {
    let mut scene = Scene::new("bookworm-t4");
    scene.config.operator.gds = sources.is_some();
    scene.put_tree_with("plain", None);
    scene.put_tree_with("open", Some(Flavour::Open));
    let mut set = scene.set_in(&scene.store());
    set.key.flavour = Flavour::Open;
    scene.store().put_set(&set).expect("stored");
    let provisioner = Provisioner::new(&scene.config);
    let root = scene.store().dir("userspace").join(name).join("root");
    assert_eq!(provisioner.assemble(DRIVER, None, sources).await.expect("found").root, root);
    assert_eq!(provisioner.fetch(None).await.expect("found").1.map(|tree| tree.root), Some(root));
    let other = Some(Flavour::Proprietary);
    provisioner.assemble(DRIVER, None, other).await.expect_err("no source has it");
}
