//! Comparison of a compiler with the one that a kernel was built with, and the package that brings it.
//!
//! Kind, major and minor version must be equal: within them a distribution only fixes bugs, and the
//! layout of structures, the mitigations and the options a kernel was configured for do not change.
//! The third number and the distribution's own revision may differ.

use derive_more::Display;

use super::parts::{COMPILER, needed};
use longshore_core::failure::{Failure, FailureKind};
use longshore_debian::archive::{Archive, Package};

/// The parts of a compiler's version that must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display("{kind} {major}.{minor}")]
pub(super) struct Compiler {
    kind: CompilerKind,
    /// Major version.
    pub(super) major: u32,
    minor: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display(rename_all = "lowercase")]
enum CompilerKind {
    Gcc,
    Clang,
}

impl Compiler {
    /// Parses the first line of `--version`, which the kernel keeps as CONFIG_CC_VERSION_TEXT: a
    /// name, the distribution's version in brackets, the version, perhaps a date.
    pub(super) fn named(text: &str) -> Option<Self> {
        let name = text.split_ascii_whitespace().next()?;
        let kind = match text {
            _ if text.contains("clang") => CompilerKind::Clang,
            _ if name.contains("gcc") => CompilerKind::Gcc,
            _ => return None,
        };
        let outside = without_brackets(text);
        let mut words = outside.split_ascii_whitespace().skip(1);
        let (major, minor) = words.find_map(version)?;
        Some(Self { kind, major, minor })
    }

    /// Parses the version of the package gcc-N.
    pub(super) fn packaged(version_text: &str) -> Option<Self> {
        let upstream = version_text.split_once(':').map_or(version_text, |(_, rest)| rest);
        let (major, minor) = version(upstream)?;
        Some(Self { kind: CompilerKind::Gcc, major, minor })
    }

    /// True for gcc, which is the compiler that archives are asked for.
    pub(super) fn is_gcc(self) -> bool {
        self.kind == CompilerKind::Gcc
    }
}

/// Compares the compiler of the kernel with the one that will build modules for it, by their
/// version texts.
///
/// # Errors
/// Exit code 11 where they do not match.
pub fn check(kernel: &str, ours: &str) -> Result<(), Failure> {
    let same = match (Compiler::named(kernel), Compiler::named(ours)) {
        (Some(kernel), Some(ours)) => kernel == ours,
        // An unknown version text matches only itself.
        _ => kernel == ours,
    };
    if same { Ok(()) } else { Err(mismatch(kernel, ours)) }
}

/// The failure where the available compiler is not the kernel's.
pub(super) fn mismatch(kernel: &str, ours: &str) -> Failure {
    Failure::new(
        FailureKind::Toolchain,
        format!("the kernel was built with {kernel:?}, and the available compiler is {ours:?}"),
    )
    .remedy(
        "modules have to come from the same compiler (kind, major and minor version): add an \
         archive or suite that has the kernel's compiler, boot a kernel that was built with the one \
         at hand, or use a prebuilt set",
    )
}

/// Returns `text` without the parts in brackets.
fn without_brackets(text: &str) -> String {
    let mut depth = 0usize;
    let mut outside = String::new();
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => outside.push(c),
            _ => {}
        }
    }
    outside
}

/// Parses major and minor of `12.2.0`, `12.2.0-14+deb12u1` or `13.2`.
fn version(word: &str) -> Option<(u32, u32)> {
    let mut numbers = word.split(|c: char| !c.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    let rest = word.strip_prefix(|c: char| c.is_ascii_digit())?;
    let dotted = rest.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with('.');
    let minor = numbers.next().filter(|_| dotted)?.parse().ok()?;
    Some((major, minor))
}

/// Returns `gcc-N`, from the headers' own dependencies or those of their `linux-compiler-*`
/// package.
pub(super) fn compiler_of(archive: &Archive, headers: &Package) -> Option<String> {
    let gcc_in = |package: &Package| needed(package).find_map(|one| gcc_name(&one.name));
    gcc_in(headers).or_else(|| {
        let through = needed(headers).find(|one| one.name.starts_with(COMPILER))?;
        gcc_in(archive.packages(&through.name).first()?)
    })
}

/// Returns `gcc-12` for `gcc-12`, `gcc-12-for-host` and `gcc-12-x86-64-linux-gnu`.
pub(super) fn gcc_name(name: &str) -> Option<String> {
    let number: String =
        name.strip_prefix("gcc-")?.chars().take_while(char::is_ascii_digit).collect();
    let rest = name.strip_prefix("gcc-")?.strip_prefix(number.as_str())?;
    let whole = !number.is_empty() && (rest.is_empty() || rest.starts_with('-'));
    whole.then(|| format!("gcc-{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    const DEBIAN: &str = "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0";

    #[rstest]
    #[case::debian(DEBIAN, "gcc 12.2")]
    #[case::with_its_target("x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0", "gcc 14.2")]
    #[case::red_hat("gcc (GCC) 11.4.1 20230605 (Red Hat 11.4.1-2)", "gcc 11.4")]
    #[case::ubuntu("x86_64-linux-gnu-gcc-11 (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", "gcc 11.4")]
    #[case::suse("gcc (SUSE Linux) 7.5.0", "gcc 7.5")]
    #[case::red_hat_8("gcc version 8.5.0 20210514 (Red Hat 8.5.0-4) (GCC)", "gcc 8.5")]
    #[case::ubuntu_5_4("gcc version 9.4.0 (Ubuntu 9.4.0-1ubuntu1~20.04.1)", "gcc 9.4")]
    #[case::ubuntu_hwe("x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0", "gcc 13.3")]
    #[case::clang("Debian clang version 16.0.6 (15~deb12u1)", "clang 16.0")]
    #[case::plain_clang("clang version 19.1.7", "clang 19.1")]
    fn compilers_are_read(#[case] text: &str, #[case] wanted: &str) {
        assert_eq!(Compiler::named(text).expect("reads").to_string(), wanted);
    }

    #[rstest]
    #[case("")]
    #[case("gcc")]
    #[case("gcc-12")]
    #[case("gcc (Debian 12.2.0-14)")]
    #[case("tcc 0.9.27")]
    fn what_says_no_version_is_not(#[case] text: &str) {
        assert_eq!(Compiler::named(text), None);
    }

    #[rstest]
    #[case::same(DEBIAN, DEBIAN, true)]
    #[case::revision(DEBIAN, "gcc-12 (Debian 12.2.0-14) 12.2.0", true)]
    #[case::third_number(DEBIAN, "gcc-12 (Debian 12.2.1-1) 12.2.1", true)]
    #[case::minor(DEBIAN, "gcc-12 (Debian 12.3.0-1) 12.3.0", false)]
    #[case::major(DEBIAN, "gcc-13 (Debian 13.2.0-1) 13.2.0", false)]
    #[case::name(DEBIAN, "gcc (GCC) 12.2.0", true)]
    #[case::kind(DEBIAN, "Debian clang version 12.2.0", false)]
    #[case::as_gcc_v_prints_it(DEBIAN, "gcc version 12.2.0 (Debian 12.2.0-14)", true)]
    #[case::unknown_is_itself("cc one", "cc one", true)]
    #[case::unknown("cc one", "cc two", false)]
    fn major_and_minor_have_to_match(#[case] kernel: &str, #[case] ours: &str, #[case] same: bool) {
        let checked = check(kernel, ours);
        assert_eq!(checked.is_ok(), same);
        if let Err(failure) = checked {
            assert_eq!(failure.code(), ExitCode::Toolchain);
            assert!(failure.remedy_text().is_some());
        }
    }

    #[rstest]
    #[case("12.2.0-14+deb12u1", Some("gcc 12.2"))]
    #[case("4:12.2.0-3", Some("gcc 12.2"))]
    #[case("12-1", None)]
    fn packages_have_versions(#[case] version: &str, #[case] wanted: Option<&str>) {
        assert_eq!(Compiler::packaged(version).map(|c| c.to_string()).as_deref(), wanted);
    }
}
