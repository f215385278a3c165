//! Kernel and compiler that headers state.

use longshore_core::failure::{Failure, FailureKind};

/// Kernel and compiler that headers belong to, as the headers state them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// `uname -v`, for example `#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)`; the kernel's
    /// own where the headers do not state it.
    pub kernel_version: String,
    /// The compiler of the kernel, for example `gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0`.
    pub compiler: String,
    /// True for a PREEMPT_RT kernel.
    pub realtime: bool,
}

impl Stated {
    /// Returns the compiler's program, for example `gcc-12` or `x86_64-linux-gnu-gcc-14`; empty where
    /// the text does not name it: `gcc -v` prints `gcc version 8.5.0` under every name.
    pub fn compiler_program(&self) -> &str {
        let mut words = self.compiler.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("gcc"), Some("version")) => "",
            (name, _) => name.unwrap_or_default(),
        }
    }

    /// Returns the version of the compiler's package, which distributions put in brackets.
    pub(crate) fn compiler_package_version(&self) -> Option<&str> {
        let inside = self.compiler.split_once('(')?.1.split_once(')')?.0;
        inside.rsplit_once(' ').map(|(_, version)| version)
    }
}

/// Headers as they were read.
#[derive(Debug)]
pub(super) struct Reading {
    /// The kernel's version. Ubuntu's headers lack it: they have compile.h of the kernel's build, but
    /// not the file that states it since Linux 6.1 (debian/rules.d/2-binary-arch.mk of its kernels).
    kernel_version: Option<String>,
    compiler: String,
    realtime: bool,
}

impl Reading {
    /// Reads the headers `name`; `read` returns one of their files, empty if it does not exist.
    ///
    /// # Errors
    /// Exit code 13 where they state no compiler, and the errors of `read`.
    pub(super) fn read(
        name: &str,
        read: impl Fn(&str) -> Result<String, Failure>,
    ) -> Result<Self, Failure> {
        let generated = read("include/generated/compile.h")?;
        // Since Linux 6.1 UTS_VERSION has a file of its own (kernel commit 2df8220cc511).
        let kernel_version = match version_in(&generated) {
            Some(version) => Some(version),
            None => version_in(&read("include/generated/utsversion.h")?),
        };
        let conf = read("include/config/auto.conf")?;
        let compiler =
            configured(&conf, "CONFIG_CC_VERSION_TEXT").or_else(|| compiled_with(&generated));
        let compiler = compiler.ok_or_else(|| {
            // Another source's headers may say it.
            let cause = format!("{name} does not say which compiler its kernel was built with");
            Failure::new(FailureKind::Toolchain, cause)
        })?;
        let realtime = configured(&conf, "CONFIG_PREEMPT_RT").as_deref() == Some("y");
        Ok(Self { kernel_version, compiler, realtime })
    }

    /// True if the headers do not state the kernel's version.
    pub(super) fn lacks_version(&self) -> bool {
        self.kernel_version.is_none()
    }

    /// Completes headers `name` that lack the kernel's version with `implied`.
    ///
    /// # Errors
    /// Exit code 11 where there is no version.
    pub(super) fn complete(self, name: &str, implied: Option<String>) -> Result<Stated, Failure> {
        let Self { kernel_version, compiler, realtime } = self;
        let kernel_version = kernel_version.or(implied).ok_or_else(|| unnamed(name))?;
        Ok(Stated { kernel_version, compiler, realtime })
    }
}

/// Returns the kernel's version that a generated header states; an empty one would stand for any build.
fn version_in(header: &str) -> Option<String> {
    defined(header, "UTS_VERSION").filter(|version| !version.is_empty())
}

fn unnamed(name: &str) -> Failure {
    let cause = format!("{name} does not say which build of the kernel it is for");
    Failure::new(FailureKind::Toolchain, cause).remedy(
        "compile on a host that runs this kernel, where `uname -v` names the build, or use a \
         prebuilt set",
    )
}

/// Returns the compiler that compile.h names, without the linker that follows in some kernels.
/// Kernels before Linux 5.8 have no CONFIG_CC_VERSION_TEXT (kernel commit 8b59cd81dc5e), and name it
/// as `gcc -v` does.
fn compiled_with(generated: &str) -> Option<String> {
    let text = defined(generated, "LINUX_COMPILER")?;
    let compiler = text.split(", ").next().unwrap_or_default();
    Some(compiler.to_owned()).filter(|compiler| !compiler.is_empty())
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
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    const EL8: &str = "gcc version 8.5.0 20210514 (Red Hat 8.5.0-4) (GCC)";
    const UBUNTU_5_4: &str = "gcc version 9.4.0 (Ubuntu 9.4.0-1ubuntu1~20.04.1)";
    const NOBLE: &str = "#142-Ubuntu SMP PREEMPT_DYNAMIC Thu Nov 5 10:00:00 UTC 2026";
    const UTS: &str = "#define UTS_VERSION \"#1 SMP\"\n";
    const CONF: &str = "CONFIG_CC_VERSION_TEXT=gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0\n";

    /// Reads headers with these files, for a kernel of the version `NOBLE`.
    fn read(compile_h: &str, auto_conf: &str, implied: bool) -> Result<Stated, Failure> {
        let file = |path: &str| {
            Ok(match path {
                "include/generated/compile.h" => compile_h.to_owned(),
                "include/config/auto.conf" => auto_conf.to_owned(),
                _ => String::new(),
            })
        };
        let reading = Reading::read("linux-headers-x", file)?;
        assert_eq!(reading.lacks_version(), !compile_h.contains("UTS_VERSION \"#"));
        reading.complete("linux-headers-x", implied.then(|| NOBLE.to_owned()))
    }

    #[rstest]
    #[case::configured("#define LINUX_COMPILER \"gcc version 1.2\"\n", CONF, &CONF[23..CONF.len() - 1])]
    #[case::el_8(&format!("#define LINUX_COMPILER \"{EL8}\"\n"), "CONFIG_A=y\n", EL8)]
    #[case::ubuntu_5_4(&format!("#define LINUX_COMPILER \"{UBUNTU_5_4}\"\n"), "", UBUNTU_5_4)]
    #[case::with_its_linker(
        "#define LINUX_COMPILER \"gcc (GCC) 10.2.1, GNU ld (GNU Binutils) 2.35\"\n",
        "",
        "gcc (GCC) 10.2.1"
    )]
    fn the_compiler_is_read_from_the_configuration_or_from_the_compile(
        #[case] compile_h: &str,
        #[case] conf: &str,
        #[case] wanted: &str,
    ) {
        let stated = read(&format!("{UTS}{compile_h}"), conf, false).expect("states both");
        assert_eq!((stated.compiler.as_str(), stated.kernel_version.as_str()), (wanted, "#1 SMP"));
    }

    #[rstest]
    #[case::stated(UTS, CONF, true, Ok("#1 SMP"))]
    #[case::implied("", CONF, true, Ok(NOBLE))]
    #[case::unknown("", CONF, false, Err(ExitCode::Toolchain))]
    #[case::empty("#define UTS_VERSION \"\"\n", CONF, false, Err(ExitCode::Toolchain))]
    #[case::no_compiler(UTS, "", true, Err(ExitCode::Toolchain))]
    #[case::empty_compiler(&format!("{UTS}#define LINUX_COMPILER \"\"\n"), "", true, Err(ExitCode::Toolchain))]
    fn the_version_is_stated_or_implied(
        #[case] compile_h: &str,
        #[case] conf: &str,
        #[case] implied: bool,
        #[case] wanted: Result<&str, ExitCode>,
    ) {
        let found = read(compile_h, conf, implied);
        let found = found.as_ref().map(|stated| stated.kernel_version.as_str());
        assert_eq!(found.map_err(Failure::code), wanted);
    }

    #[rstest]
    #[case("gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", "gcc-12", Some("12.2.0-14+deb12u1"))]
    #[case(
        "x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0",
        "x86_64-linux-gnu-gcc-14",
        Some("14.2.0-19")
    )]
    #[case("gcc (GCC) 13.2.1", "gcc", None)]
    #[case(EL8, "", Some("8.5.0-4"))]
    #[case(UBUNTU_5_4, "", Some("9.4.0-1ubuntu1~20.04.1"))]
    #[case(
        "x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0",
        "x86_64-linux-gnu-gcc-13",
        Some("13.3.0-6ubuntu2~24.04")
    )]
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
