use super::bounds::Limits;
use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_core::image_reference::Repository;
use longshore_core::progress::Silent;
use longshore_modules::artifact::image::digest;
use rstest::rstest;
use serde_json::json;

use longshore_sources::testing::{UTS_VERSION, put_headers};

const RELEASE: &str = "5.14.0-427.13.1.el9_4.x86_64";
const GCC: &str = "gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)";

/// A store, and a directory with a build root in Red Hat's layout.
struct Scene {
    dir: tempfile::TempDir,
    store: Store,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store opens");
        let root = dir.path().join("root");
        put_headers(&root.join("usr/src/kernels").join(RELEASE), RELEASE, GCC);
        fs::create_dir_all(root.join("usr/bin")).expect("directory");
        fs::write(root.join("usr/bin/gcc"), "#!/bin/sh").expect("write");
        symlink("/etc", root.join("tmp")).expect("link");
        symlink("usr/bin", root.join("bin")).expect("link");
        Self { dir, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn acquire(&self, path: PathBuf) -> Result<BuildRoot, Failure> {
        let identified = identify(&BuildRootSource::Path(path)).await?;
        self.acquire_as(&identified).await
    }

    async fn acquire_as(&self, identified: &Identified) -> Result<BuildRoot, Failure> {
        let none = |_: &Repository| Err(Failure::new(FailureKind::Bug, "no registry is asked"));
        identified.acquire(&none, Duration::from_secs(5), &self.store, &Silent).await
    }

    fn tar(&self) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        builder.follow_symlinks(false);
        builder.append_dir_all(".", self.path("root")).expect("append");
        builder.into_inner().expect("a tar file")
    }

    /// Writes an image layout of two layers; `arch` is that of its configuration.
    fn layout(&self, arch: &str) -> PathBuf {
        let packed = zstd::encode_all(self.tar().as_slice(), 1).expect("zstd");
        self.layout_of(arch, &[&packed, &upper()])
    }

    fn layout_of(&self, arch: &str, layers: &[&[u8]]) -> PathBuf {
        let dir = self.path("layout");
        fs::create_dir_all(dir.join("blobs/sha256")).expect("directory");
        let put = |kind: &str, bytes: &[u8]| {
            let digest = digest(bytes);
            let path = dir.join("blobs/sha256").join(digest.trim_start_matches("sha256:"));
            fs::write(path, bytes).expect("write");
            json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
        };
        let config = json!({"architecture": arch, "os": "linux"}).to_string();
        let config = put("application/vnd.oci.image.config.v1+json", config.as_bytes());
        let kind = "application/vnd.oci.image.layer.v1.tar+zstd";
        let layers: Vec<_> = layers.iter().map(|layer| put(kind, layer)).collect();
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
        let manifest = put("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
        let index = json!({"schemaVersion": 2, "manifests": [manifest]}).to_string();
        fs::write(dir.join("index.json"), index).expect("write");
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write");
        dir
    }

    /// Writes a tar file of an image layout.
    fn image_file(&self, layout: &Path) -> PathBuf {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_dir_all(".", layout).expect("append");
        let path = self.path("image.tar");
        fs::write(&path, archive.into_inner().expect("a tar file")).expect("write");
        path
    }

    fn leaves_nothing(&self) {
        let count = |dir: &str| {
            let names = fs::read_dir(self.store.dir(dir)).expect("list").flatten();
            names.filter(|entry| entry.path().is_dir()).count()
        };
        assert_eq!((count("roots"), count("tmp")), (0, 0));
    }
}

/// A layer that removes gcc.
fn upper() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    builder.append_data(&mut header, "usr/bin/.wh.gcc", &b""[..]).expect("append");
    builder.into_inner().expect("a tar file")
}

fn wanted() -> Wanted<'static> {
    Wanted { release: RELEASE, version: Some(UTS_VERSION) }
}

fn is_whole(root: &BuildRoot) {
    let found = headers(root, wanted()).expect("headers");
    assert_eq!((found.stated.compiler.as_str(), found.toolchain.len()), (GCC, 0));
    for point in MOUNT_POINTS {
        let meta = fs::symlink_metadata(root.path.join(point)).expect("there");
        assert!(meta.is_dir(), "{point} is no directory");
    }
}

#[tokio::test]
async fn a_directory_becomes_a_root_which_is_used_again() {
    let scene = Scene::new();
    let root = scene.acquire(scene.path("root")).await.expect("unpacks");
    is_whole(&root);
    assert!(root.path.join("usr/bin/gcc").is_file());
    fs::write(root.path.join("mark"), "").expect("write");
    let again = scene.acquire(scene.path("root")).await.expect("is there");
    assert!(again == root && root.path.join("mark").exists());
    // A changed directory is another root.
    fs::write(scene.path("root/usr/bin/make"), "").expect("write");
    let other = scene.acquire(scene.path("root")).await.expect("unpacks");
    assert!(other.digest != root.digest && other.path != root.path);
}

#[rstest]
#[case::program("usr/bin/gcc", 0o777, Some("gcc can be written to by others"))]
#[case::directory("usr/bin", 0o775, Some("usr/bin can be written to by others"))]
#[case::the_root("", 0o757, Some("root can be written to by others"))]
#[case::of_users("var/mail", 0o2775, None)]
#[case::of_a_running_system("run/lock", 0o1777, None)]
#[tokio::test]
async fn a_directory_that_others_may_write_to_is_refused(
    #[case] path: &str,
    #[case] mode: u32,
    #[case] said: Option<&str>,
) {
    let scene = Scene::new();
    let at = scene.path("root").join(path);
    if !at.exists() {
        fs::create_dir_all(&at).expect("directories");
    }
    fs::set_permissions(&at, fs::Permissions::from_mode(mode)).expect("mode");
    let found = scene.acquire(scene.path("root")).await;
    assert_eq!(found.as_ref().err().map(Failure::code), said.map(|_| ExitCode::Verification));
    if let (Err(failure), Some(said)) = (found, said) {
        assert!(failure.report().contains(said), "{}", failure.report());
        assert!(failure.remedy_text().is_some_and(|remedy| remedy.contains("chmod go-w")));
    }
}

#[tokio::test]
async fn files_and_layouts_of_another_user_are_refused() {
    let scene = Scene::new();
    let layout = scene.layout("amd64");
    let file = scene.image_file(&layout);
    let blob = fs::read_dir(layout.join("blobs/sha256")).expect("listed").flatten().next();
    for (path, of) in [(&file, file.clone()), (&layout, blob.expect("a blob").path())] {
        std::os::unix::fs::chown(&of, Some(1000), Some(1000)).expect("chown");
        let failure = scene.acquire(path.clone()).await.expect_err("another user's");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(
            failure.report().contains("belongs to another user than root"),
            "{}",
            failure.report()
        );
    }
}

#[tokio::test]
async fn a_directory_that_changes_after_it_was_planned_is_refused() {
    let scene = Scene::new();
    let planned = identify(&BuildRootSource::Path(scene.path("root"))).await.expect("read");
    fs::write(scene.path("root/usr/bin/gcc"), "another").expect("write");
    let failure = scene.acquire_as(&planned).await.expect_err("changed");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains("changed while it was read"), "{failure}");
    scene.leaves_nothing();
}

#[tokio::test]
async fn a_directory_that_changes_after_it_was_copied_changes_no_compile() {
    let scene = Scene::new();
    let planned = identify(&BuildRootSource::Path(scene.path("root"))).await.expect("read");
    scene.acquire_as(&planned).await.expect("unpacks");
    fs::write(scene.path("root/usr/bin/gcc"), "another").expect("write");
    fs::remove_dir_all(scene.path("root/usr/src")).expect("removed");
    // The build takes the root that it planned with, out of the store.
    let root = scene.acquire_as(&planned).await.expect("is there");
    assert_eq!(root.digest, planned.digest);
    is_whole(&root);
    assert_eq!(fs::read_to_string(root.path.join("usr/bin/gcc")).expect("reads"), "#!/bin/sh");
}

#[rstest]
#[case::plain(|tar: Vec<u8>| tar)]
#[case::zstd(|tar: Vec<u8>| zstd::encode_all(tar.as_slice(), 1).expect("zstd"))]
#[tokio::test]
async fn a_tar_file_becomes_a_root(#[case] packed: fn(Vec<u8>) -> Vec<u8>) {
    let scene = Scene::new();
    let path = scene.path("root.tar");
    fs::write(&path, packed(scene.tar())).expect("write");
    is_whole(&scene.acquire(path).await.expect("unpacks"));
}

#[tokio::test]
async fn a_tar_file_that_changes_after_it_was_planned_is_refused() {
    let scene = Scene::new();
    let path = scene.path("root.tar");
    fs::write(&path, scene.tar()).expect("write");
    let planned = identify(&BuildRootSource::Path(path.clone())).await.expect("read");
    fs::write(scene.path("root/usr/bin/gcc"), "another").expect("write");
    fs::write(&path, scene.tar()).expect("write");
    let failure = scene.acquire_as(&planned).await.expect_err("changed");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains("changed while it was read"), "{failure}");
    assert!(!scene.store.has_blob(&planned.digest));
    scene.leaves_nothing();
}

#[tokio::test]
async fn a_tar_file_is_unpacked_from_its_verified_copy() {
    let scene = Scene::new();
    let path = scene.path("root.tar");
    fs::write(&path, scene.tar()).expect("write");
    let planned = identify(&BuildRootSource::Path(path.clone())).await.expect("read");
    scene.store.put(&scene.tar()).expect("the copy");
    fs::write(&path, "another").expect("write");
    is_whole(&scene.acquire_as(&planned).await.expect("unpacks the copy"));
}

#[tokio::test]
async fn a_far_too_large_file_is_not_read() {
    let scene = Scene::new();
    let path = scene.path("huge.tar");
    File::create(&path).and_then(|file| file.set_len(1 << 42)).expect("a sparse file");
    let failure = identify(&BuildRootSource::Path(path)).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.report().contains("more than 12 GiB"), "{}", failure.report());
}

#[tokio::test]
async fn a_layout_and_a_tar_file_of_one_become_roots() {
    let scene = Scene::new();
    let layout = scene.layout("amd64");
    let root = scene.acquire(layout.clone()).await.expect("unpacks");
    is_whole(&root);
    assert!(!root.path.join("usr/bin/gcc").exists(), "the upper layer removed it");
    let other = scene.acquire(scene.image_file(&layout)).await.expect("unpacks");
    is_whole(&other);
    assert!(other.digest != root.digest && !other.path.join("oci-layout").exists());
}

#[rstest]
#[case::all_together(Limits { bytes: 7 << 20, ..LIMITS }, None)]
#[case::bytes(Limits { bytes: 5 << 20, ..LIMITS }, Some("more than 5 MiB"))]
#[case::entries(Limits { entries: 14, ..LIMITS }, Some("more than 14 entries"))]
fn limits_hold_for_a_tar_file_and_the_layout_in_it_together(
    #[case] limits: Limits,
    #[case] said: Option<&str>,
) {
    let scene = Scene::new();
    let mut layer = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(3 << 20);
    header.set_mode(0o644);
    layer.append_data(&mut header, "zeros", vec![0; 3 << 20].as_slice()).expect("append");
    for name in 0..8 {
        header.set_size(0);
        layer.append_data(&mut header, name.to_string(), &b""[..]).expect("append");
    }
    let path =
        scene.image_file(&scene.layout_of("amd64", &[&layer.into_inner().expect("a tar file")]));
    let digest = Opened::at(&path).and_then(|opened| opened.digest()).expect("reads");
    let root =
        Identified { source: BuildRootSource::Path(path.clone()), digest }.root(&scene.store);
    let waiting = Arc::new(());
    let (store, caller) = (scene.store.clone(), Arc::downgrade(&waiting));
    let task = Silent.begin("unpacking", None, Unit::Items);
    let dir = scene.path("unpacked");
    fs::create_dir(&dir).expect("directory");
    let mut unpacking = Unpacking::within(&dir, limits).expect("opens");
    let done = Filling { root, store, caller, task }.path(&path, &dir, &mut unpacking);
    match said {
        None => {
            done.expect("unpacks");
            assert!(dir.join("zeros").is_file() && !dir.join("oci-layout").exists());
        }
        Some(said) => {
            let failure = done.expect_err("too much together");
            assert_eq!(failure.code(), ExitCode::Verification);
            assert!(failure.to_string().contains(said), "{failure}");
        }
    }
}

#[rstest]
#[case::plain(|tar: Vec<u8>| tar, 1)]
#[case::zstd(|tar: Vec<u8>| zstd::encode_all(tar.as_slice(), 1).expect("zstd"), 2)]
fn space_is_for_a_tar_file_unless_it_is_stored_and_for_its_contents(
    #[case] packed: fn(Vec<u8>) -> Vec<u8>,
    #[case] times: u64,
) {
    let scene = Scene::new();
    fs::write(scene.path("root.tar"), packed(scene.tar())).expect("write");
    let file = File::open(scene.path("root.tar")).expect("opens");
    let size = file.metadata().expect("metadata").len();
    assert_eq!(space_of(&file, false).expect("reads"), size * (1 + times));
    assert_eq!(space_of(&file, true).expect("reads"), size * times);
}

#[rstest]
#[case::other_machine("arm64", None, "for \"linux arm64\", and this machine is linux amd64")]
#[case::damaged("amd64", Some("blobs"), "")]
#[case::no_index("amd64", Some("index.json"), "index.json")]
#[tokio::test]
async fn a_bad_layout_is_refused(
    #[case] arch: &str,
    #[case] damaged: Option<&str>,
    #[case] said: &str,
) {
    let scene = Scene::new();
    let layout = scene.layout(arch);
    match damaged {
        Some("blobs") => {
            for blob in fs::read_dir(layout.join("blobs/sha256")).expect("list").flatten() {
                fs::write(blob.path(), "other").expect("write");
            }
        }
        Some(name) => fs::remove_file(layout.join(name)).expect("removed"),
        None => {}
    }
    let failure = scene.acquire(layout).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(failure.report().contains(said), "{}", failure.report());
    scene.leaves_nothing();
}

#[tokio::test]
async fn a_layout_that_is_a_link_elsewhere_is_not_followed() {
    let scene = Scene::new();
    let layout = scene.layout("amd64");
    fs::rename(layout.join("blobs"), scene.path("elsewhere")).expect("renamed");
    symlink(scene.path("elsewhere"), layout.join("blobs")).expect("link");
    let failure = scene.acquire(layout).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
}

#[rstest]
#[case::absent("absent", ExitCode::Usage)]
#[case::garbage("garbage.tar", ExitCode::Verification)]
#[tokio::test]
async fn what_is_no_root_is_refused(#[case] name: &str, #[case] code: ExitCode) {
    let scene = Scene::new();
    fs::write(scene.path("garbage.tar"), vec![7; 4096]).expect("write");
    let failure = scene.acquire(scene.path(name)).await.expect_err("refused");
    assert_eq!(failure.code(), code, "{}", failure.report());
    scene.leaves_nothing();
}

#[tokio::test]
async fn a_mismatch_names_both_releases_and_the_driver_toolkit() {
    let scene = Scene::new();
    let toolkit = json!({
        "KERNEL_VERSION": RELEASE, "RT_KERNEL_VERSION": "5.14.0-427.13.1.rt14", "RHEL_VERSION": "9.4",
    });
    fs::create_dir(scene.path("root/etc")).expect("directory");
    let file = scene.path("root/etc/driver-toolkit-release.json");
    fs::write(file, toolkit.to_string()).expect("write");
    let root = scene.acquire(scene.path("root")).await.expect("unpacks");
    let other = Wanted { release: "5.14.0-427.14.1.el9_4.x86_64", version: None };
    let failure = headers(&root, other).expect_err("another kernel");
    assert_eq!(failure.code(), ExitCode::Toolchain);
    let text = failure.to_string();
    for said in [other.release, RELEASE, "driver toolkit for", "427.13.1.rt14"] {
        assert!(text.contains(said), "{said:?} is not in {text}");
    }
    assert!(failure.remedy_or_default().contains("oc adm release info"));
}

#[tokio::test]
async fn the_catalog_has_what_is_known_without_unpacking() {
    let scene = Scene::new();
    let identified = identify(&BuildRootSource::Path(scene.path("root"))).await.expect("read");
    let place = scene.path("root").display().to_string();
    let digest = identified.digest.clone();
    let unknown = AvailableHeaders::BuildRoot { place, digest, compiler: None };
    assert_eq!(identified.available(wanted(), &scene.store), unknown);
    scene.acquire_as(&identified).await.expect("unpacks");
    let known = identified.available(wanted(), &scene.store);
    let AvailableHeaders::BuildRoot { compiler, .. } = known else { panic!("{known:?}") };
    assert_eq!(compiler.as_deref(), Some(GCC));
    let neighbour = Wanted { release: "6.1.0-50-amd64", version: None };
    let missing = identified.available(neighbour, &scene.store);
    assert!(matches!(missing, AvailableHeaders::Missing { .. }), "{missing:?}");
}
