//! Compilers in a build root, and the choice of the kernel's own.

use serde::Serialize;

use super::BuildRoot;
use crate::BuildUser;
use crate::compile::compiler_version;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::root::Root;
use longshore_core::store::Store;
use longshore_sources::headers::check_compiler;

/// Directory of programs, and the maximum number of names in it.
const PROGRAMS: &str = "usr/bin";
const MOST_PROGRAMS: usize = 50_000;
/// Maximum number of compilers that are run.
const MOST_COMPILERS: usize = 12;
/// Programs beside the compiler that every compile runs.
const TOOLS: [&str; 4] = ["usr/bin/make", "usr/bin/strip", "usr/bin/ld", "bin/sh"];

/// A compiler in a build root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Compiler {
    /// Program in /usr/bin, for example `gcc`.
    pub program: String,
    /// First line of `--version`.
    pub version: String,
}

/// Returns the names of compilers among programs' names: `gcc`, `gcc-12`, `clang` and those with this machine's
/// prefix (`x86_64-redhat-linux-gcc`), the plain ones first.
fn named(names: Vec<String>, arch: &str) -> Vec<String> {
    let is_number =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let is_compiler = |name: &str| {
        let name = match name.strip_prefix(arch) {
            Some(rest) => {
                rest.rfind("-gcc").or_else(|| rest.rfind("-clang")).map(|at| &rest[at + 1..])
            }
            None => Some(name),
        };
        let rest = name.and_then(|n| n.strip_prefix("gcc").or_else(|| n.strip_prefix("clang")));
        rest.is_some_and(|r| r.is_empty() || r.strip_prefix('-').is_some_and(is_number))
    };
    let mut found: Vec<String> = names.into_iter().filter(|name| is_compiler(name)).collect();
    found.sort_by_key(|name| (name.starts_with(arch), name.len(), name.clone()));
    found.truncate(MOST_COMPILERS);
    found
}

/// Runs the compilers of a root for their versions; `first` is asked before all others. One that does not run is
/// left out with a warning.
///
/// # Errors
/// Exit code 10 where there is no sandbox, 15 where the store cannot be written.
pub(super) async fn compilers(
    root: &BuildRoot,
    first: &str,
    run: &Run<'_>,
) -> Result<Vec<Compiler>, Failure> {
    let opened = Root::open(&root.path);
    let names = opened.and_then(|root| root.read_small_dir(PROGRAMS, MOST_PROGRAMS));
    let mut names = named(names.unwrap_or_default(), std::env::consts::ARCH);
    names.sort_by_key(|name| name != first);
    let mut found = Vec::new();
    for program in names {
        match compiler_version(run.helper, &root.path, run.store, &program, run.user).await {
            Ok(version) => found.push(Compiler { program, version }),
            Err(failure) if failure.kind() == FailureKind::Toolchain => {
                tracing::warn!(
                    "{} has a compiler that does not run: {}",
                    root.place,
                    failure.one_line()
                );
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(found)
}

/// Means to run a program of a root.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The sandbox's helper.
    pub helper: &'a std::path::Path,
    /// The store.
    pub store: &'a Store,
    /// The user that compiles.
    pub user: BuildUser,
}

/// Chooses the compiler that matches the kernel's, `kernel` by its version text.
///
/// # Errors
/// Exit code 11 where none does, with all that there are.
pub(super) fn choose(kernel: &str, found: &[Compiler], place: &str) -> Result<Compiler, Failure> {
    let fits = |one: &&Compiler| check_compiler(kernel, &one.version).is_ok();
    if let Some(fitting) = found.iter().find(fits) {
        return Ok(fitting.clone());
    }
    let has: Vec<String> =
        found.iter().map(|one| format!("{} ({})", one.program, one.version)).collect();
    let has = match has.as_slice() {
        [] => "no compiler: neither gcc nor clang in /usr/bin runs".to_owned(),
        all => all.join(" and "),
    };
    let cause =
        format!("the kernel was built with {kernel:?}, and the build root {place} has {has}");
    Err(Failure::new(FailureKind::Toolchain, cause).remedy(
        "add the kernel's own compiler to the build root: kind, major and minor version have to be the same \
         (`longshore build-root inspect` lists its kernels and compilers)",
    ))
}

/// Returns the programs that a compile needs and the root has not.
pub(super) fn lacking(root: &BuildRoot) -> Vec<&'static str> {
    let Ok(root) = Root::open(&root.path) else { return TOOLS.to_vec() };
    let is_absent = |tool: &&str| !root.exists(tool).unwrap_or(false);
    TOOLS
        .into_iter()
        .filter(is_absent)
        .map(|tool| tool.rsplit('/').next().unwrap_or(tool))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    const KERNEL: &str = "gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)";

    #[test]
    fn compilers_are_told_by_their_names() {
        let names = [
            "x86_64-redhat-linux-gcc",
            "gcc-ar",
            "gcc-13",
            "clang",
            "gcc",
            "clang-format",
            "gcc-nm-12",
            "c++",
            "aarch64-linux-gnu-gcc",
            "x86_64-linux-gnu-gcc-12",
            "clang-17",
            "x86_64-linux-gnu-gcc-ar",
            "colorgcc",
            "gcc-",
            "x86_64",
            "x86_64-linux-gnu-ld",
        ];
        let found = named(names.map(str::to_owned).to_vec(), "x86_64");
        let wanted = [
            "gcc",
            "clang",
            "gcc-13",
            "clang-17",
            "x86_64-linux-gnu-gcc-12",
            "x86_64-redhat-linux-gcc",
        ];
        assert_eq!(found, wanted);
    }

    fn compiler(program: &str, version: &str) -> Compiler {
        Compiler { program: program.into(), version: version.into() }
    }

    #[rstest]
    #[case::only(&[("gcc", KERNEL)], Ok("gcc"))]
    #[case::second_of_two(&[("gcc", "gcc (GCC) 13.2.1 2023"), ("gcc-11", "gcc (GCC) 11.4.0")], Ok("gcc-11"))]
    #[case::first_of_two(&[("gcc", KERNEL), ("x86_64-redhat-linux-gcc", KERNEL)], Ok("gcc"))]
    #[case::none(&[], Err("no compiler: neither gcc nor clang"))]
    #[case::other_kind(&[("clang", "clang version 11.4.1")], Err("clang (clang version 11.4.1)"))]
    #[case::neither_of_two(
        &[("gcc", "gcc (GCC) 13.2.1"), ("gcc-12", "gcc (GCC) 12.2.0")],
        Err("has gcc (gcc (GCC) 13.2.1) and gcc-12 (gcc (GCC) 12.2.0)")
    )]
    fn the_kernels_compiler_is_chosen(
        #[case] found: &[(&str, &str)],
        #[case] wanted: Result<&str, &str>,
    ) {
        let found: Vec<_> =
            found.iter().map(|(program, version)| compiler(program, version)).collect();
        match (choose(KERNEL, &found, "/srv/root"), wanted) {
            (Ok(chosen), Ok(wanted)) => assert_eq!(chosen.program, wanted),
            (Err(failure), Err(said)) => {
                assert_eq!(failure.code(), ExitCode::Toolchain);
                let text = failure.to_string();
                assert!(text.contains(said) && text.contains("Red Hat 11.4.1-3"), "{text}");
            }
            (chosen, wanted) => panic!("{chosen:?} instead of {wanted:?}"),
        }
    }

    #[test]
    fn a_kernel_of_clang_takes_a_clang() {
        let clang = "clang version 17.0.6 (Fedora 17.0.6-2.fc39)";
        let found = [compiler("gcc", KERNEL), compiler("clang", "clang version 17.0.6")];
        assert_eq!(choose(clang, &found, "here").expect("a clang").program, "clang");
    }
}
