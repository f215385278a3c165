use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use rstest::rstest;

const RELEASE: &str = "6.1.0-50-amd64";
const VERSION: &str = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)";
const WANTED: Wanted<'static> = Wanted { release: RELEASE, version: Some(VERSION) };

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
    fs::write(path, text).expect("write");
}

/// Writes the files that every kernel's output directory has.
fn output(dir: &Path) {
    let says = [
        ("Module.symvers", "0x1\tf\tvmlinux\tEXPORT_SYMBOL"),
        ("include/generated/autoconf.h", "#define CONFIG_MODULES 1"),
        ("include/config/auto.conf", "CONFIG_CC_VERSION_TEXT=gcc-12 (Debian 12.2.0-14) 12.2.0"),
    ];
    for (path, text) in says {
        write(&dir.join(path), text);
    }
    let defined = |name: &str, value: &str| format!("#define {name} \"{value}\"\n");
    write(&dir.join("include/generated/utsversion.h"), &defined("UTS_VERSION", VERSION));
    write(&dir.join("include/generated/utsrelease.h"), &defined("UTS_RELEASE", RELEASE));
}

fn kbuild(scripts: &Path) {
    let program = scripts.join("mod/modpost");
    write(&program, "program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
}

/// Debian's layout: flavour, common part and programs apart.
fn split(root: &Path) {
    let source = root.join("usr/src");
    let flavour = source.join("linux-headers-6.1.0-50-amd64");
    let common = source.join("linux-headers-6.1.0-50-common");
    output(&flavour);
    write(&flavour.join("Makefile"), "include /usr/src/linux-headers-6.1.0-50-common/Makefile\n");
    write(&common.join("Makefile"), "VERSION = 6\n");
    write(&common.join("include/linux/mm.h"), "int f(void);");
    kbuild(&root.join("usr/lib/linux-kbuild-6.1/scripts"));
    for dir in [&flavour, &common] {
        symlink("../../lib/linux-kbuild-6.1/scripts", dir.join("scripts")).expect("link");
    }
    let modules = root.join("usr/lib/modules").join(RELEASE);
    fs::create_dir_all(&modules).expect("directory");
    symlink("usr/lib", root.join("lib")).expect("link");
    symlink("/usr/src/linux-headers-6.1.0-50-amd64", modules.join("build")).expect("link");
    symlink("/usr/src/linux-headers-6.1.0-50-common", modules.join("source")).expect("link");
}

/// A single tree, as in other distributions and in a built kernel.
fn whole(dir: &Path) {
    output(dir);
    write(&dir.join("Makefile"), "VERSION = 6\n");
    write(&dir.join("include/linux/mm.h"), "int f(void);");
    kbuild(&dir.join("scripts"));
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary directory")
}

/// A copy in a build root, and the paths of its kernel directories.
fn copied(found: &LocalHeaders) -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let root = temporary();
    deb::make_usrmerge_links(root.path()).expect("links");
    found.trees.copy_into(root.path()).expect("copies");
    let copy = found.trees.copied_to(root.path());
    assert_eq!(copy.digests().expect("digests"), found.trees.digests().expect("digests"));
    let (source, output) = crate::headers::dirs_in(root.path(), RELEASE).expect("there");
    let inside = |dir: &Path| root.path().join(dir.strip_prefix("/").expect("absolute"));
    for path in ["include/linux/mm.h", "scripts/mod/modpost"] {
        assert!(inside(&source).join(path).is_file(), "{path} in {}", source.display());
    }
    assert!(inside(&output).join("Module.symvers").is_file());
    (root, source, output)
}

#[test]
fn a_hosts_split_headers_are_copied_to_where_they_were() {
    let host = temporary();
    split(host.path());
    let found = of_host(host.path(), WANTED).map_err(|why| panic!("{why}")).expect("found");
    assert_eq!(found.stated.kernel_version, VERSION);
    let names: Vec<_> = found.trees.digests().expect("digests").into_keys().collect();
    let wanted = [
        "/usr/lib/linux-kbuild-6.1/scripts",
        "/usr/src/linux-headers-6.1.0-50-amd64",
        "/usr/src/linux-headers-6.1.0-50-common",
    ];
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.iter().zip(wanted).all(|(name, wanted)| wanted.starts_with(name.as_str())));
    let (root, source, output) = copied(&found);
    assert_eq!(source, Path::new(wanted[2]));
    assert_eq!(output, Path::new(wanted[1]));
    let program = root.path().join("usr/lib/linux-kbuild-6.1/scripts/mod/modpost");
    assert_eq!(fs::metadata(program).expect("there").permissions().mode() & 0o777, 0o755);
}

#[rstest]
#[case::a_root("", true)]
#[case::beside_each_other("usr/src", false)]
#[case::the_flavour("usr/src/linux-headers-6.1.0-50-amd64", false)]
fn split_headers_may_be_named_where_all_is_in_view(#[case] path: &str, #[case] complete: bool) {
    let host = temporary();
    split(host.path());
    match (in_directory(&host.path().join(path), WANTED), complete) {
        (Ok(found), true) => drop(copied(&found)),
        // linux-kbuild is in another directory.
        (Err(why), false) => assert!(why.contains("scripts/mod/modpost"), "{why}"),
        (found, _) => panic!("{:?}", found.err()),
    }
}

#[rstest]
#[case::by_itself("any-name", "any-name")]
#[case::red_hat("host/usr/src/kernels/6.1.0-50-amd64", "host")]
#[case::beside_others("src/linux-headers-6.1.0-50-amd64", "src")]
#[case::in_one_directory("tar/any-name", "tar")]
fn one_tree_may_be_named(#[case] at: &str, #[case] named: &str) {
    let dir = temporary();
    whole(&dir.path().join(at));
    let found = in_directory(&dir.path().join(named), WANTED);
    drop(copied(&found.map_err(|why| panic!("{why}")).expect("found")));
}

#[test]
fn a_build_that_is_a_directory_is_followed_too() {
    let host = temporary();
    whole(&host.path().join("lib/modules").join(RELEASE).join("build"));
    let found = of_host(host.path(), WANTED).map_err(|why| panic!("{why}")).expect("found");
    drop(copied(&found));
}

#[rstest]
#[case::another_release(Wanted { release: "6.1.0-56-amd64", version: None }, "it is for \"6.1.0-50-amd64\"")]
#[case::another_build(Wanted { release: RELEASE, version: Some("#2") }, "and the kernel is \"#2\"")]
fn headers_of_another_kernel_are_passed_over(#[case] wanted: Wanted<'_>, #[case] said: &str) {
    let dir = temporary();
    whole(&dir.path().join("tree"));
    let why = in_directory(&dir.path().join("tree"), wanted).err().expect("another kernel");
    assert!(why.contains(said), "{why}");
}

#[rstest]
#[case("Module.symvers")]
#[case("scripts/mod/modpost")]
#[case("include/generated/autoconf.h")]
fn what_is_not_there_whole_is_passed_over(#[case] absent: &str) {
    let dir = temporary();
    whole(&dir.path().join("tree"));
    fs::remove_file(dir.path().join("tree").join(absent)).expect("removes");
    let why = in_directory(&dir.path().join("tree"), WANTED).err().expect("incomplete");
    assert!(why.contains(absent), "{why}");
}

#[rstest]
#[case::a_header("usr/src/linux-headers-6.1.0-50-common/include/linux/mm.h", "include/linux/mm.h")]
#[case::a_program("usr/lib/linux-kbuild-6.1/scripts/mod/modpost", "scripts/mod/modpost")]
#[case::a_directory("usr/src/linux-headers-6.1.0-50-amd64/include", "include")]
#[case::on_the_way("usr/src", "usr/src")]
#[case::on_the_way_of_a_link("usr/lib/modules/6.1.0-50-amd64", "usr/lib/modules/6.1.0-50-amd64")]
#[tokio::test]
async fn headers_that_others_may_write_to_are_passed_over(#[case] path: &str, #[case] said: &str) {
    let host = temporary();
    let store = Store::open(&host.path().join("store"), Disk::default()).expect("store opens");
    split(host.path());
    of_host(host.path(), WANTED).map_err(|why| panic!("{why}")).expect("root's");
    look(host.path(), WANTED).expect("root's");
    let path = host.path().join(path);
    let mode = fs::metadata(&path).expect("there").permissions().mode();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode | 0o022)).expect("mode");
    let whys = [
        of_host(host.path(), WANTED).err(),
        look(host.path(), WANTED).err().filter(|_| !said.starts_with("usr/lib/modules")),
        given(host.path(), WANTED, &store)
            .await
            .expect("read")
            .err()
            .filter(|_| !said.starts_with("usr/lib/modules")),
    ];
    let (of_host, others) = (whys[0].clone(), &whys[1..]);
    assert!(
        of_host.is_some_and(|why| why.contains(&format!("{said} can be written to by others")))
    );
    for why in others.iter().flatten() {
        assert!(why.contains("chmod go-w"), "{why}");
    }
}

#[tokio::test]
async fn a_tar_file_that_others_may_write_to_is_passed_over() {
    let dir = temporary();
    let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store opens");
    let path = dir.path().join("headers.tar");
    fs::write(&path, "").expect("write");
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).expect("chown");
    let whys = [
        look(&path, WANTED).map(drop),
        given(&path, WANTED, &store).await.expect("read").map(drop),
    ];
    for why in whys.map(|found| found.expect_err("passed over")) {
        assert!(why.contains("belongs to another user than root (uid 1000"), "{why}");
    }
}

#[test]
fn nothing_there_is_said_so() {
    let dir = temporary();
    assert!(of_host(dir.path(), WANTED).is_err());
    let why = in_directory(dir.path(), WANTED).err().expect("nothing");
    assert!(why.contains("usr/src/linux-headers-6.1.0-50-amd64"), "{why}");
}

#[test]
fn a_digest_changes_with_the_contents() {
    let dir = temporary();
    whole(&dir.path().join("tree"));
    let digest = || {
        let found = in_directory(&dir.path().join("tree"), WANTED);
        found.map_err(|why| panic!("{why}")).expect("found").trees.digests().expect("digests")
    };
    let before = digest();
    assert_eq!(before, digest());
    write(&dir.path().join("tree/include/linux/mm.h"), "int g(void);");
    assert_ne!(before, digest());
}

#[tokio::test]
async fn a_tar_file_is_unpacked_and_followed() {
    let dir = temporary();
    whole(&dir.path().join("tree"));
    let path = dir.path().join("headers.tar.gz");
    let file = fs::File::create(&path).expect("creates");
    let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(file, Default::default()));
    tar.append_dir_all("linux", dir.path().join("tree")).expect("packs");
    tar.into_inner().and_then(|gzip| gzip.finish()).expect("packs");
    let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store opens");
    let found = given(&path, WANTED, &store).await.expect("reads");
    let found = found.map_err(|why| panic!("{why}")).expect("found");
    drop(copied(&found));
    assert_eq!(fs::read_dir(store.dir("tmp")).expect("list").count(), 1);
    drop(found);
    assert_eq!(fs::read_dir(store.dir("tmp")).expect("list").count(), 0);
}

#[tokio::test]
async fn what_is_no_tar_file_is_damaged() {
    let dir = temporary();
    let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store opens");
    for (name, code) in [("absent", ExitCode::Toolchain), ("text.tar", ExitCode::Verification)] {
        if name != "absent" {
            fs::write(dir.path().join(name), "no tar file").expect("write");
        }
        let failure = given(&dir.path().join(name), WANTED, &store).await.err().expect("refused");
        assert_eq!(failure.code(), code, "{}", failure.report());
    }
}

/// Ubuntu's headers of Linux 6.8: one tree here, without the file that states the version.
fn unstated(root: &Path, installed: Option<&str>) {
    whole(&root.join("usr/src/linux-headers-6.1.0-50-amd64"));
    fs::remove_file(
        root.join("usr/src/linux-headers-6.1.0-50-amd64/include/generated/utsversion.h"),
    )
    .expect("removed");
    let Some(version) = installed else { return };
    let other = "Package: linux-headers-6.1.0-50\nVersion: 6.1.0-50.1\n";
    let entry = format!(
        "{other}\nPackage: linux-headers-{RELEASE}\nStatus: install ok installed\nVersion: {version}\n"
    );
    write(&root.join("var/lib/dpkg/status"), &entry);
}

#[rstest]
#[case::installed(Some("6.1.0-50.53"), true)]
#[case::another_build(Some("6.1.0-50.51"), false)]
#[case::without_dpkg(None, true)]
fn headers_without_a_version_are_of_the_kernel_unless_dpkg_has_another_build(
    #[case] installed: Option<&str>,
    #[case] fits: bool,
) {
    let root = temporary();
    unstated(root.path(), installed);
    let version = "#53-Ubuntu SMP Thu Nov 5 10:00:00 UTC 2026";
    let found = in_directory(root.path(), Wanted { release: RELEASE, version: Some(version) });
    match found {
        Ok(found) => {
            assert!(fits);
            assert_eq!(found.stated.kernel_version, version);
        }
        Err(why) => {
            assert!(!fits, "{why}");
            assert!(why.contains("which build of the kernel"), "{why}");
        }
    }
}

#[test]
fn headers_without_a_version_need_the_kernels_own() {
    let root = temporary();
    unstated(root.path(), None);
    let found = in_directory(root.path(), Wanted { release: RELEASE, version: None });
    assert!(found.err().expect("unknown").contains("which build of the kernel"));
}
