//! Contents of a build root: the kernels that it has headers for, compilers, and OpenShift's driver toolkit.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

use super::BuildRoot;
use super::compilers::{self, Compiler, Run};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::root::Root;
use longshore_sources::headers::{Headers, Stated, Wanted, headers_in, releases_in};

/// File by which an image is OpenShift's driver toolkit.
const TOOLKIT: &str = "etc/driver-toolkit-release.json";

/// Contents of a build root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Contents {
    /// Place that it came from.
    pub place: String,
    /// sha256 (hex) of what it came from.
    pub digest: String,
    /// Kernels with headers, usable or not.
    pub kernels: Vec<Kernel>,
    /// Compilers that run.
    pub compilers: Vec<Compiler>,
    /// The driver toolkit's own release file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_toolkit: Option<Toolkit>,
    /// Programs that a compile needs and that are absent.
    pub lacking: Vec<&'static str>,
}

/// A kernel in a build root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`, where the headers are usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The compiler that it was built with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
    /// Reason why the headers are unusable, or why no compiler fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

/// Release file of OpenShift's driver toolkit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", default)]
pub struct Toolkit {
    /// Release of the cluster's kernel.
    pub kernel_version: String,
    /// Release of its real-time kernel.
    pub rt_kernel_version: String,
    /// Version of RHEL.
    pub rhel_version: String,
}

impl Toolkit {
    fn read(root: &BuildRoot) -> Option<Self> {
        let text = Root::open(&root.path).and_then(|root| root.read(TOOLKIT)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl Display for Toolkit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = [&self.kernel_version, &self.rt_kernel_version];
        let kernels: Vec<&str> =
            kernels.into_iter().filter(|kernel| !kernel.is_empty()).map(String::as_str).collect();
        write!(f, "driver toolkit for {}", kernels.join(" and "))
    }
}

/// Lists what a build root has; runs its compilers in the sandbox.
///
/// # Errors
/// Exit code 10 where there is no sandbox, 15 where the store cannot be written.
pub async fn inspect(root: &BuildRoot, run: &Run<'_>) -> Result<Contents, Failure> {
    let compilers = compilers::compilers(root, "", run).await?;
    let kernels = releases_in(&root.path).into_iter();
    let kernels = kernels.map(|release| Kernel::read(root, release, &compilers)).collect();
    Ok(Contents {
        place: root.place.clone(),
        digest: root.digest.clone(),
        kernels,
        compilers,
        driver_toolkit: Toolkit::read(root),
        lacking: compilers::lacking(root),
    })
}

impl Kernel {
    fn read(root: &BuildRoot, release: String, found: &[Compiler]) -> Self {
        match headers_in(&root.path, Wanted { release: &release, version: None }) {
            Ok((Stated { kernel_version, compiler, .. }, _)) => {
                let chosen = compilers::choose(&compiler, found, &root.place);
                let unusable = chosen.err().map(|failure| failure.to_string());
                let (version, compiler) = (Some(kernel_version), Some(compiler));
                Self { release, version, compiler, unusable }
            }
            Err(why) => Self { release, version: None, compiler: None, unusable: Some(why) },
        }
    }
}

/// Returns the headers of a kernel in a build root.
///
/// # Errors
/// Exit code 11 where it has none that fit, naming those that it has.
pub(crate) fn headers(root: &BuildRoot, wanted: Wanted<'_>) -> Result<Headers, Failure> {
    match headers_in(&root.path, wanted) {
        Ok((stated, dirs)) => Ok(Headers::in_root(wanted.release, stated, dirs)),
        Err(why) => Err(unfit(root, wanted.release, &why)),
    }
}

fn unfit(root: &BuildRoot, release: &str, why: &str) -> Failure {
    let there = match releases_in(&root.path).as_slice() {
        [] => "it has headers for no kernel".to_owned(),
        all => format!("it has headers for {}", all.join(", ")),
    };
    let toolkit = Toolkit::read(root);
    let of = toolkit.as_ref().map(|toolkit| format!("; it is OpenShift's {toolkit}"));
    let place = &root.place;
    let cause = format!(
        "the build root {place} does not fit the kernel {release}: {why}; {there}{}",
        of.unwrap_or_default()
    );
    Failure::new(FailureKind::Toolchain, cause).remedy(match toolkit {
        Some(_) => "name the driver toolkit of the cluster's own release (`oc adm release info --image-for=driver-toolkit`)",
        None => {
            "make a build root with the headers of exactly this kernel; `longshore build-root inspect` lists \
             those of one"
        }
    })
}

/// Returns the compiler of a build root that matches the kernel's; checks that it has all that a compile runs.
///
/// # Errors
/// Exit code 11 where there is none, or a tool is absent.
pub(crate) async fn compiler_for(
    root: &BuildRoot,
    stated: &Stated,
    run: &Run<'_>,
) -> Result<Compiler, Failure> {
    let found = compilers::compilers(root, stated.compiler_program(), run).await?;
    let chosen = compilers::choose(&stated.compiler, &found, &root.place)?;
    match compilers::lacking(root).as_slice() {
        [] => Ok(chosen),
        absent => {
            let cause = format!("the build root {} has no {}", root.place, absent.join(" and no "));
            Err(Failure::new(FailureKind::Toolchain, cause)
                .remedy("add them to the build root: make, and binutils for strip and ld"))
        }
    }
}
