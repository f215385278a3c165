//! Owners and modes on the way to a file and in a tree.

use super::*;
use rstest::rstest;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

const ROOT: Me = Me { uid: 0, gid: 0 };
const USER: Me = Me { uid: 1000, gid: 1000 };
const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

#[rstest]
#[case::roots_file(ROOT, (0, 0, FILE | 0o644), true)]
#[case::roots_secret(ROOT, (0, 0, FILE | 0o400), true)]
#[case::roots_directory(ROOT, (0, 0, DIR | 0o755), true)]
#[case::of_roots_user_and_another_group(ROOT, (0, 65534, FILE | 0o644), true)]
#[case::written_by_the_group(ROOT, (0, 0, FILE | 0o664), false)]
#[case::written_by_another_group(ROOT, (0, 50, DIR | 0o2775), false)]
#[case::written_by_others(ROOT, (0, 0, FILE | 0o602), false)]
#[case::sticky(ROOT, (0, 0, DIR | 0o1777), false)]
#[case::of_nobody(ROOT, (65534, 65534, FILE | 0o600), false)]
#[case::link(ROOT, (0, 0, LINK | 0o777), true)]
#[case::link_of_nobody(ROOT, (65534, 0, LINK | 0o777), false)]
#[case::roots_for_a_user(USER, (0, 0, FILE | 0o644), true)]
#[case::the_users_own(USER, (1000, 1000, FILE | 0o644), true)]
#[case::with_an_umask_of_002(USER, (1000, 1000, DIR | 0o775), true)]
#[case::the_users_own_of_another_group(USER, (1000, 50, DIR | 0o775), false)]
#[case::the_users_own_for_all(USER, (1000, 1000, FILE | 0o666), false)]
#[case::another_users(USER, (1001, 1000, FILE | 0o644), false)]
#[case::the_group_of_root(USER, (0, 1000, FILE | 0o664), false)]
fn owner_and_mode_decide(
    #[case] me: Me,
    #[case] (uid, gid, mode): (u32, u32, u32),
    #[case] wanted: bool,
) {
    assert_eq!(Owner { uid, gid, mode }.is_trusted(me), wanted);
}

/// A tree `top/a/b/file` with links to it.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { dir: tempfile::tempdir().expect("temporary directory") };
        fs::create_dir_all(scene.at("top/a/b")).expect("directories");
        fs::create_dir(scene.at("other")).expect("directory");
        fs::write(scene.at("top/a/b/file"), "").expect("write");
        symlink("a/b", scene.at("top/relative")).expect("link");
        symlink("/top/a/../a/b/file", scene.at("top/absolute")).expect("link");
        symlink("../../../../../../top/a", scene.at("other/above")).expect("link");
        symlink("loop", scene.at("loop")).expect("link");
        scene
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn set(&self, path: &str, mode: u32) {
        fs::set_permissions(self.at(path), Permissions::from_mode(mode)).expect("mode");
    }

    fn give(&self, path: &str) {
        std::os::unix::fs::lchown(self.at(path), Some(65534), Some(65534)).expect("chown");
    }

    fn way(&self, path: &str) -> io::Result<OwnedFd> {
        way(self.dir.path(), Path::new(path))
    }

    /// The path of the untrusted file below the scene.
    fn culprit(&self, error: &io::Error) -> PathBuf {
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        let found = untrusted(error).expect("an untrusted file");
        found.path.strip_prefix(self.dir.path()).expect("below the scene").to_owned()
    }
}

#[rstest]
#[case::file("/top/a/b/file")]
#[case::directory("top/a/b")]
#[case::through_a_link("/top/relative/file")]
#[case::through_an_absolute_link("/top/absolute")]
#[case::above_the_root("/other/above/b/file")]
#[case::the_root_itself("/")]
fn what_is_roots_is_found_behind_links(#[case] path: &str) {
    let scene = Scene::new();
    scene.set("", 0o755);
    let found = scene.way(path).expect("trusted");
    let inside = path.replace("relative", "a/b").replace("absolute", "a/b/file");
    let inside = inside.replace("other/above", "top/a");
    let wanted = fs::metadata(scene.at(inside.trim_start_matches('/'))).expect("there");
    assert_eq!(fstat(&found).expect("open").st_ino, wanted.ino());
}

#[rstest]
#[case::the_file(|s: &Scene| s.set("top/a/b/file", 0o666), "top/a/b/file")]
#[case::the_files_owner(|s: &Scene| s.give("top/a/b/file"), "top/a/b/file")]
#[case::its_directory(|s: &Scene| s.set("top/a/b", 0o775), "top/a/b")]
#[case::a_directory_on_the_way(|s: &Scene| s.set("top", 0o757), "top")]
#[case::its_owner(|s: &Scene| s.give("top/a"), "top/a")]
#[case::the_links_owner(|s: &Scene| s.give("top/relative"), "top/relative")]
#[case::the_root(|s: &Scene| s.set("", 0o777), "")]
fn each_part_is_checked(#[case] spoil: fn(&Scene), #[case] culprit: &str) {
    let scene = Scene::new();
    scene.set("", 0o755);
    scene.way("/top/relative/file").expect("trusted");
    spoil(&scene);
    let error = scene.way("/top/relative/file").expect_err("untrusted");
    assert_eq!(scene.culprit(&error), Path::new(culprit));
}

#[test]
fn a_link_through_an_untrusted_directory_is_refused() {
    let scene = Scene::new();
    scene.set("other", 0o777);
    let error = scene.way("/other/above/b/file").expect_err("untrusted");
    assert_eq!(scene.culprit(&error), Path::new("other"));
}

#[test]
fn a_sticky_directory_is_one_on_the_way_and_no_place_for_a_tree() {
    let scene = Scene::new();
    scene.set("top", 0o1777);
    scene.way("/top/a/b/file").expect("nobody else can replace it there");
    let error = scene.way("/top").expect_err("others can make files in it");
    assert_eq!(scene.culprit(&error), Path::new("top"));
    directory(scene.dir.path(), Path::new("/top")).expect("nobody else can replace its files");
    scene.give("top");
    directory(scene.dir.path(), Path::new("/top")).expect_err("its owner can");
    scene.way("/top/a/b/file").expect_err("its owner can replace it");
}

#[rstest]
#[case::nothing("/top/nothing", Errno::ENOENT)]
#[case::below_a_file("/top/a/b/file/x", Errno::ENOTDIR)]
#[case::links_without_end("/loop", Errno::ELOOP)]
fn other_errors_are_the_kernels(#[case] path: &str, #[case] errno: Errno) {
    let error = Scene::new().way(path).expect_err("refused");
    assert_eq!((error.kind(), untrusted(&error)), (io::Error::from(errno).kind(), None));
}

#[rstest]
#[case::trusted("top/a/b/file", |_: &Scene| (), true)]
#[case::written_by_others("top/a/b/file", |s: &Scene| s.set("top/a/b/file", 0o666), false)]
#[case::in_a_directory_of_others("top/a/b/file", |s: &Scene| s.give("top/a"), false)]
#[case::not_there("nothing", |_: &Scene| (), true)]
#[case::a_directory("top", |s: &Scene| s.set("top", 0o777), true)]
fn a_file_that_a_setting_names(
    #[case] path: &str,
    #[case] spoil: fn(&Scene),
    #[case] wanted: bool,
) {
    let scene = Scene::new();
    spoil(&scene);
    assert_eq!(file(&scene.at(path)).is_ok(), wanted);
}

#[rstest]
#[case::trusted(|_: &Scene| (), None)]
#[case::file(|s: &Scene| s.set("top/a/b/file", 0o660), Some("top/a/b/file"))]
#[case::directory(|s: &Scene| s.set("top/a", 0o1777), Some("top/a"))]
#[case::owner(|s: &Scene| s.give("top/a/b"), Some("top/a/b"))]
#[case::owner_of_a_link(|s: &Scene| s.give("top/absolute"), Some("top/absolute"))]
#[case::the_place_of_a_link_is_another_matter(|s: &Scene| s.set("other", 0o777), None)]
fn everything_in_a_tree_is_checked(#[case] spoil: fn(&Scene), #[case] culprit: Option<&str>) {
    let scene = Scene::new();
    spoil(&scene);
    let found = tree(scene.dir.path(), Path::new("/top"), 100);
    assert_eq!(found.err().map(|e| scene.culprit(&e)), culprit.map(PathBuf::from));
}

#[test]
fn a_tree_has_bounds() {
    let scene = Scene::new();
    // a, b, file and two links.
    tree(scene.dir.path(), Path::new("/top"), 5).expect("within");
    tree(scene.dir.path(), Path::new("/top"), 4).expect_err("more");
    fs::create_dir_all(scene.at(&format!("top/{}", "d/".repeat(DEEPEST + 1)))).expect("deep");
    tree(scene.dir.path(), Path::new("/top"), 1000).expect_err("deeper");
}

#[test]
fn the_message_names_path_owner_mode_and_remedy() {
    let scene = Scene::new();
    scene.set("top/a/b/file", 0o666);
    chown(scene.at("top/a/b/file"), Some(1000), Some(100)).expect("chown");
    let error = scene.way("/top/a/b/file").expect_err("untrusted");
    let path = scene.at("top/a/b/file").display().to_string();
    let wanted = format!("{path} belongs to another user than root (uid 1000, gid 100, mode 0666)");
    assert_eq!(error.to_string(), wanted);
    let remedy = untrusted(&error).expect("untrusted").remedy();
    assert!(remedy.contains(&format!("chown root:root {path} && chmod go-w {path}")), "{remedy}");
}

/// A volume as kubelet makes it, in a mount namespace of the thread's own: `..data` leads to the directory of a time.
#[rstest]
#[case::read_only(MsFlags::MS_RDONLY, true)]
#[case::writable(MsFlags::empty(), false)]
fn the_volume_of_a_config_map_is_trusted(#[case] flags: MsFlags, #[case] wanted: bool) {
    let scene = Scene::new();
    let at = scene.at("top/a");
    let path = at.clone();
    let on_thread = move || {
        unshare(CloneFlags::CLONE_NEWNS).expect("unshare");
        let none: Option<&str> = None;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(none, "/", none, private, none).expect("private");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some("mode=0777"))
            .expect("mount");
        fs::create_dir(path.join("..2026_11_27")).expect("directory");
        fs::write(path.join("..2026_11_27/config.toml"), "").expect("write");
        symlink("..2026_11_27", path.join("..data")).expect("link");
        symlink("..data/config.toml", path.join("config.toml")).expect("link");
        mount(none, &path, none, MsFlags::MS_REMOUNT | flags, Some("mode=0777")).expect("remount");
        let root = path.parent().and_then(Path::parent).expect("the scene");
        assert_eq!(directory(root, Path::new("top/a")).is_ok(), wanted);
        way(root, Path::new("top/a/config.toml")).map(drop)
    };
    let found = std::thread::spawn(on_thread).join().expect("it ends well");
    assert_eq!(found.as_ref().err().map(|e| scene.culprit(e)), (!wanted).then(|| "top/a".into()));
}
