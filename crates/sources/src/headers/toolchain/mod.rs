//! Compiler and tools for a kernel's headers, out of the archives.
//!
//! The compiler is the one that the headers state; a dependency of their package only confirms it.

use super::archive::InArchive;
use super::compiler::{self, Compiler, gcc_name};
use super::parts::{self, KBUILD, needed};
use super::stated::Stated;
use longshore_core::failure::{Failure, FailureKind};
use longshore_debian::archive::{Archive, Package, Requirement, release_of};

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

/// Returns the packages with the kernel's programs, sign-file among them, and with the libraries they
/// need: Debian's `linux-kbuild-*`, in the version of the headers if the archive has that, or else
/// the headers package, which holds them itself in Ubuntu.
///
/// # Errors
/// Exit code 11 naming the missing package.
pub fn programs(archive: &Archive, headers: &InArchive) -> Result<Vec<Package>, Failure> {
    let package = &headers.package;
    if let Some(kbuild) = needed(package).find(|one| one.name.starts_with(KBUILD)) {
        let mut kbuild = kbuild.clone();
        prefer(archive, &mut kbuild, &package.version);
        return resolve(archive, &[kbuild]);
    }
    let parts = parts_in(archive, package);
    let is_library = |one: &&Requirement| {
        !names_compiler(&one.name) && parts.iter().all(|part| part.name != one.name)
    };
    let libraries = needed(package).filter(is_library).cloned().collect();
    with_roots(archive, package, libraries)
}

/// Returns the compiler package for the headers' kernel. The kernel's statement decides. A
/// dependency on another compiler is not followed: it says what is installed beside the headers,
/// while modules have to come from the compiler that the kernel states, and the compiler that runs
/// is compared with that.
///
/// # Errors
/// Exit code 11 where it is not gcc.
pub(super) fn compiler_for(headers: &InArchive, stated: &Stated) -> Result<String, Failure> {
    let InArchive { package, compiler: named } = headers;
    match (compiler_package(stated), named) {
        (Err(_), Some(named)) if Compiler::named(&stated.compiler).is_none() => Ok(named.clone()),
        (Ok(own), Some(named)) if own != *named => {
            let (name, kernel) = (&package.name, &stated.compiler);
            tracing::warn!(
                "{name} depends on {named}, but states that its kernel was built with {kernel:?}: \
                 compiling with {own}"
            );
            Ok(own)
        }
        (own, _) => own,
    }
}

/// Returns every package a build for this kernel with the compiler package `compiler` needs, the
/// header packages first.
///
/// # Errors
/// Exit code 11 naming the missing package.
pub(super) fn closure(
    archive: &Archive,
    headers: &InArchive,
    compiler: &str,
    stated: &Stated,
) -> Result<Vec<Package>, Failure> {
    let InArchive { package, compiler: named } = headers;
    let agrees = named.as_ref().is_none_or(|named| named == compiler);
    let parts = parts_in(archive, package);
    let is_part = |name: &str| parts.iter().any(|part| part.name == name);
    // The first root decides the release of the others: that of the headers.
    let mut roots: Vec<Requirement> = parts.iter().map(|part| part.wanted.clone()).collect();
    let others = needed(package).filter(|one| !is_part(&one.name));
    roots.extend(others.filter(|one| agrees || !names_compiler(&one.name)).cloned());
    for root in &mut roots {
        prefer(archive, root, &package.version);
    }
    roots.push(compiler_root(archive, compiler, stated, Some(&package.origin.text))?);
    roots.extend(tools(archive));
    with_roots(archive, package, roots)
}

/// Returns the parts of the headers `package` among the packages of a root, itself first.
pub(super) fn parts_among(package: &Package, toolchain: &[Package]) -> Vec<Package> {
    let find = |one: &Requirement| toolchain.iter().find(|p| p.name == one.name).cloned();
    let parts = parts::parts_of(package, find).into_iter().map(|part| part.package);
    std::iter::once(package.clone()).chain(parts).collect()
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
    let mut roots = vec![compiler_root(archive, compiler, stated, None)?];
    roots.extend(tools(archive));
    let has = |name: &&&str| !archive.packages(name).is_empty();
    roots.extend(OBJTOOL_NEEDS.iter().find(has).map(|name| Requirement::any(*name)));
    resolve(archive, &roots)
}

/// Returns the name of the archives' package with the compiler that a kernel was built with.
///
/// # Errors
/// Exit code 11 where it is not gcc, or states no version.
pub(super) fn compiler_package(stated: &Stated) -> Result<String, Failure> {
    let remedy = "the archives' compiler is gcc only; use a prebuilt set for this kernel, or a build root \
                  with its compiler (build-root)";
    let cause = match Compiler::named(&stated.compiler) {
        Some(compiler) if compiler.is_gcc() => return Ok(format!("gcc-{}", compiler.major)),
        Some(other) => format!("the kernel was built with {other} ({:?})", stated.compiler),
        None => format!("the kernel was built with an unknown compiler: {:?}", stated.compiler),
    };
    Err(Failure::new(FailureKind::Toolchain, cause).remedy(remedy))
}

/// Packages that the core objects of a source tree need beside compilers and tools: their shaders are compressed.
const CORE_TOOLS: [&str; 1] = ["xz-utils"];

/// Returns the name of the C++ compiler's package beside a C compiler's: `g++-12` for `gcc-12`.
pub fn cxx_package(compiler: &str) -> Option<String> {
    compiler.strip_prefix("gcc").map(|version| format!("g++{version}"))
}

/// Returns every package that the core objects of a source tree need, whatever the kernel: the compiler `compiler` in the
/// version that the packages of a kernel's build root have, its C++ compiler, and the tools.
///
/// # Errors
/// Exit code 11 naming the missing package.
pub fn core_tools(
    archive: &Archive,
    compiler: &str,
    of_kernel: &[Package],
) -> Result<Vec<Package>, Failure> {
    let package = of_kernel.iter().find(|package| package.name == compiler);
    let (Some(package), Some(cxx)) = (package, cxx_package(compiler)) else {
        let cause = format!("{compiler} has no C++ compiler beside it in the archives");
        return Err(Failure::new(FailureKind::Toolchain, cause));
    };
    let mut roots = [package.name.clone(), cxx]
        .map(|name| Requirement::exact(name, package.version.as_str()))
        .to_vec();
    roots.extend(CORE_TOOLS.into_iter().chain(TOOLS).map(Requirement::any));
    resolve(archive, &roots)
}

/// Returns the linker's package that `wanted` names and everything that it needs, of the release of
/// the package `beside` where that has them; the linker's package comes first.
///
/// # Errors
/// Exit code 11 naming the missing package.
pub(crate) fn linker(
    archive: &Archive,
    wanted: &Requirement,
    beside: &Package,
) -> Result<Vec<Package>, Failure> {
    let mut root = wanted.clone();
    keep_release(archive, &mut root, &beside.origin.text);
    resolve(archive, &[root])
}

fn tools(archive: &Archive) -> impl Iterator<Item = Requirement> {
    // Optional: left out if no archive has it.
    let keeper = Some(OBJECT_KEEPER).filter(|name| !archive.packages(name).is_empty());
    TOOLS.into_iter().chain(keeper).map(Requirement::any)
}

fn resolve(archive: &Archive, roots: &[Requirement]) -> Result<Vec<Package>, Failure> {
    archive.closure(roots).map_err(|unsatisfiable| unsatisfiable.failure(FailureKind::Toolchain))
}

/// Returns the headers package `package` and everything that `roots` need; they are of its release
/// where that has them.
fn with_roots(
    archive: &Archive,
    package: &Package,
    mut roots: Vec<Requirement>,
) -> Result<Vec<Package>, Failure> {
    if let Some(first) = roots.first_mut() {
        keep_release(archive, first, &package.origin.text);
    }
    let needed = resolve(archive, &roots)?;
    // A part may depend on the headers package in turn.
    let needed = needed.into_iter().filter(|p| p.name != package.name);
    Ok(std::iter::once(package.clone()).chain(needed).collect())
}

/// Returns the packages that the headers of an archive consist of, `linux-headers-RELEASE` first.
pub fn all_parts(archive: &Archive, headers: &InArchive) -> Vec<Package> {
    let parts = parts_in(archive, &headers.package).into_iter().map(|part| part.package);
    std::iter::once(headers.package.clone()).chain(parts).collect()
}

/// Returns the parts of the headers `package`, each in its version if the archive has that, or else
/// in the newest.
fn parts_in(archive: &Archive, package: &Package) -> Vec<parts::Part> {
    parts::parts_of(package, |wanted| {
        let found = archive.packages(&wanted.name);
        found.iter().find(|p| p.version == package.version).or(found.first()).cloned()
    })
}

/// Returns the compiler package `name` in the version that the kernel was built with, or in one
/// that matches, of the release of `suite` if that has one.
///
/// # Errors
/// Exit code 11 where the archive has it only in versions that do not match.
fn compiler_root(
    archive: &Archive,
    name: &str,
    stated: &Stated,
    suite: Option<&str>,
) -> Result<Requirement, Failure> {
    let mut candidates = archive.packages(name);
    candidates.sort_by_key(|p| suite.is_some_and(|suite| !is_of_release(p, suite)));
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

/// Restricts `root` to `version`, if the archive has that version.
fn prefer(archive: &Archive, root: &mut Requirement, version: &str) {
    if archive.packages(&root.name).iter().any(|p| p.version == version) {
        *root = Requirement::exact(root.name.clone(), version);
    }
}

/// Restricts `root` to the newest version that the release of `suite` has, if that has any.
fn keep_release(archive: &Archive, root: &mut Requirement, suite: &str) {
    let accepts = |version: &str| {
        root.version.as_ref().is_none_or(|(operator, bound)| operator.holds(version, bound))
    };
    let fits = |p: &&Package| is_of_release(p, suite) && accepts(&p.version);
    if let Some(found) = archive.packages(&root.name).iter().find(fits) {
        *root = Requirement::exact(root.name.clone(), found.version.as_str());
    }
}

fn is_of_release(package: &Package, suite: &str) -> bool {
    release_of(&package.origin.text) == release_of(suite)
}

/// True for a compiler package, and for Debian's package that depends on it.
fn names_compiler(name: &str) -> bool {
    gcc_name(name).is_some() || name.starts_with(parts::COMPILER)
}

#[cfg(test)]
mod tests;
