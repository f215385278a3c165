//! Diagnosis of a failed compile: the first real error in the compiler's output, and a remedy.

mod class;
#[cfg(test)]
mod corpus;
mod lines;

use std::path::Path;
use std::time::Duration;

use super::sandbox::Outcome;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;

pub use class::Class;

/// Collects the lines of output that explain a failure.
///
/// The cause is the first line that states an error in a known form; where make reported a failed target before
/// one, it is the line that this target's command wrote last: in a parallel make the end of the output is another
/// command's.
#[derive(Debug, Default)]
pub struct Diagnosis {
    error: Option<String>,
    /// Last line that may be a message of a command that fails.
    last: Option<String>,
    /// True once make reported a failed target.
    has_failed: bool,
    /// True where modpost had no list of the kernel's symbols: then it finds none of them.
    lacks_symvers: bool,
    memory: bool,
    space: bool,
    processes: bool,
}

/// The compile that failed, as messages name it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Driver version.
    pub driver: &'a str,
    /// Flavour.
    pub flavour: Flavour,
    /// `uname -r`.
    pub release: &'a str,
    /// The log with the whole output.
    pub log: &'a Path,
    /// Its time limit.
    pub limit: Duration,
}

const NO_MEMORY: [&str; 10] = [
    // make's text for a program killed by SIGKILL: only the kernel's OOM killer sends it here.
    "Error 137",
    "Killed signal terminated program",
    // gcc before 8, collect2 and clang say the same.
    "error: Killed (program",
    "terminated with signal 9 [Killed]",
    "unable to execute command: Killed",
    "memory exhausted",
    "Cannot allocate memory",
    "out of memory allocating",
    "LLVM ERROR: out of memory",
    "std::bad_alloc",
];

const NO_SPACE: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// Texts of shells and make where fork(2) fails with EAGAIN: a limit of processes, not of memory.
const NO_PROCESSES: [&str; 3] = [
    "fork: Resource temporarily unavailable",
    "Cannot fork",
    "fork: retry: Resource temporarily unavailable",
];

impl Diagnosis {
    /// Reads the next line of output.
    pub fn line(&mut self, line: &str) {
        // gcc quotes so where the locale has them.
        let line = &line.replace(['\u{2018}', '\u{2019}'], "'");
        let has = |texts: &[&str]| texts.iter().any(|text| line.contains(text));
        self.memory |=
            has(&NO_MEMORY) || (lines::is_failed_target(line) && line.ends_with("] Killed"));
        self.space |= has(&NO_SPACE);
        self.processes |= has(&NO_PROCESSES);
        self.lacks_symvers |= line.starts_with("WARNING: ") && line.contains("ymbol version dump");
        if self.error.is_none() && lines::is_error(line) {
            self.error = Some(shown(line));
        }
        if lines::is_failed_target(line) && !self.has_failed {
            self.has_failed = true;
            self.error = self.error.take().or_else(|| self.last.clone());
        }
        if !lines::is_beside(line) {
            self.last = Some(shown(line));
        }
    }

    /// Returns the class and the failure of a compile that ended with `outcome`.
    pub fn failure(&self, outcome: Outcome, subject: Subject<'_>) -> (Class, Failure) {
        let Subject { driver, flavour, release, log, limit } = subject;
        let class = self.class(outcome);
        let code = match class {
            Class::Space => FailureKind::Preflight,
            _ => FailureKind::Compile,
        };
        let said = match class {
            Class::Processes => match outcome {
                Outcome::TooManyProcesses(most) => {
                    format!("{class}: it has more than {most} at once")
                }
                _ => class.to_string(),
            },
            Class::Space | Class::Memory | Class::Outgrown => class.to_string(),
            Class::Slow => format!("not done after {limit:?} (build-deadline)"),
            _ => format!("{class}: {}", self.cause().unwrap_or("no output")),
        };
        let failure = Failure::new(
            code,
            format!(
                "compiling the {flavour} modules of {driver} for {release}: {said} (log: {})",
                log.display()
            ),
        )
        .remedy(class.remedy(flavour))
        .with_compile_class(class.described());
        (class, failure)
    }

    fn cause(&self) -> Option<&str> {
        self.error.as_deref().or(self.last.as_deref())
    }

    fn class(&self, outcome: Outcome) -> Class {
        match outcome {
            Outcome::NoSpace => return Class::Space,
            Outcome::Outgrown => return Class::Outgrown,
            Outcome::TooManyProcesses(_) => return Class::Processes,
            _ if self.space => return Class::Space,
            _ => {}
        }
        if self.memory || outcome == Outcome::Signalled(9) {
            return Class::Memory;
        }
        if self.processes {
            return Class::Processes;
        }
        if outcome == Outcome::TimedOut {
            return Class::Slow;
        }
        Class::from_error(self.cause().unwrap_or_default(), self.lacks_symvers)
    }
}

/// The line without the path of the build directory, cut to the length of a message.
fn shown(line: &str) -> String {
    line.trim().trim_start_matches(lines::BUILD_DIR).chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    fn subject() -> Subject<'static> {
        Subject {
            driver: "535.261.03",
            flavour: Flavour::Open,
            release: "6.1.0-56-amd64",
            log: Path::new("/logs/a.log"),
            limit: Duration::from_secs(3600),
        }
    }

    fn failure(output: &str, outcome: Outcome) -> Failure {
        let mut diagnosis = Diagnosis::default();
        output.lines().for_each(|line| diagnosis.line(line));
        diagnosis.failure(outcome, subject()).1
    }

    /// The output of gcc-12 with 535.261.03 open on Debian's 6.1.0-56.
    const RESIZE: &str = "\
  CC [M]  /build/driver/nvidia/nv-pci.o
/build/driver/nvidia/nv-pci.c: In function 'nv_resize_pcie_bars':
/build/driver/nvidia/nv-pci.c:201:9: error: too few arguments to function 'pci_resize_resource'
  201 |     r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size);
/build/driver/nvidia/x.c:1:1: error: a later one
make[3]: *** [scripts/Makefile.build:250: /build/driver/nvidia/nv-pci.o] Error 1
make: *** [Makefile:82: modules] Error 2";

    #[test]
    fn the_first_error_of_the_compiler_is_the_cause() {
        let failure = failure(RESIZE, Outcome::Exited(2));
        assert_eq!(failure.code(), ExitCode::Compile);
        assert_eq!(
            failure.to_string(),
            "compiling the open modules of 535.261.03 for 6.1.0-56-amd64: the kernel has \
             another pci_resize_resource: nvidia/nv-pci.c:201:9: error: too few arguments to function 'pci_resize_resource' (log: /logs/a.log)"
        );
        assert!(failure.remedy_text().expect("a remedy").contains("proprietary"));
        let class = failure.compile_class().expect("a class");
        let named = (class.class.as_str(), class.name.as_deref());
        assert_eq!(named, ("interface-changed", Some("pci_resize_resource")));
    }

    #[rstest]
    #[case::compiler_killed(
        "gcc-12: fatal error: Killed signal terminated program cc1\ncompilation terminated.",
        Outcome::Exited(2),
        ExitCode::Compile,
        "out of memory"
    )]
    #[case::make_killed("  CC [M]  a.o", Outcome::Signalled(9), ExitCode::Compile, "out of memory")]
    #[case::disk_full(
        "a.c:1:1: fatal error: error writing to /tmp/x.s: No space left on device",
        Outcome::Exited(2),
        ExitCode::Preflight,
        "no space left"
    )]
    #[case::slow(
        "  CC [M]  a.o",
        Outcome::TimedOut,
        ExitCode::Compile,
        "not done after 3600s (build-deadline)"
    )]
    #[case::disk_filled("  CC [M]  a.o", Outcome::NoSpace, ExitCode::Preflight, "no space left")]
    #[case::outgrown(
        "  CC [M]  a.o",
        Outcome::Outgrown,
        ExitCode::Compile,
        "writes more than any driver's compile"
    )]
    #[case::too_many_processes(
        "/bin/sh: 1: Cannot fork",
        Outcome::TooManyProcesses(4128),
        ExitCode::Compile,
        "no further process could be started: it has more than 4128 at once"
    )]
    #[case::modpost(
        "ERROR: modpost: \"foo\" [/build/driver/nvidia.ko] undefined!\nmake: *** [x] Error 1",
        Outcome::Exited(2),
        ExitCode::Compile,
        "\"foo\" [/build/driver/nvidia.ko] undefined!"
    )]
    #[case::no_compiler(NO_CC, Outcome::Exited(2), ExitCode::Compile, "does not fit the headers")]
    #[case::other_compiler(
        "*** Failed CC version check. Bailing out! ***",
        Outcome::Exited(2),
        ExitCode::Compile,
        "does not fit the headers"
    )]
    #[case::missing_header(
        "a.c:3:10: fatal error: linux/x.h: No such file or directory",
        Outcome::Exited(2),
        ExitCode::Compile,
        "linux/x.h"
    )]
    #[case::unknown(
        "something odd\nmake: *** [x] Error 1",
        Outcome::Exited(2),
        ExitCode::Compile,
        "something odd"
    )]
    #[case::silent("", Outcome::Exited(2), ExitCode::Compile, "no output")]
    fn failures_are_told_apart(
        #[case] output: &str,
        #[case] outcome: Outcome,
        #[case] code: ExitCode,
        #[case] said: &str,
    ) {
        let failure = failure(output, outcome);
        assert_eq!(failure.code(), code);
        assert!(failure.to_string().contains(said), "{failure}");
        assert!(failure.remedy_text().is_some());
    }

    /// Output of 470.256.02 on Debian's 5.10.0-32 without a `cc`.
    const NO_CC: &str = "\
make[2]: cc: No such file or directory

The C compiler 'cc' does not appear to be able to
create executables.  Please make sure you have
*** Failed CC sanity check. Bailing out! ***

make[3]: *** [/build/driver/Kbuild:281: cc_sanity_check] Error 1
*** Failed CC version check. Bailing out! ***";
}
