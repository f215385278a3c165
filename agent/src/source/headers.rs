//! Kernel headers in an archive, and the compiler that belongs to them.
//!
//! `linux-headers-RELEASE` depends on its common part, on `linux-kbuild-*` and, directly or by
//! `linux-compiler-gcc-N-x86`, on the compiler the kernel was built with. Since Linux 6.12 Debian's
//! also depends on the kernel image, which a build does not need.

use super::archive::{Archive, Package, Requirement};
use super::{deb, version};
use crate::catalog::HeadersAtHand;
use crate::failure::{ExitCode, Failure};
use crate::store::Store;

const PREFIX: &str = "linux-headers-";
/// How many releases a message names.
const NAMED: usize = 6;
/// What a build needs beyond headers and compiler; conftest's sanity check fails without libc6-dev
/// with a message that misleads.
const TOOLS: [&str; 10] = [
    "binutils",
    "libc6-dev",
    "make",
    "dash",
    "coreutils",
    "mawk",
    "sed",
    "grep",
    "findutils",
    "diffutils",
];

/// The headers of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// `uname -r`.
    pub release: String,
    /// `linux-headers-RELEASE`.
    pub package: Package,
    /// The compiler package it asks for, for example `gcc-12`.
    pub compiler: String,
}

/// What the headers say of their kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// `uname -v`, for example `#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)`.
    pub kernel_version: String,
    /// The compiler of the kernel, for example `gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0`.
    pub compiler: String,
    /// Whether it is a PREEMPT_RT kernel.
    pub realtime: bool,
}

impl Stated {
    /// The compiler's program, for example `gcc-12` or `x86_64-linux-gnu-gcc-14`.
    pub fn compiler_program(&self) -> &str {
        self.compiler.split_ascii_whitespace().next().unwrap_or_default()
    }

    /// The version of the compiler's package, which distributions put in brackets.
    pub fn compiler_package_version(&self) -> Option<&str> {
        let inside = self.compiler.split_once('(')?.1.split_once(')')?.0;
        inside.split_once(' ').map(|(_, version)| version)
    }
}

/// The headers of the kernel `release`: of the version that `kernel_version` (`uname -v`) names,
/// or the newest.
///
/// # Errors
/// Exit code 11 where the archive has no headers for it, with the releases that come nearest.
pub fn find(
    archive: &Archive,
    release: &str,
    kernel_version: Option<&str>,
) -> Result<Headers, Failure> {
    let candidates = archive.packages(&format!("{PREFIX}{release}"));
    let newest = candidates.first().cloned().ok_or_else(|| missing(archive, release))?;
    let package = choose(candidates, kernel_version)
        .ok_or_else(|| other_build(&newest, kernel_version.unwrap_or_default()))?;
    let compiler = compiler_of(archive, &package).ok_or_else(|| {
        Failure::new(
            ExitCode::Toolchain,
            format!("{} {} asks for no gcc", package.name, package.version),
        )
        .remedy("longshore builds with gcc only; use a prebuilt set for this kernel")
    })?;
    Ok(Headers { release: release.to_owned(), package, compiler })
}

/// As [`find`], for the catalog: absence is an answer, not an error.
pub fn at_hand(archive: &Archive, release: &str, kernel_version: Option<&str>) -> HeadersAtHand {
    match find(archive, release, kernel_version) {
        Ok(headers) => HeadersAtHand::Archive {
            package: headers.package.name,
            version: headers.package.version,
            compiler: headers.compiler,
        },
        Err(_) => HeadersAtHand::Missing { nearest: nearest(&releases(archive), release) },
    }
}

/// Reads what the headers package, which is in the store, says of its kernel, and compares it with
/// `uname -v` where that is given.
///
/// # Errors
/// Exit code 11 where it is for another build of the same release; 13 where the package is damaged
/// or has not the form of a headers package.
pub fn read_stated(
    headers: &Headers,
    kernel_version: Option<&str>,
    store: &Store,
) -> Result<Stated, Failure> {
    let dir = format!("usr/src/{}", headers.package.name);
    let read = |path: &str| -> Result<String, Failure> {
        let reader = store.open_blob(&headers.package.sha256)?;
        let path = format!("{dir}/{path}");
        let bytes = deb::read_file(&headers.package.name, reader, path.as_ref())?;
        Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
    };
    let generated = read("include/generated/compile.h")?;
    // Since Linux 6.1 UTS_VERSION has a file of its own (kernel commit 2df8220cc511).
    let uts = match defined(&generated, "UTS_VERSION") {
        Some(version) => Some(version),
        None => defined(&read("include/generated/utsversion.h")?, "UTS_VERSION"),
    };
    let conf = read("include/config/auto.conf")?;
    let compiler = configured(&conf, "CONFIG_CC_VERSION_TEXT");
    let (Some(found), Some(compiler)) = (uts, compiler) else {
        return Err(Failure::new(
            ExitCode::Verification,
            format!("{} does not say which kernel and compiler it is for", headers.package.name),
        ));
    };
    if let Some(wanted) = kernel_version.filter(|wanted| *wanted != found) {
        return Err(other_build(&headers.package, wanted));
    }
    let realtime = configured(&conf, "CONFIG_PREEMPT_RT").as_deref() == Some("y");
    Ok(Stated { kernel_version: found, compiler, realtime })
}

/// The hash that the kernel's own modules are signed with (CONFIG_MODULE_SIG_HASH), as the headers
/// package, which is in the store, says; None for a kernel without signatures.
///
/// # Errors
/// Exit code 13 where the package is damaged.
pub fn signature_hash(headers: &Headers, store: &Store) -> Result<Option<String>, Failure> {
    let name = &headers.package.name;
    let reader = store.open_blob(&headers.package.sha256)?;
    let path = format!("usr/src/{name}/include/config/auto.conf");
    let bytes = deb::read_file(name, reader, path.as_ref())?.unwrap_or_default();
    Ok(configured(&String::from_utf8_lossy(&bytes), "CONFIG_MODULE_SIG_HASH"))
}

/// What a headers package asks for that has the kernel's programs, sign-file among them.
pub fn kbuild(package: &Package) -> Option<&Requirement> {
    needed(package).find(|one| one.name.starts_with("linux-kbuild-"))
}

/// Everything a build for this kernel needs, the header packages first.
///
/// # Errors
/// Exit code 11 naming what is not to be had.
pub fn closure(
    archive: &Archive,
    headers: &Headers,
    stated: &Stated,
) -> Result<Vec<Package>, Failure> {
    let of_kernel = &headers.package.version;
    let mut roots: Vec<Requirement> = needed(&headers.package).cloned().collect();
    for root in &mut roots {
        prefer(archive, root, of_kernel);
    }
    // The first root decides the release the others are taken from: that of the headers.
    roots.sort_by_key(|root| !root.name.starts_with(PREFIX));
    let mut compiler = Requirement::any(headers.compiler.clone());
    if let Some(version) = stated.compiler_package_version() {
        prefer(archive, &mut compiler, version);
    }
    roots.push(compiler);
    roots.extend(TOOLS.map(Requirement::any));
    let mut packages = vec![headers.package.clone()];
    packages.extend(
        archive
            .closure(&roots)
            .map_err(|unsatisfiable| unsatisfiable.failure(ExitCode::Toolchain))?,
    );
    Ok(packages)
}

/// Whether a package holds headers, or the programs that go with them.
pub fn is_headers(package: &Package) -> bool {
    package.name.starts_with(PREFIX) || package.name.starts_with("linux-kbuild-")
}

/// What the headers depend on, without the kernel's image and what comes with that.
fn needed(package: &Package) -> impl Iterator<Item = &Requirement> {
    package
        .depends
        .iter()
        .filter_map(|clause| clause.0.first())
        .filter(|one| !one.name.starts_with("linux-image-") && !one.name.starts_with("linux-base"))
}

/// Narrows `root` to `version`, where the archive has it in that version.
fn prefer(archive: &Archive, root: &mut Requirement, version: &str) {
    if archive.packages(&root.name).iter().any(|p| p.version == version) {
        *root = Requirement::exact(root.name.clone(), version);
    }
}

/// The version that runs, where `uname -v` names it as Debian's does (`... Debian 6.1.176-1 (DATE)`),
/// or else the newest; what the headers say of themselves is compared afterwards.
fn choose(candidates: Vec<Package>, kernel_version: Option<&str>) -> Option<Package> {
    let named = kernel_version.and_then(|version| {
        version.split_ascii_whitespace().skip_while(|word| *word != "Debian").nth(1)
    });
    candidates.into_iter().find(|p| named.is_none_or(|version| p.version == version))
}

/// `gcc-N`, from the headers' own dependencies or those of their `linux-compiler-*` package.
fn compiler_of(archive: &Archive, headers: &Package) -> Option<String> {
    let gcc_in = |package: &Package| needed(package).find_map(|one| gcc_name(&one.name));
    gcc_in(headers).or_else(|| {
        let through = needed(headers).find(|one| one.name.starts_with("linux-compiler-"))?;
        gcc_in(archive.packages(&through.name).first()?)
    })
}

/// `gcc-12` of `gcc-12`, and of `gcc-12-for-host` or `gcc-12-x86-64-linux-gnu`.
fn gcc_name(name: &str) -> Option<String> {
    let number: String =
        name.strip_prefix("gcc-")?.chars().take_while(char::is_ascii_digit).collect();
    let rest = name.strip_prefix("gcc-")?.strip_prefix(number.as_str())?;
    let whole = !number.is_empty() && (rest.is_empty() || rest.starts_with('-'));
    whole.then(|| format!("gcc-{number}"))
}

/// The value of `#define NAME "value"`.
fn defined(header: &str, name: &str) -> Option<String> {
    header.lines().find_map(|line| {
        let rest = line.strip_prefix("#define ")?.strip_prefix(name)?;
        Some(rest.trim().strip_prefix('"')?.strip_suffix('"')?.to_owned())
    })
}

/// The value of `NAME=value` in auto.conf, which quotes strings before Linux 5.17 and not after.
fn configured(conf: &str, name: &str) -> Option<String> {
    conf.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix('=')?;
        Some(value.trim_matches('"').to_owned())
    })
}

fn other_build(package: &Package, wanted: &str) -> Failure {
    Failure::new(
        ExitCode::Toolchain,
        format!(
            "the kernel is {wanted:?}, but the archives have its headers only for another build \
             of the same release: {} {}",
            package.name, package.version
        ),
    )
    .remedy(
        "update the host's kernel to that build and reboot, or add an archive that still has the \
         headers of this one, or use a prebuilt set",
    )
}

fn missing(archive: &Archive, release: &str) -> Failure {
    let nearest = nearest(&releases(archive), release);
    Failure::new(
        ExitCode::Toolchain,
        format!("no archive has {PREFIX}{release}, the headers of this kernel"),
    )
    .remedy(if nearest.is_empty() {
        "none of the archives has any kernel headers: check the configured suites".to_owned()
    } else {
        format!(
            "boot a kernel whose headers there are ({}), or add an archive that has them, or use \
             a prebuilt set",
            nearest.join(", ")
        )
    })
}

/// Releases the archive has headers for.
fn releases(archive: &Archive) -> Vec<String> {
    let is_one = |name: &str| {
        name.strip_prefix(PREFIX).is_some_and(|rest| {
            rest.starts_with(|c: char| c.is_ascii_digit())
                // `6.12-amd64` is a meta-package, `6.1.0-50-common` a part.
                && rest.split('-').next().is_some_and(|v| v.split('.').count() >= 3)
                && !rest.contains("-common")
        })
    };
    archive.names_matching(&is_one).iter().map(|n| n[PREFIX.len()..].to_owned()).collect()
}

/// The releases around `wanted`, those of its own flavour first.
fn nearest(releases: &[String], wanted: &str) -> Vec<String> {
    let flavour = flavour_of(wanted);
    let mut sorted: Vec<&String> = releases.iter().filter(|r| flavour_of(r) == flavour).collect();
    if sorted.is_empty() {
        sorted = releases.iter().collect();
    }
    sorted.sort_by(|a, b| version::compare(a, b));
    let at = sorted.partition_point(|r| version::compare(r, wanted).is_lt());
    let from = at.saturating_sub(NAMED / 2).min(sorted.len().saturating_sub(NAMED));
    sorted.into_iter().skip(from).take(NAMED).cloned().collect()
}

/// The flavour at the end of a release: `cloud-amd64` of `6.1.0-50-cloud-amd64`.
fn flavour_of(release: &str) -> String {
    let words: Vec<&str> = release.split('-').collect();
    let flavour = |word: &&&str| !word.starts_with(|c: char| c.is_ascii_digit());
    let mut words: Vec<&str> = words.iter().rev().take_while(flavour).copied().collect();
    words.reverse();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn package(version: &str) -> Package {
        Package {
            name: "linux-headers-6.1.0-50-amd64".into(),
            version: version.into(),
            arch: "amd64".into(),
            source: Some("linux".into()),
            suite: "bookworm".into(),
            component: "main".into(),
            filename: String::new(),
            size: 0,
            sha256: String::new(),
            depends: Vec::new(),
            provides: Vec::new(),
            base_url: "".into(),
        }
    }

    #[test]
    fn what_comes_with_the_image_is_not_needed() {
        let mut headers = package("7.3.4-1~bpo13+1");
        // As linux-headers-7.3.4+deb13-rt-amd64 has it, and 6.12.107's image before that.
        headers.depends = crate::source::relation::parse_clauses(
            "gcc-14-for-host, linux-base (>= 4.12~), linux-base-7.3.4+deb13-rt-amd64 (= 7.3.4-1~bpo13+1), \
             linux-image-a (= 1) | linux-image-a-unsigned (= 1), linux-kbuild-7.3.4+deb13",
        )
        .expect("reads");
        let names: Vec<_> = needed(&headers).map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["gcc-14-for-host", "linux-kbuild-7.3.4+deb13"]);
    }

    #[rstest]
    #[case::newest(None, Some("6.1.176-2"))]
    #[case::named(Some("#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)"), Some("6.1.176-1"))]
    #[case::another_form(Some("#91-Ubuntu SMP Tue Nov 14 13:30:08 UTC 2023"), Some("6.1.176-2"))]
    #[case::gone(Some("#1 SMP Debian 6.1.176-10 (2026-08-02)"), None)]
    fn the_version_that_runs_is_chosen(#[case] uname: Option<&str>, #[case] wanted: Option<&str>) {
        let candidates = vec![package("6.1.176-2"), package("6.1.176-1")];
        let chosen = choose(candidates, uname).map(|p| p.version);
        assert_eq!(chosen.as_deref(), wanted);
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

    #[rstest]
    #[case("gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", "gcc-12", Some("12.2.0-14+deb12u1"))]
    #[case(
        "x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0",
        "x86_64-linux-gnu-gcc-14",
        Some("14.2.0-19")
    )]
    #[case("gcc (GCC) 13.2.1", "gcc", None)]
    fn the_compiler_says_what_it_is(
        #[case] text: &str,
        #[case] program: &str,
        #[case] version: Option<&str>,
    ) {
        let stated =
            Stated { kernel_version: String::new(), compiler: text.to_owned(), realtime: false };
        assert_eq!(stated.compiler_program(), program);
        assert_eq!(stated.compiler_package_version(), version);
    }

    #[rstest]
    #[case("CONFIG_CC_VERSION_TEXT=gcc-12 (Debian 12.2.0-14) 12.2.0")]
    #[case("CONFIG_A=y\nCONFIG_CC_VERSION_TEXT=\"gcc-12 (Debian 12.2.0-14) 12.2.0\"")]
    fn strings_are_read_quoted_or_not(#[case] conf: &str) {
        assert_eq!(
            configured(conf, "CONFIG_CC_VERSION_TEXT").as_deref(),
            Some("gcc-12 (Debian 12.2.0-14) 12.2.0")
        );
    }

    #[test]
    fn a_definition_is_read_whatever_the_space() {
        let header = "#define UTS_MACHINE\t\t\"x86_64\"\n#define UTS_VERSION \"#1 SMP\"\n";
        assert_eq!(defined(header, "UTS_VERSION").as_deref(), Some("#1 SMP"));
        assert_eq!(defined(header, "UTS_MACHINE").as_deref(), Some("x86_64"));
        assert_eq!(defined(header, "UTS"), None);
    }

    #[rstest]
    #[case("6.1.0-50-amd64", "amd64")]
    #[case("6.1.0-50-cloud-amd64", "cloud-amd64")]
    #[case("6.12.117+deb13-rt-amd64", "rt-amd64")]
    #[case("5.15.0-91-generic", "generic")]
    fn flavours_are_the_end_of_a_release(#[case] release: &str, #[case] wanted: &str) {
        assert_eq!(flavour_of(release), wanted);
    }

    #[test]
    fn the_nearest_releases_are_around_the_wanted_one() {
        let releases: Vec<String> = (40..60)
            .flat_map(|n| [format!("6.1.0-{n}-amd64"), format!("6.1.0-{n}-cloud-amd64")])
            .filter(|r| !r.starts_with("6.1.0-50"))
            .collect();
        let near = nearest(&releases, "6.1.0-50-amd64");
        let wanted = [47, 48, 49, 51, 52, 53].map(|n| format!("6.1.0-{n}-amd64"));
        assert_eq!(near, wanted);
        assert_eq!(nearest(&releases, "9.9.0-1-amd64").last().expect("some"), "6.1.0-59-amd64");
        assert!(nearest(&[], "6.1.0-50-amd64").is_empty());
    }
}
