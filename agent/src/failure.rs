//! What went wrong, as a person on call needs it: exit code, cause, remedy, and the chain below.

use std::error::Error;
use std::fmt;

/// The process exit codes. They are documented for users and never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// Everything asked for was done.
    Done = 0,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// This host, kernel or architecture is not one longshore can serve.
    HostUnsupported = 10,
    /// Kernel headers or the matching compiler are not to be had.
    Toolchain = 11,
    /// A download failed, or the driver or kernel asked for is in none of the sources.
    Download = 12,
    /// Something fetched or stored is not what it should be (signature, digest, form).
    Verification = 13,
    /// The driver does not compile for this kernel.
    Compile = 14,
    /// The host is not ready, and nothing on it was touched.
    Preflight = 15,
    /// The kernel refused a module.
    KernelRefused = 16,
    /// There is no NVIDIA GPU or NVSwitch to drive.
    NoDevice = 17,
    /// The driver is loaded but could not be shown to the host.
    Expose = 18,
    /// The driver is in use and was left as it is.
    InUse = 20,
    /// A failure was rolled back, and the rollback left something behind.
    RolledBack = 21,
    /// The driver is not ready, or the agent not alive: `longshore status --ready` or `--alive` says
    /// so.
    NotReady = 30,
    /// A fault in longshore itself.
    Bug = 70,
}

impl ExitCode {
    /// The number the process exits with.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// What to look at first, where the failure itself says nothing better.
    fn usual_remedy(self) -> &'static str {
        match self {
            Self::Done => "nothing is to be done",
            Self::Usage => {
                "correct the command line or the configuration; docs/configuration.md has every \
                 setting"
            }
            Self::HostUnsupported | Self::Preflight | Self::NoDevice => {
                "see what `longshore plan` says of this host"
            }
            Self::Toolchain => "add an archive or suite that has it, or give a prebuilt set",
            Self::Download => "check the network, the proxy and the configured archives",
            Self::Verification => {
                "remove what is named and run again, so that it is fetched or made anew; if it comes \
                 back, check the mirror and the disk"
            }
            Self::Compile => "see the compiler's log, or choose another driver version or flavour",
            Self::KernelRefused => "see the kernel's log (dmesg)",
            Self::Expose => "see what is mounted and made below /run/nvidia",
            Self::InUse | Self::RolledBack => {
                "run `longshore unload` when nothing holds the driver any more"
            }
            Self::NotReady => "see what `longshore status` says",
            Self::Bug => "please report it with the log",
        }
    }
}

/// An error that ends a command: exit code, what failed, what to do, and what caused it.
///
/// `Display` gives only the cause, and what came of it; [`Failure::report`] gives the whole message once.
#[derive(Debug)]
pub struct Failure {
    code: ExitCode,
    cause: String,
    consequence: Option<String>,
    remedy: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// A failure with `code`; `cause` names the operation and the path or URL it failed on.
    pub fn new(code: ExitCode, cause: impl Into<String>) -> Self {
        Self { code, cause: cause.into(), consequence: None, remedy: None, source: None }
    }

    /// Says what the reader can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Keeps the error below this one.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Says what came of it.
    #[must_use]
    pub fn adding(mut self, consequence: impl Into<String>) -> Self {
        self.consequence = Some(consequence.into());
        self
    }

    /// The exit code of the process that ends with this failure.
    pub fn code(&self) -> ExitCode {
        self.code
    }

    /// What to do about it, where this failure says more than its exit code does.
    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// What to do about it: what this failure says, or else what its exit code does.
    pub fn what_to_do(&self) -> &str {
        self.remedy.as_deref().unwrap_or(self.code.usual_remedy())
    }

    /// Cause, chain and remedy as the lines a person reads.
    pub fn report(&self) -> String {
        let mut text = format!("error: {self}");
        for error in self.chain() {
            text.push_str(&format!("\n  caused by: {error}"));
        }
        text.push_str(&format!("\n  remedy: {}", self.what_to_do()));
        text
    }

    /// Cause, chain and what came of it in one line, for a log.
    pub fn one_line(&self) -> String {
        let mut text = self.cause.clone();
        for error in self.chain() {
            text.push_str(&format!(": {error}"));
        }
        if let Some(consequence) = &self.consequence {
            text.push_str(&format!("; {consequence}"));
        }
        text
    }

    /// The errors below this one, outermost first.
    pub fn chain(&self) -> impl Iterator<Item = &(dyn Error + 'static)> {
        std::iter::successors(self.source(), |error| <dyn Error>::source(*error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        self.consequence.iter().try_for_each(|consequence| write!(f, "; {consequence}"))
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|e| e.as_ref() as &(dyn Error + 'static))
    }
}

/// Turns any error into a [`Failure`] in one call.
pub trait OrFail<T> {
    /// Maps the error to a failure with `code` whose cause is `cause()`.
    fn or_fail<C: Into<String>>(
        self,
        code: ExitCode,
        cause: impl FnOnce() -> C,
    ) -> Result<T, Failure>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> OrFail<T> for Result<T, E> {
    fn or_fail<C: Into<String>>(
        self,
        code: ExitCode,
        cause: impl FnOnce() -> C,
    ) -> Result<T, Failure> {
        self.map_err(|e| Failure::new(code, cause()).because(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_holds_cause_chain_and_remedy_once() {
        let inner = std::io::Error::from_raw_os_error(28);
        let failure = Failure::new(ExitCode::Preflight, "writing /store/a")
            .because(inner)
            .remedy("free some space");
        assert_eq!(
            failure.report(),
            "error: writing /store/a\n  caused by: No space left on device (os error 28)\n  remedy: free some space"
        );
        assert_eq!(failure.code().number(), 15);
    }

    #[test]
    fn a_failure_without_a_remedy_has_that_of_its_exit_code() {
        let failure = Failure::new(ExitCode::Bug, "a").because("b");
        assert_eq!(
            failure.report(),
            "error: a\n  caused by: b\n  remedy: please report it with the log"
        );
        assert_eq!(failure.one_line(), "a: b");
    }

    #[test]
    fn what_came_of_it_is_said_after_what_caused_it() {
        let failure = Failure::new(ExitCode::Bug, "a").because("b").adding("c is back").remedy("d");
        assert_eq!(failure.report(), "error: a; c is back\n  caused by: b\n  remedy: d");
        assert_eq!(failure.one_line(), "a: b; c is back");
    }

    /// Every exit code, one after the other.
    fn after(code: ExitCode) -> Option<ExitCode> {
        use ExitCode::*;
        Some(match code {
            Done => Usage,
            Usage => HostUnsupported,
            HostUnsupported => Toolchain,
            Toolchain => Download,
            Download => Verification,
            Verification => Compile,
            Compile => Preflight,
            Preflight => KernelRefused,
            KernelRefused => NoDevice,
            NoDevice => Expose,
            Expose => InUse,
            InUse => RolledBack,
            RolledBack => NotReady,
            NotReady => Bug,
            Bug => return None,
        })
    }

    #[test]
    fn the_page_of_exit_codes_has_each_once_and_no_other() {
        let page = include_str!("../../docs/exit-codes.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
        let rows: Vec<u8> = rows.filter_map(|row| row.split(' ').next()?.parse().ok()).collect();
        let all = std::iter::successors(Some(ExitCode::Done), |code| after(*code));
        assert_eq!(rows, all.map(ExitCode::number).collect::<Vec<_>>());
    }
}
