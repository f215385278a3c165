use std::fs;
use std::os::unix::fs::symlink;

use longshore_core::failure::ExitCode;
use rstest::rstest;

use super::*;

/// A change to Kbuild, as quilt writes it.
const FIRST: &str = "Description: use the kernel's compiler\n--- a/Kbuild\n+++ b/Kbuild\n@@ -1,2 +1,2 @@\n-CC ?= cc\n+CC ?= $(KBUILD_CC)\n LD ?= ld\n";
/// A file that is made, as git sends it.
const SECOND: &str = "From: A <a@example.com>\nSubject: [PATCH] add a header\n---\n common/n.h | 1 +\n\ndiff --git a/common/n.h b/common/n.h\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ b/common/n.h\n@@ -0,0 +1 @@\n+#include <linux/stdarg.h>\n-- \n2.39.5\n\n";
/// A change of what the first one wrote, and of what the second one made.
const THIRD: &str = "--- a/Kbuild\n+++ b/Kbuild\n@@ -1,2 +1,3 @@\n CC ?= $(KBUILD_CC)\n+AR ?= ar\n LD ?= ld\n--- a/common/n.h\n+++ b/common/n.h\n@@ -1 +1 @@\n-#include <linux/stdarg.h>\n+#include <stdarg.h>\n";
const LIST: &str =
    "# build system\nfirst.patch\n\nkernel/second.patch -p1 # for 5.15\nthird.patch\n";
const KBUILD: &str = "CC ?= cc\nLD ?= ld\n";

/// Makes sources with these patches and this series.
fn sources(series: &str, patches: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    let below = |name: &str| dir.path().join(DIRECTORY).join(name);
    fs::create_dir_all(below("kernel")).expect("directory");
    fs::create_dir(dir.path().join("common")).expect("directory");
    fs::write(dir.path().join("Kbuild"), KBUILD).expect("write");
    fs::write(below(SERIES), series).expect("write");
    for (name, text) in patches {
        fs::write(below(name), text).expect("write");
    }
    dir
}

fn all() -> [(&'static str, &'static str); 3] {
    [("first.patch", FIRST), ("kernel/second.patch", SECOND), ("third.patch", THIRD)]
}

fn read_file(dir: &tempfile::TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(name)).expect("read")
}

#[test]
fn a_series_is_applied_in_its_order() {
    let dir = sources(LIST, &all());
    let applied = apply("p 1-1", dir.path()).expect("applies").expect("has a series");
    assert_eq!(applied.count, 3);
    assert_eq!(read_file(&dir, "Kbuild"), "CC ?= $(KBUILD_CC)\nAR ?= ar\nLD ?= ld\n");
    assert_eq!(read_file(&dir, "common/n.h"), "#include <stdarg.h>\n");
}

#[test]
fn the_digest_is_of_the_patches_and_their_order() {
    let digest = |series: &str, patches: &[(&str, &str)]| {
        let dir = sources(series, patches);
        apply("p 1-1", dir.path()).expect("applies").map(|applied| applied.sha256)
    };
    let whole = digest(LIST, &all());
    let commented = digest("first.patch\nkernel/second.patch\nthird.patch\n", &all());
    assert_eq!(whole, commented);
    assert_ne!(whole, digest("first.patch\nkernel/second.patch\n", &all()));
    assert_ne!(whole, digest("kernel/second.patch\nfirst.patch\nthird.patch\n", &all()));
}

#[rstest]
#[case::empty("")]
#[case::comments("# none\n\n  #first.patch\n")]
fn a_series_without_patches_changes_nothing(#[case] series: &str) {
    let dir = sources(series, &all());
    assert_eq!(apply("p 1-1", dir.path()).expect("reads"), None);
    assert_eq!(read_file(&dir, "Kbuild"), KBUILD);
}

#[test]
fn sources_without_a_series_are_left_alone() {
    let dir = tempfile::tempdir().expect("temporary directory");
    assert_eq!(apply("p 1-1", dir.path()).expect("reads"), None);
    fs::create_dir(dir.path().join("debian")).expect("directory");
    assert_eq!(apply("p 1-1", dir.path()).expect("reads"), None);
}

#[rstest]
#[case::above("../first.patch\n", FIRST, "\"../first.patch\" is not a path below")]
#[case::hidden_above("kernel/../../../first.patch\n", FIRST, "is not a path below")]
#[case::absolute("/etc/passwd\n", FIRST, "\"/etc/passwd\" is not a path below")]
#[case::other_depth("first.patch -p0\n", FIRST, "the option \"-p0\" of first.patch is not known")]
#[case::reversed("first.patch -R\n", FIRST, "the option \"-R\"")]
#[case::twice("first.patch\nfirst.patch\n", FIRST, "first.patch is listed twice")]
#[case::absent("none.patch\n", FIRST, "debian/patches/none.patch: No such file")]
#[case::a_directory("kernel\n", FIRST, "debian/patches/kernel: no regular file")]
#[case::link("link.patch\n", FIRST, "debian/patches/link.patch is a link")]
#[case::behind_a_link("out/x.patch\n", FIRST, "debian/patches/out is a link")]
#[case::damaged(
    "first.patch\n",
    "--- a/Kbuild\n+++ b/Kbuild\n",
    "first.patch: line 2: Kbuild has no hunk"
)]
#[case::misfit(
    "first.patch\n",
    "--- a/Kbuild\n+++ b/Kbuild\n@@ -1 +1 @@\n-CC ?= gcc\n+CC ?= cc\n",
    "first.patch does not fit the sources: Kbuild: hunk 1 (for line 1)"
)]
#[case::changes_outside(
    "first.patch\n",
    "--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-x\n+y\n",
    "first.patch: line 1: \"../x\" is not a path below the sources"
)]
#[case::changes_behind_a_link(
    "first.patch\n",
    "--- a/outside/x\n+++ b/outside/x\n@@ -1 +1 @@\n-x\n+y\n",
    "outside is a link"
)]
#[case::makes_behind_a_link(
    "first.patch\n",
    "--- /dev/null\n+++ b/outside/new\n@@ -0,0 +1 @@\n+y\n",
    "outside is a link"
)]
fn a_hostile_series_is_refused_and_changes_nothing(
    #[case] series: &str,
    #[case] first: &str,
    #[case] said: &str,
) {
    let outside = tempfile::tempdir().expect("temporary directory");
    fs::write(outside.path().join("x"), "x\n").expect("write");
    fs::write(outside.path().join("x.patch"), FIRST).expect("write");
    let dir = sources(series, &[("first.patch", first)]);
    let below = dir.path().join(DIRECTORY);
    symlink(outside.path(), below.join("out")).expect("link");
    symlink(outside.path().join("x.patch"), below.join("link.patch")).expect("link");
    symlink(outside.path(), dir.path().join("outside")).expect("link");
    let failure = apply("p 1-1", dir.path()).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    let text = failure.to_string();
    assert!(text.starts_with("p 1-1: debian/patches/") && text.contains(said), "{text}");
    assert_eq!(read_file(&dir, "Kbuild"), KBUILD);
    assert_eq!(fs::read_dir(outside.path()).expect("list").count(), 2);
}

#[rstest]
#[case::series(SERIES, MOST_SERIES, "series: larger than 64 KiB")]
#[case::patch("first.patch", MOST_PATCH, "first.patch: larger than 1024 KiB")]
fn sizes_are_bounded(#[case] name: &str, #[case] most: u64, #[case] said: &str) {
    let dir = sources("first.patch\n", &[]);
    let file = fs::File::create(dir.path().join(DIRECTORY).join(name)).expect("create");
    file.set_len(most + 1).expect("grow");
    let failure = apply("p 1-1", dir.path()).expect_err("refused");
    assert!(failure.to_string().contains(said), "{failure}");
}

#[test]
fn the_number_of_patches_is_bounded() {
    let series: String = (0..=MOST_PATCHES).map(|n| format!("{n}.patch\n")).collect();
    let dir = sources(&series, &[]);
    let failure = apply("p 1-1", dir.path()).expect_err("refused");
    assert!(failure.to_string().contains("more than 500 patches"), "{failure}");
}

#[test]
fn a_link_in_place_of_the_directory_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::create_dir(dir.path().join("debian")).expect("directory");
    symlink("/etc", dir.path().join(DIRECTORY)).expect("link");
    let failure = apply("p 1-1", dir.path()).expect_err("refused");
    assert!(failure.to_string().contains("debian/patches is a link"), "{failure}");
}
