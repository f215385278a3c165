//! Failures for the person on call: kind, exit code, cause, remedy, and the chain of errors below.

mod compile_class;
mod exit_code;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

pub use compile_class::CompileClass;
pub use exit_code::{ExitCode, ExitCodeEntry};

/// Kind of a failure: callers branch on it, and the exit code follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The command line or the configuration is wrong.
    Usage,
    /// longshore does not support this host, kernel or architecture.
    HostUnsupported,
    /// Kernel headers or the matching compiler are unavailable.
    Toolchain,
    /// A source does not have what was requested, or did not deliver it; another source may.
    Download,
    /// There is no source at all: none is configured, and the host's own are not usable.
    NoSource,
    /// Fetched or stored data is invalid (signature, digest, format).
    Verification,
    /// The driver does not compile for this kernel.
    Compile,
    /// The host is not ready, and nothing on it was touched.
    Preflight,
    /// A local file of the store or of a layout exists and cannot be read, or cannot be written: no
    /// other source helps.
    Disk,
    /// The kernel refused a module.
    KernelRefused,
    /// There is no NVIDIA GPU or NVSwitch to drive.
    NoDevice,
    /// The driver is loaded but could not be exposed to the host.
    Expose,
    /// A container runtime of this host does not read CDI specs, or its configuration is not edited.
    Runtime,
    /// The driver is in use and was left as it is.
    InUse,
    /// A failure was rolled back, and the rollback left something behind.
    RolledBack,
    /// The driver is not ready, or the agent is not running.
    NotReady,
    /// A node of the cluster is not ready, would refuse the plan, or could not be cleaned.
    NodesNotReady,
    /// kubectl is missing, or failed; or the API server cannot be asked without it.
    Kubectl,
    /// A fault in longshore itself.
    Bug,
}

impl FailureKind {
    /// Returns the exit code of a process that ends with a failure of this kind.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Usage => ExitCode::Usage,
            Self::HostUnsupported => ExitCode::HostUnsupported,
            Self::Toolchain => ExitCode::Toolchain,
            Self::Download | Self::NoSource => ExitCode::Download,
            Self::Verification => ExitCode::Verification,
            Self::Compile => ExitCode::Compile,
            Self::Preflight | Self::Disk => ExitCode::Preflight,
            Self::KernelRefused => ExitCode::KernelRefused,
            Self::NoDevice => ExitCode::NoDevice,
            Self::Expose => ExitCode::Expose,
            Self::Runtime => ExitCode::Runtime,
            Self::InUse => ExitCode::InUse,
            Self::RolledBack => ExitCode::RolledBack,
            Self::NotReady => ExitCode::NotReady,
            Self::NodesNotReady => ExitCode::NodesNotReady,
            Self::Kubectl => ExitCode::Kubectl,
            Self::Bug => ExitCode::Bug,
        }
    }

    /// True if a source failed for good, by what is configured or missing here: waiting or another network
    /// changes nothing.
    pub fn is_definite(self) -> bool {
        matches!(self, Self::NoSource | Self::Usage)
    }

    /// True if the host itself or its disk is the cause, which is the same for every source.
    pub fn is_of_host(self) -> bool {
        matches!(self, Self::Preflight | Self::Disk)
    }

    /// Returns the default remedy, for failures without one of their own.
    fn usual_remedy(self) -> &'static str {
        match self {
            Self::Usage => {
                "correct the command line or the configuration; `longshore run --help` lists every \
                 setting"
            }
            Self::HostUnsupported | Self::Preflight | Self::NoDevice => {
                "run `longshore plan` on this host"
            }
            Self::Toolchain => "add an archive or suite that has it, or give a prebuilt set",
            Self::Download => "check the network, the proxy and the configured archives",
            Self::NoSource => {
                "name an archive as [[archive]] in the configuration file, or a .run file"
            }
            Self::Verification => {
                "remove the named file and run again, so that it is fetched or made again; if it \
                 comes back, check the mirror and the disk"
            }
            Self::Compile => "see the compiler's log, or choose another driver version or flavour",
            Self::Disk => "see the kernel's log (dmesg) for the disk that the file is on",
            Self::KernelRefused => "see the kernel's log (dmesg)",
            Self::Expose => "check the mounts and files below /run/nvidia",
            Self::Runtime => "`longshore runtime check` names the configuration of each runtime",
            Self::InUse | Self::RolledBack => {
                "run `longshore unload` once nothing holds the driver any more"
            }
            Self::NotReady => "run `longshore status`",
            Self::NodesNotReady => "run `longshore fleet status`",
            Self::Kubectl => "run the same kubectl command by hand",
            Self::Bug => "please report it with the log",
        }
    }
}

/// Error that ends a command: kind, operation, remedy, and source.
///
/// `Display` prints only the cause and its consequence; [`Failure::report`] returns the whole
/// message once.
#[derive(Debug, Clone)]
pub struct Failure {
    kind: FailureKind,
    cause: String,
    consequence: Option<String>,
    remedy: Option<String>,
    compile_class: Option<Box<CompileClass>>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl Failure {
    /// Makes a failure of `kind`; `cause` names the operation and the path or URL it failed on.
    pub fn new(kind: FailureKind, cause: impl Into<String>) -> Self {
        let cause = cause.into();
        Self { kind, cause, consequence: None, remedy: None, compile_class: None, source: None }
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Sets the underlying error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Sets the consequence.
    #[must_use]
    pub fn with_consequence(mut self, consequence: impl Into<String>) -> Self {
        self.consequence = Some(consequence.into());
        self
    }

    /// Sets the class of the compile that failed.
    #[must_use]
    pub fn with_compile_class(mut self, class: CompileClass) -> Self {
        self.compile_class = Some(Box::new(class));
        self
    }

    /// Returns the class of the compile that failed, if it was one.
    pub fn compile_class(&self) -> Option<&CompileClass> {
        self.compile_class.as_deref()
    }

    /// Returns the kind.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns the exit code of the process that ends with this failure.
    pub fn code(&self) -> ExitCode {
        self.kind.exit_code()
    }

    /// Returns the remedy, where this failure has one of its own.
    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// Returns the remedy of this failure, or else the default one of its kind.
    pub fn remedy_or_default(&self) -> &str {
        self.remedy.as_deref().unwrap_or(self.kind.usual_remedy())
    }

    /// Returns cause, chain and remedy as lines for people.
    pub fn report(&self) -> String {
        let mut text = format!("error: {self}");
        for error in self.chain() {
            text.push_str(&format!("\n  caused by: {error}"));
        }
        text.push_str(&format!("\n  remedy: {}", self.remedy_or_default()));
        text
    }

    /// Returns cause, chain and consequence in one line, for a log.
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

    /// Returns the errors below this one, outermost first.
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
    /// Maps the error to a failure of `kind` whose cause is `cause()`.
    fn or_fail<C: Into<String>>(
        self,
        kind: FailureKind,
        cause: impl FnOnce() -> C,
    ) -> Result<T, Failure>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> OrFail<T> for Result<T, E> {
    fn or_fail<C: Into<String>>(
        self,
        kind: FailureKind,
        cause: impl FnOnce() -> C,
    ) -> Result<T, Failure> {
        self.map_err(|e| Failure::new(kind, cause()).with_source(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_holds_cause_chain_and_remedy_once() {
        let inner = std::io::Error::from_raw_os_error(28);
        let failure = Failure::new(FailureKind::Preflight, "writing /store/a")
            .with_source(inner)
            .remedy("free some space");
        assert_eq!(
            failure.report(),
            "error: writing /store/a\n  caused by: No space left on device (os error 28)\n  remedy: free some space"
        );
        assert_eq!(failure.code().number(), 15);
    }

    #[test]
    fn a_failure_without_a_remedy_has_that_of_its_exit_code() {
        let failure = Failure::new(FailureKind::Bug, "a").with_source("b");
        assert_eq!(
            failure.report(),
            "error: a\n  caused by: b\n  remedy: please report it with the log"
        );
        assert_eq!(failure.one_line(), "a: b");
    }

    #[test]
    fn what_came_of_it_is_said_after_what_caused_it() {
        let failure = Failure::new(FailureKind::Bug, "a")
            .with_source("b")
            .with_consequence("c is back")
            .remedy("d");
        assert_eq!(failure.report(), "error: a; c is back\n  caused by: b\n  remedy: d");
        assert_eq!(failure.one_line(), "a: b; c is back");
    }

    /// Returns the next kind.
    fn next(kind: FailureKind) -> Option<FailureKind> {
        use FailureKind::*;
        Some(match kind {
            Usage => HostUnsupported,
            HostUnsupported => Toolchain,
            Toolchain => Download,
            Download => NoSource,
            NoSource => Verification,
            Verification => Compile,
            Compile => Preflight,
            Preflight => Disk,
            Disk => KernelRefused,
            KernelRefused => NoDevice,
            NoDevice => Expose,
            Expose => Runtime,
            Runtime => InUse,
            InUse => RolledBack,
            RolledBack => NotReady,
            NotReady => NodesNotReady,
            NodesNotReady => Kubectl,
            Kubectl => Bug,
            Bug => return None,
        })
    }

    #[test]
    fn every_exit_code_but_success_has_a_kind_and_every_kind_a_remedy() {
        let mut codes = vec![ExitCode::Done];
        for kind in std::iter::successors(Some(FailureKind::Usage), |kind| next(*kind)) {
            assert_eq!(Failure::new(kind, "a").code(), kind.exit_code(), "{kind:?}");
            assert!(!kind.usual_remedy().is_empty());
            codes.push(kind.exit_code());
        }
        codes.dedup();
        assert_eq!(codes, ExitCode::ALL);
    }
}
