//! Headers in the forms of Debian's and Ubuntu's archives.
//!
//! Debian's stanzas are those of bookworm, Ubuntu's those of jammy and noble as their package pages
//! show them, without the fields that are not read.

use longshore_core::digest::hex;
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_core::testing::kernel_image as image;
use rstest::rstest;
use sha2::{Digest, Sha256};

use super::*;
use crate::headers::archive::{find, releases};
use crate::headers::parts::PREFIX;
use crate::headers::{HeaderPlaces, Headers, Wanted, find as find_headers};
use crate::userspace::sample::deb;

/// `uname -v` of the kernel in the images.
const VERSION: &str = "#142-Ubuntu SMP PREEMPT_DYNAMIC Thu Nov 5 10:00:00 UTC 2026";
const GCC_12: &str = "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0";
const GCC_13: &str = "x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0";
const JAMMY_12: &str = "x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0";
const NOBLE: &str = "linux-headers-6.8.0-142-generic";
const UNAME: &str = "#142-Ubuntu SMP PREEMPT_DYNAMIC Thu Nov 5 10:00:00 UTC 2026";

/// A stanza with the digest `sha256`, or one of its own.
fn stanza(name: &str, version: &str, more: &str, sha256: Option<&str>) -> String {
    let own = || hex(&Sha256::digest(format!("{name} {version}")));
    let sha256 = sha256.map_or_else(own, str::to_owned);
    format!(
        "Package: {name}\nVersion: {version}\nArchitecture: amd64\n{more}Filename: p/{name}.deb\n\
         Size: 1\nSHA256: {sha256}\n\n"
    )
}

/// Stanzas of packages with a source and dependencies; `-` is its own source.
fn stanzas(packages: &[(&str, &str, &str, &str)]) -> String {
    let text = |(name, version, source, depends): &(&str, &str, &str, &str)| {
        let field = |name: &str, value: &str| match value {
            "" | "-" => String::new(),
            _ => format!("{name}: {value}\n"),
        };
        let more = field("Source", source) + &field("Depends", depends);
        stanza(name, version, &more, None)
    };
    packages.iter().map(text).collect()
}

/// The tools of a build, and the C library of this version.
fn tools_with(libc: &str) -> String {
    let plain = TOOLS.into_iter().filter(|name| *name != "libc6-dev");
    let tools: String = plain.map(|name| stanza(name, libc, "", None)).collect();
    tools
        + &stanzas(&[
            ("libc6-dev", libc, "glibc", "linux-libc-dev, libc6"),
            ("libc6", libc, "glibc", ""),
            ("linux-libc-dev", libc, "linux", ""),
            ("libelf1", libc, "elfutils", ""),
            ("libelf1t64", libc, "elfutils", ""),
            ("libssl3", libc, "openssl", ""),
            ("pahole", libc, "dwarves", "libc6"),
        ])
}

fn bookworm() -> String {
    stanzas(&[
        (
            "linux-headers-6.1.0-50-amd64",
            "6.1.176-1",
            "linux",
            "linux-headers-6.1.0-50-common (= 6.1.176-1), linux-kbuild-6.1 (>= 6.1.176-1), \
             linux-compiler-gcc-12-x86",
        ),
        ("linux-headers-6.1.0-50-common", "6.1.176-1", "linux", ""),
        ("linux-kbuild-6.1", "6.1.192-2", "linux", "libc6, libelf1, libssl3"),
        ("linux-kbuild-6.1", "6.1.176-1", "linux", "libc6, libelf1, libssl3"),
        ("linux-compiler-gcc-12-x86", "6.1.192-2", "linux", "gcc-12"),
        ("linux-compiler-gcc-12-x86", "6.1.176-1", "linux", "gcc-12"),
        (
            "linux-headers-6.12.107+deb12-amd64",
            "6.12.107-1~deb12u1",
            "linux-6.12",
            "linux-base (>= 4.12~), linux-headers-6.12.107+deb12-common (= 6.12.107-1~deb12u1), \
             linux-image-6.12.107+deb12-amd64 (= 6.12.107-1~deb12u1) | \
             linux-image-6.12.107+deb12-amd64-unsigned (= 6.12.107-1~deb12u1), \
             linux-kbuild-6.12.107+deb12, gcc-12",
        ),
        ("linux-headers-6.12.107+deb12-common", "6.12.107-1~deb12u1", "linux-6.12", ""),
        (
            "linux-kbuild-6.12.107+deb12",
            "6.12.107-1~deb12u1",
            "linux-6.12",
            "libc6, libelf1, libssl3, pahole",
        ),
        ("gcc-12", "12.2.0-14+deb12u1", "", "libc6"),
    ]) + &tools_with("2.36")
}

/// Returns the packages in the key of a set, and all of the root.
fn built(suites: &[(&str, &str)], release: &str, compiler: &str) -> (Vec<String>, Vec<String>) {
    let archive = Archive::of_suites(suites);
    let headers = find(&archive, release, None).expect("headers");
    let stated = stated(compiler);
    let gcc = compiler_for(&headers, &stated).expect("a compiler");
    let toolchain = closure(&archive, &headers, &gcc, &stated).expect("a toolchain");
    let named = |packages: &[Package]| -> Vec<String> {
        packages.iter().map(|p| format!("{}_{}", p.name, p.version)).collect()
    };
    (named(&parts_among(&headers.package, &toolchain)), named(&toolchain))
}

fn stated(compiler: &str) -> Stated {
    let kernel_version = "#1 SMP".to_owned();
    Stated { kernel_version, compiler: compiler.to_owned(), realtime: false }
}

/// Names the packages that keys had before parts were found by their source.
fn named_as_headers(toolchain: &[String]) -> Vec<String> {
    let is_one = |name: &&String| name.starts_with(PREFIX) || name.starts_with(KBUILD);
    let mut names: Vec<String> = toolchain.iter().filter(is_one).cloned().collect();
    names.sort();
    names
}

#[rstest]
#[case::own_version_of_kbuild(
    "6.1.0-50-amd64",
    &["linux-headers-6.1.0-50-amd64_6.1.176-1", "linux-headers-6.1.0-50-common_6.1.176-1",
      "linux-kbuild-6.1_6.1.176-1"]
)]
#[case::with_its_image(
    "6.12.107+deb12-amd64",
    &["linux-headers-6.12.107+deb12-amd64_6.12.107-1~deb12u1",
      "linux-headers-6.12.107+deb12-common_6.12.107-1~deb12u1",
      "linux-kbuild-6.12.107+deb12_6.12.107-1~deb12u1"]
)]
fn the_keys_of_debians_sets_stay(#[case] release: &str, #[case] wanted: &[&str]) {
    let (mut keyed, toolchain) = built(&[("bookworm", &bookworm())], release, GCC_12);
    keyed.sort();
    assert_eq!(keyed, wanted);
    assert_eq!(keyed, named_as_headers(&toolchain));
    assert!(toolchain.contains(&"gcc-12_12.2.0-14+deb12u1".to_owned()), "{toolchain:?}");
    assert!(!toolchain.iter().any(|name| name.starts_with("linux-image")), "{toolchain:?}");
}

#[test]
fn a_part_of_another_source_counts_by_debians_names() {
    let kbuild = ("linux-kbuild-6.1", "6.1.176-1", "linux", "libc6, libelf1, libssl3");
    let other = ("linux-kbuild-6.1", "6.1.180-1~bpo11+1", "linux-6.1", "");
    let text = bookworm().replace(&stanzas(&[kbuild]), &stanzas(&[other]));
    let text = text.replace("Version: 6.1.192-2", "Version: 6.1.170-1");
    let (keyed, _) = built(&[("bookworm", &text)], "6.1.0-50-amd64", GCC_12);
    assert_eq!(keyed.last().expect("parts"), "linux-kbuild-6.1_6.1.180-1~bpo11+1");
}

const FLAVOUR: &str = "libc6, libelf1t64 | libelf1";

#[rstest]
#[case::general("6.8.0-142-generic", "linux", "linux-headers-6.8.0-142", "6.8.0-142.142")]
#[case::hwe(
    "6.8.0-52-generic",
    "linux-hwe-6.8",
    "linux-hwe-6.8-headers-6.8.0-52",
    "6.8.0-52.53~22.04.1"
)]
#[case::cloud("6.8.0-1015-aws", "linux-aws", "linux-aws-headers-6.8.0-1015", "6.8.0-1015.16")]
#[case::board("5.15.0-1034-s32", "linux-s32", "linux-s32-headers-5.15.0-1034", "5.15.0-1034.37")]
fn ubuntus_common_parts_are_in_the_key(
    #[case] release: &str,
    #[case] source: &str,
    #[case] common: &str,
    #[case] version: &str,
) {
    let headers = format!("linux-headers-{release}");
    let depends = format!("{common}, {FLAVOUR}");
    let text = stanzas(&[
        (&headers, version, source, &depends),
        (common, "9.9", source, ""),
        (common, version, source, ""),
        ("gcc-13", "13.3.0-6ubuntu2~24.04", "gcc-13", "libc6"),
    ]) + &tools_with("2.39");
    let (keyed, toolchain) = built(&[("noble", &text)], release, GCC_13);
    assert_eq!(keyed, [format!("{headers}_{version}"), format!("{common}_{version}")]);
    assert!(toolchain.contains(&"gcc-13_13.3.0-6ubuntu2~24.04".to_owned()), "{toolchain:?}");
}

#[test]
fn parts_of_parts_count_and_a_loop_of_them_ends() {
    let text = stanzas(&[
        (NOBLE, "6.8.0-142.142", "linux", "linux-headers-6.8.0-142, libc6"),
        ("linux-headers-6.8.0-142", "6.8.0-142.142", "linux", "linux-part-6.8.0-142"),
        ("linux-part-6.8.0-142", "6.8.0-142.143", "linux", ""),
        ("linux-part-6.8.0-142", "6.8.0-142.142", "linux", &format!("{NOBLE}, libelf1t64")),
        ("gcc-13", "13.3.0-6ubuntu2~24.04", "gcc-13", ""),
    ]) + &tools_with("2.39");
    let (keyed, toolchain) = built(&[("noble", &text)], "6.8.0-142-generic", GCC_13);
    let wanted = [NOBLE, "linux-headers-6.8.0-142", "linux-part-6.8.0-142"];
    assert_eq!(keyed, wanted.map(|name| format!("{name}_6.8.0-142.142")));
    let headers = format!("{NOBLE}_");
    assert_eq!(toolchain.iter().filter(|name| name.starts_with(&headers)).count(), 1);
}

#[rstest]
#[case::with_a_common_part("linux-hwe-6.8-headers-6.8.0-52, libc6")]
#[case::without("libc6")]
fn compiler_and_libraries_are_of_the_headers_release(#[case] depends: &str) {
    let (name, version) = ("linux-headers-6.8.0-52-generic", "6.8.0-52.53~22.04.1");
    let jammy = stanzas(&[
        (name, version, "linux-hwe-6.8", depends),
        ("linux-hwe-6.8-headers-6.8.0-52", version, "linux-hwe-6.8", ""),
        ("gcc-12", "12.3.0-1ubuntu1~22.04.3", "", "libc6"),
    ]) + &tools_with("2.35");
    let noble = stanzas(&[("gcc-12", "12.3.0-17ubuntu1", "", "libc6")]) + &tools_with("2.39");
    let suites = [("noble", noble.as_str()), ("jammy-updates", jammy.as_str())];
    let (_, toolchain) = built(&suites, "6.8.0-52-generic", JAMMY_12);
    for wanted in ["gcc-12_12.3.0-1ubuntu1~22.04.3", "libc6_2.35", "make_2.35"] {
        assert!(toolchain.contains(&wanted.to_owned()), "{wanted} in {toolchain:?}");
    }
}

#[rstest]
#[case::confirmed("gcc-12", GCC_12, Some("gcc-12"))]
#[case::by_the_kernel_alone("libc6", GCC_13, Some("gcc-13"))]
#[case::another_than_the_kernels("gcc-12", GCC_13, Some("gcc-13"))]
#[case::unreadable("gcc-12", "cc of our own", Some("gcc-12"))]
#[case::any_major("libc6", "gcc-16 (GCC) 16.1.0", Some("gcc-16"))]
#[case::clang("libc6", "Ubuntu clang version 18.1.3 (1ubuntu1)", None)]
#[case::clang_beside_gcc("gcc-12", "clang version 19.1.7", None)]
#[case::nothing("libc6", "cc of our own", None)]
fn the_kernel_decides_on_the_compiler(
    #[case] depends: &str,
    #[case] states: &str,
    #[case] wanted: Option<&str>,
) {
    let text = stanzas(&[(NOBLE, "1", "linux", depends)]);
    let archive = Archive::of_suites(&[("noble", &text)]);
    let headers = find(&archive, "6.8.0-142-generic", None).expect("headers");
    let compiler = compiler_for(&headers, &stated(states));
    assert_eq!(compiler.as_deref().ok(), wanted);
    if let Err(failure) = compiler {
        assert_eq!(failure.code(), ExitCode::Toolchain);
        let text = failure.to_string();
        assert!(text.contains(states) || text.contains("clang 18.1"), "{text}");
        assert_eq!(text.contains("clang"), states.contains("clang"), "{text}");
        assert!(failure.remedy_or_default().contains("prebuilt set"), "{failure}");
    }
}

#[test]
fn a_compiler_that_only_the_dependencies_name_is_not_unpacked() {
    let text = stanzas(&[
        (NOBLE, "1", "linux", "linux-compiler-gcc-12-x86, libc6"),
        ("linux-compiler-gcc-12-x86", "1", "linux", "gcc-12"),
        ("gcc-13", "13.3.0-6ubuntu2~24.04", "gcc-13", ""),
    ]) + &tools_with("2.39");
    let (keyed, toolchain) = built(&[("noble", &text)], "6.8.0-142-generic", GCC_13);
    assert_eq!(keyed, [format!("{NOBLE}_1")]);
    assert!(!toolchain.iter().any(|name| name.contains("gcc-12")), "{toolchain:?}");
}

/// Finds the headers of `uname` in an archive of Ubuntu's form, whose headers have these files.
async fn find_noble(uname: Option<&str>, files: &[(&str, &str)]) -> Result<Headers, Failure> {
    find_noble_with(uname, files, &[]).await
}

/// Finds the same where the archive has also the image packages of these names.
async fn find_noble_with(
    uname: Option<&str>,
    files: &[(&str, &str)],
    images: &[&str],
) -> Result<Headers, Failure> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let store = Store::open(dir.path(), Disk::default()).expect("store");
    let file = |(path, text): &(&str, &str)| {
        (format!("usr/src/{NOBLE}/include/{path}"), text.as_bytes().to_vec())
    };
    let files: Vec<_> = files.iter().map(file).collect();
    let sha256 = store.put(&deb(&files)).expect("stored");
    let image = image(&format!("6.8.0-142-generic (buildd@b) {VERSION}"), 0x800);
    // Beside a linux-binary, linux-image has scripts alone.
    let is_split = images.iter().any(|name| name.starts_with("linux-binary-"));
    let place = |name: &str| match (name.starts_with("linux-binary-"), is_split) {
        (true, _) => "usr/lib/modules/6.8.0-142-generic/vmlinuz",
        (false, true) => "usr/share/doc/copyright",
        (false, false) => "boot/vmlinuz-6.8.0-142-generic",
    };
    let stored =
        |name: &str| store.put(&deb(&[(place(name).to_owned(), image.clone())])).expect("stored");
    let depends = format!("Source: linux\nDepends: linux-headers-6.8.0-142, {FLAVOUR}\n");
    let images = images.iter().map(|name| stanza(name, "6.8.0-142.142", "", Some(&stored(name))));
    let text = images.collect::<String>()
        + &stanza(NOBLE, "6.8.0-142.142", &depends, Some(&sha256))
        + &stanzas(&[
            (NOBLE, "6.8.0-142.141", "linux", "libc6"),
            ("linux-headers-6.8.0-142", "6.8.0-142.142", "linux", ""),
            ("gcc-13", "13.3.0-6ubuntu2~24.04", "gcc-13", "libc6"),
        ])
        + &tools_with("2.39");
    let archive = Archive::of_suites(&[("noble", &text)]);
    let wanted = Wanted { release: "6.8.0-142-generic", version: uname };
    let places = HeaderPlaces::default();
    find_headers(wanted, &places, None, &archive, &store, &Silent).await
}

const COMPILE_H: (&str, &str) = (
    "generated/compile.h",
    "#define UTS_MACHINE \"x86_64\"\n#define LINUX_COMPILER \"x86_64-linux-gnu-gcc-13 (Ubuntu \
     13.3.0-6ubuntu2~24.04) 13.3.0, GNU ld (GNU Binutils for Ubuntu) 2.42\"\n",
);

#[rstest]
#[case::in_the_configuration(&[("config/auto.conf",
    "CONFIG_CC_VERSION_TEXT=\"x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0\"\n")])]
#[case::in_the_compile(&[COMPILE_H])]
#[tokio::test]
async fn ubuntus_headers_have_compiler_and_version(#[case] files: &[(&str, &str)]) {
    let headers = find_noble(Some(UNAME), files).await.expect("found");
    assert_eq!(headers.compiler, "gcc-13");
    assert_eq!(headers.stated.compiler, GCC_13);
    assert_eq!(headers.stated.kernel_version, UNAME);
    let names: Vec<&str> = headers.parts.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, [NOBLE, "linux-headers-6.8.0-142"]);
}

#[rstest]
#[case::signed(&["linux-image-6.8.0-142-generic"])]
#[case::unsigned(&["linux-image-unsigned-6.8.0-142-generic"])]
#[case::beside_the_modules(&["linux-image-6.8.0-142-generic", "linux-binary-6.8.0-142-generic"])]
#[case::beside_them_unsigned(&["linux-binary-unsigned-6.8.0-142-generic"])]
#[tokio::test]
async fn a_kernel_that_does_not_run_has_its_version_in_its_image(#[case] images: &[&str]) {
    let headers = find_noble_with(None, &[COMPILE_H], images).await.expect("found");
    assert_eq!(headers.stated.kernel_version, VERSION);
}

#[rstest]
#[case::no_build_of_the_release(Some("#143-Ubuntu SMP"), &[COMPILE_H],
    &["#143-Ubuntu SMP", "6.8.0-142.142, 6.8.0-142.141"])]
#[case::states_another(Some(UNAME),
    &[("generated/compile.h", "#define UTS_VERSION \"#142-Ubuntu SMP of another day\"\n"),
      ("config/auto.conf", "CONFIG_CC_VERSION_TEXT=gcc-13 (GCC) 13.3.0\n")],
    &["#142-Ubuntu SMP PREEMPT_DYNAMIC", "6.8.0-142.142"])]
#[case::no_running_kernel(None, &[COMPILE_H], &["which build of the kernel"])]
#[case::another_form(Some("#1 SMP of our own"), &[COMPILE_H], &["which build of the kernel"])]
#[tokio::test]
async fn headers_of_another_build_are_refused(
    #[case] uname: Option<&str>,
    #[case] files: &[(&str, &str)],
    #[case] wanted: &[&str],
) {
    let failure = find_noble(uname, files).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Toolchain);
    for part in wanted {
        assert!(failure.to_string().contains(part), "{part} in {failure}");
    }
}

#[rstest]
#[case::debian("6.1.0-50-amd64", bookworm(), &["linux-kbuild-6.1_6.1.176-1"], "linux-headers")]
#[case::ubuntu(
    "6.8.0-142-generic",
    stanzas(&[(NOBLE, "1", "linux", "linux-headers-6.8.0-142, libssl3, gcc-13"),
              ("linux-headers-6.8.0-142", "1", "linux", "")]) + &tools_with("2.39"),
    &["linux-headers-6.8.0-142-generic_1", "libssl3_2.39"], "linux-headers-6.8.0-142_"
)]
fn sign_file_is_in_a_small_root(
    #[case] release: &str,
    #[case] text: String,
    #[case] wanted: &[&str],
    #[case] absent: &str,
) {
    let archive = Archive::of_suites(&[("suite", &text)]);
    let headers = find(&archive, release, None).expect("headers");
    let packages = programs(&archive, &headers).expect("programs");
    let names: Vec<String> = packages.iter().map(|p| format!("{}_{}", p.name, p.version)).collect();
    for name in wanted {
        assert!(names.contains(&(*name).to_owned()), "{name} in {names:?}");
    }
    assert!(!names.iter().any(|name| name.starts_with(absent)), "{names:?}");
}

#[test]
fn parts_are_no_releases() {
    let text = stanzas(&[
        (NOBLE, "1", "linux", ""),
        ("linux-headers-6.8.0-142", "1", "linux", ""),
        ("linux-headers-6.8", "1", "linux", ""),
        ("linux-headers-6.1.0-50-common", "1", "linux", ""),
        ("linux-headers-6.1.0-50-amd64", "1", "linux", ""),
    ]);
    let archive = Archive::of_suites(&[("suite", &text)]);
    assert_eq!(releases(&archive), ["6.1.0-50-amd64", "6.8.0-142-generic"]);
}

#[rstest]
#[case("gcc-12", Some("gcc-12"))]
#[case("gcc-14-for-host", Some("gcc-14"))]
#[case("gcc-14-x86-64-linux-gnu", Some("gcc-14"))]
#[case("gcc", None)]
#[case("gcc-", None)]
#[case("gcc-12base", None)]
#[case("clang-16", None)]
fn compilers_are_told_by_their_names(#[case] name: &str, #[case] wanted: Option<&str>) {
    assert_eq!(gcc_name(name).as_deref(), wanted);
}
