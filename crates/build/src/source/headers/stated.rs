//! Kernel and compiler that headers state.

use longshore_core::failure::{Failure, FailureKind};

/// Kernel and compiler that headers belong to, as the headers state them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// `uname -v`, for example `#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)`.
    pub kernel_version: String,
    /// The compiler of the kernel, for example `gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0`.
    pub compiler: String,
    /// True for a PREEMPT_RT kernel.
    pub realtime: bool,
}

impl Stated {
    /// Returns the compiler's program, for example `gcc-12` or `x86_64-linux-gnu-gcc-14`.
    pub(crate) fn compiler_program(&self) -> &str {
        self.compiler.split_ascii_whitespace().next().unwrap_or_default()
    }

    /// Returns the version of the compiler's package, which distributions put in brackets.
    pub(crate) fn compiler_package_version(&self) -> Option<&str> {
        let inside = self.compiler.split_once('(')?.1.split_once(')')?.0;
        inside.split_once(' ').map(|(_, version)| version)
    }

    /// Reads the kernel and compiler from the headers `name`; `read` returns one of their files,
    /// empty if it does not exist.
    ///
    /// # Errors
    /// Exit code 13 where they do not state them, and the errors of `read`.
    pub(super) fn read(
        name: &str,
        read: impl Fn(&str) -> Result<String, Failure>,
    ) -> Result<Self, Failure> {
        let generated = read("include/generated/compile.h")?;
        // Since Linux 6.1 UTS_VERSION has a file of its own (kernel commit 2df8220cc511).
        let uts = match defined(&generated, "UTS_VERSION") {
            Some(version) => Some(version),
            None => defined(&read("include/generated/utsversion.h")?, "UTS_VERSION"),
        };
        let conf = read("include/config/auto.conf")?;
        let compiler = configured(&conf, "CONFIG_CC_VERSION_TEXT");
        let (Some(kernel_version), Some(compiler)) = (uts, compiler) else {
            let cause = format!("{name} does not say which kernel and compiler it is for");
            return Err(Failure::new(FailureKind::Verification, cause));
        };
        let realtime = configured(&conf, "CONFIG_PREEMPT_RT").as_deref() == Some("y");
        Ok(Self { kernel_version, compiler, realtime })
    }
}

/// Returns the value of `#define NAME "value"`.
pub(super) fn defined(header: &str, name: &str) -> Option<String> {
    header.lines().find_map(|line| {
        let rest = line.strip_prefix("#define ")?.strip_prefix(name)?;
        Some(rest.trim().strip_prefix('"')?.strip_suffix('"')?.to_owned())
    })
}

/// Returns the value of `NAME=value` in auto.conf, which quotes strings before Linux 5.17 and not
/// after.
pub(super) fn configured(conf: &str, name: &str) -> Option<String> {
    conf.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix('=')?;
        Some(value.trim_matches('"').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

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
}
