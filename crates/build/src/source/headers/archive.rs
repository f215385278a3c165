//! Kernel headers in an archive, and the compiler that belongs to them.
//!
//! `linux-headers-RELEASE` depends on its common part, on `linux-kbuild-*` and, directly or by
//! `linux-compiler-gcc-N-x86`, on the compiler the kernel was built with. Since Linux 6.12 Debian's
//! also depends on the kernel image, which a build does not need.

use super::compiler::{self, Compiler};
use super::nearest::nearest;
use super::stated::{self, Stated};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package, Requirement};
use longshore_debian::deb;

const PREFIX: &str = "linux-headers-";
/// Packages a build needs beside headers and compiler; without libc6-dev conftest's sanity check
/// fails with a misleading message.
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
/// Caches objects for later builds (see build::reuse).
const OBJECT_KEEPER: &str = "ccache";
/// Libraries of the programs among the headers, for headers that are not packages: objtool reads
/// ELF files. Debian has renamed the package since.
const OBJTOOL_NEEDS: [&str; 2] = ["libelf1t64", "libelf1"];

/// The headers of one kernel in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InArchive {
    /// `linux-headers-RELEASE`.
    pub package: Package,
    /// The compiler package it depends on, for example `gcc-12`.
    pub compiler: String,
}

/// Finds the headers of the kernel `release`: of the version that `kernel_version` (`uname -v`)
/// names, or the newest.
///
/// # Errors
/// Exit code 11 where the archive has no headers for it, with the nearest releases.
pub fn find(
    archive: &Archive,
    release: &str,
    kernel_version: Option<&str>,
) -> Result<InArchive, Failure> {
    let candidates = archive.packages(&format!("{PREFIX}{release}"));
    let newest = candidates.first().cloned().ok_or_else(|| missing(archive, release))?;
    let package = choose(candidates, kernel_version)
        .ok_or_else(|| other_build(&newest, kernel_version.unwrap_or_default()))?;
    let compiler = compiler_of(archive, &package).ok_or_else(|| {
        Failure::new(
            FailureKind::Toolchain,
            format!("{} {} depends on no gcc", package.name, package.version),
        )
        .remedy("longshore builds with gcc only; use a prebuilt set for this kernel")
    })?;
    Ok(InArchive { package, compiler })
}

/// Reads the kernel stated by the headers package, which is in the store, and compares it with
/// `uname -v`, if given.
///
/// # Errors
/// Exit code 11 where it is for another build of the same release; 13 where the package is damaged
/// or has not the form of a headers package.
pub(super) fn read_stated(
    package: &Package,
    kernel_version: Option<&str>,
    store: &Store,
) -> Result<Stated, Failure> {
    let stated = Stated::read(&package.name, |path| {
        let reader = store.open_blob(&package.sha256)?;
        let path = format!("usr/src/{}/{path}", package.name);
        let bytes = deb::read_file(&package.name, reader, path.as_ref())?;
        Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
    })?;
    match kernel_version.filter(|wanted| *wanted != stated.kernel_version) {
        Some(wanted) => Err(other_build(package, wanted)),
        None => Ok(stated),
    }
}

/// Reads the hash that the kernel's own modules are signed with (CONFIG_MODULE_SIG_HASH) from the
/// headers package, which is in the store; None for a kernel without signatures.
///
/// # Errors
/// Exit code 13 where the package is damaged.
pub fn signature_hash(headers: &InArchive, store: &Store) -> Result<Option<String>, Failure> {
    let name = &headers.package.name;
    let reader = store.open_blob(&headers.package.sha256)?;
    let path = format!("usr/src/{name}/include/config/auto.conf");
    let bytes = deb::read_file(name, reader, path.as_ref())?.unwrap_or_default();
    Ok(stated::configured(&String::from_utf8_lossy(&bytes), "CONFIG_MODULE_SIG_HASH"))
}

/// Returns a headers package's dependency on the kernel's programs, sign-file among them.
pub fn kbuild(package: &Package) -> Option<&Requirement> {
    needed(package).find(|one| one.name.starts_with("linux-kbuild-"))
}

/// Returns every package a build for this kernel needs, the header packages first.
///
/// # Errors
/// Exit code 11 naming the missing package.
pub(super) fn closure(
    archive: &Archive,
    headers: &InArchive,
    stated: &Stated,
) -> Result<Vec<Package>, Failure> {
    let of_kernel = &headers.package.version;
    let mut roots: Vec<Requirement> = needed(&headers.package).cloned().collect();
    for root in &mut roots {
        prefer(archive, root, of_kernel);
    }
    // The first root decides the release of the others: that of the headers.
    roots.sort_by_key(|root| !root.name.starts_with(PREFIX));
    roots.push(compiler_root(archive, &headers.compiler, stated)?);
    roots.extend(tools(archive));
    let mut packages = vec![headers.package.clone()];
    packages.extend(resolve(archive, &roots)?);
    Ok(packages)
}

/// Returns every package a build with headers from elsewhere needs: the compiler `compiler` and the
/// tools.
///
/// # Errors
/// Exit code 11 naming the missing package.
pub(super) fn toolchain(
    archive: &Archive,
    compiler: &str,
    stated: &Stated,
) -> Result<Vec<Package>, Failure> {
    let mut roots = vec![compiler_root(archive, compiler, stated)?];
    roots.extend(tools(archive));
    let has = |name: &&&str| !archive.packages(name).is_empty();
    roots.extend(OBJTOOL_NEEDS.iter().find(has).map(|name| Requirement::any(*name)));
    resolve(archive, &roots)
}

/// Returns the name of the package with the compiler that a kernel was built with.
///
/// # Errors
/// Exit code 11 where it is not gcc, or states no version.
pub(super) fn compiler_package(stated: &Stated) -> Result<String, Failure> {
    match Compiler::named(&stated.compiler) {
        Some(compiler) if compiler.is_gcc() => Ok(format!("gcc-{}", compiler.major)),
        _ => Err(Failure::new(
            FailureKind::Toolchain,
            format!("the kernel was built with {:?}", stated.compiler),
        )
        .remedy("longshore builds with gcc only; use a prebuilt set for this kernel")),
    }
}

/// True if a package holds headers, or the programs that go with them.
pub fn is_headers(package: &Package) -> bool {
    package.name.starts_with(PREFIX) || package.name.starts_with("linux-kbuild-")
}

fn tools(archive: &Archive) -> impl Iterator<Item = Requirement> {
    // Optional: left out if no archive has it.
    let keeper = Some(OBJECT_KEEPER).filter(|name| !archive.packages(name).is_empty());
    TOOLS.into_iter().chain(keeper).map(Requirement::any)
}

fn resolve(archive: &Archive, roots: &[Requirement]) -> Result<Vec<Package>, Failure> {
    archive.closure(roots).map_err(|unsatisfiable| unsatisfiable.failure(FailureKind::Toolchain))
}

/// Returns the compiler package `name` in the version that the kernel was built with, or in one
/// that matches.
///
/// # Errors
/// Exit code 11 where the archive has it only in versions that do not match.
fn compiler_root(archive: &Archive, name: &str, stated: &Stated) -> Result<Requirement, Failure> {
    let candidates = archive.packages(name);
    let exact = stated.compiler_package_version();
    if let Some(same) = candidates.iter().find(|p| Some(p.version.as_str()) == exact) {
        return Ok(Requirement::exact(name, same.version.as_str()));
    }
    let Some(wanted) = Compiler::named(&stated.compiler) else {
        // The compiler's version text is compared once it is installed.
        return Ok(Requirement::any(name));
    };
    let matching = |p: &&Package| Compiler::packaged(&p.version) == Some(wanted);
    match (candidates.iter().find(matching), candidates.first()) {
        (Some(found), _) => Ok(Requirement::exact(name, found.version.as_str())),
        (None, Some(other)) => {
            Err(compiler::mismatch(&stated.compiler, &format!("{name} {}", other.version)))
        }
        // The closure reports the missing package.
        (None, None) => Ok(Requirement::any(name)),
    }
}

/// Returns the headers' dependencies, without the kernel image and its companions.
fn needed(package: &Package) -> impl Iterator<Item = &Requirement> {
    package
        .depends
        .iter()
        .filter_map(|clause| clause.0.first())
        .filter(|one| !one.name.starts_with("linux-image-") && !one.name.starts_with("linux-base"))
}

/// Restricts `root` to `version`, if the archive has that version.
fn prefer(archive: &Archive, root: &mut Requirement, version: &str) {
    if archive.packages(&root.name).iter().any(|p| p.version == version) {
        *root = Requirement::exact(root.name.clone(), version);
    }
}

/// Chooses the running version, if `uname -v` names it as Debian's does (`... Debian 6.1.176-1
/// (DATE)`), or else the newest; the version stated in the headers is compared afterwards.
fn choose(candidates: Vec<Package>, kernel_version: Option<&str>) -> Option<Package> {
    let named = kernel_version.and_then(|version| {
        version.split_ascii_whitespace().skip_while(|word| *word != "Debian").nth(1)
    });
    candidates.into_iter().find(|p| named.is_none_or(|version| p.version == version))
}

/// Returns `gcc-N`, from the headers' own dependencies or those of their `linux-compiler-*`
/// package.
fn compiler_of(archive: &Archive, headers: &Package) -> Option<String> {
    let gcc_in = |package: &Package| needed(package).find_map(|one| gcc_name(&one.name));
    gcc_in(headers).or_else(|| {
        let through = needed(headers).find(|one| one.name.starts_with("linux-compiler-"))?;
        gcc_in(archive.packages(&through.name).first()?)
    })
}

/// Returns `gcc-12` for `gcc-12`, `gcc-12-for-host` and `gcc-12-x86-64-linux-gnu`.
fn gcc_name(name: &str) -> Option<String> {
    let number: String =
        name.strip_prefix("gcc-")?.chars().take_while(char::is_ascii_digit).collect();
    let rest = name.strip_prefix("gcc-")?.strip_prefix(number.as_str())?;
    let whole = !number.is_empty() && (rest.is_empty() || rest.starts_with('-'));
    whole.then(|| format!("gcc-{number}"))
}

fn other_build(package: &Package, wanted: &str) -> Failure {
    Failure::new(
        FailureKind::Toolchain,
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
        FailureKind::Toolchain,
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

/// Returns the releases that the archive has headers for.
pub(super) fn releases(archive: &Archive) -> Vec<String> {
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
        // As in linux-headers-7.3.4+deb13-rt-amd64, and in 6.12.107 with its image.
        headers.depends = longshore_debian::relation::parse_clauses(
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
}
