//! Kernel headers: search order, the kernel they state, and its compiler.
//!
//! The first source with fitting headers is taken:
//!
//! 1. the paths in the configuration: an explicit choice;
//! 2. the archives: signed, and the same on every node, so that nodes share built modules;
//! 3. the host's `/lib/modules/RELEASE`: unsigned, but the kernel's own.
//!
//! Compiler and tools always come from the archives, and the compiler is the kernel's own: the one
//! that the headers state, of whatever source they are.

mod archive;
mod compiler;
mod in_root;
mod kernel_build;
mod kernel_image;
mod local;
mod nearest;
mod parts;
pub mod places;
mod stated;
mod toolchain;
mod trees;
mod view;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::progress::Progress;
use longshore_core::scratch::ScratchDir;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_modules::artifact::HeadersFrom;
use serde::{Deserialize, Serialize};

pub use archive::{
    InArchive, WITHOUT_PACKAGE, find as find_in_archive, nearest_in as nearest_in_archives,
    signature_hash,
};
pub use compiler::check as check_compiler;
pub use in_root::{KernelDirs, dirs_in, headers_in, releases_in};
pub use nearest::flavour_of;
pub use places::HeaderPlaces;
pub use stated::Stated;
pub(crate) use toolchain::linker;
pub use toolchain::{all_parts, core_tools, cxx_package, programs};
pub use trees::Trees;

/// Headers and compiler for one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AvailableHeaders {
    /// Headers of an archive.
    Archive {
        /// Headers package, for example `linux-headers-6.1.0-50-amd64`.
        package: String,
        /// Version of the package.
        version: String,
        /// Compiler package that the headers depend on, for example `gcc-12`; None where they only
        /// state the compiler inside, which is read once they are fetched.
        #[serde(default)]
        compiler: Option<String>,
        /// Reasons why sources earlier in the fallback order were not used.
        #[serde(default)]
        passed_over: Vec<String>,
    },
    /// Headers on the host or at a configured path; the compiler comes from the archives.
    Local {
        /// Directory or file that they are in.
        place: String,
        /// Compiler that the headers require, by its own version line.
        compiler: String,
        /// Reasons why sources earlier in the fallback order were not used.
        #[serde(default)]
        passed_over: Vec<String>,
    },
    /// A build root, which has the compiler too.
    BuildRoot {
        /// Place that it comes from.
        place: String,
        /// sha256 (hex) of an image's manifest, of a tar file, or of a directory.
        digest: String,
        /// Compiler that the headers require, where the store has the root unpacked.
        compiler: Option<String>,
    },
    /// No headers; names the nearest releases.
    Missing {
        /// Nearest releases the archives have headers for.
        nearest: Vec<String>,
        /// Reasons why each source was not used.
        #[serde(default)]
        passed_over: Vec<String>,
    },
}

impl AvailableHeaders {
    /// Returns the reasons against the sources before these headers' own, one for each; empty where
    /// no source has any.
    fn before(&self) -> &[String] {
        match self {
            Self::Archive { passed_over, .. } | Self::Local { passed_over, .. } => passed_over,
            Self::BuildRoot { .. } | Self::Missing { .. } => &[],
        }
    }
}

/// The kernel that headers are wanted for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// `uname -r`.
    pub release: &'a str,
    /// `uname -v`; None takes the newest available.
    pub version: Option<&'a str>,
}

/// The headers of one kernel, and everything needed to build with them.
#[derive(Debug)]
pub struct Headers {
    /// `uname -r`.
    pub release: String,
    /// The kernel and compiler that the headers state.
    pub stated: Stated,
    /// The package of the kernel's compiler, for example `gcc-12`.
    pub compiler: String,
    /// Compiler and tools, and the headers if they are packages: the contents of the root.
    pub toolchain: Vec<Package>,
    /// The packages of the toolchain that hold the headers; none if they are not packages.
    pub parts: Vec<Package>,
    /// The headers if they are not packages.
    pub trees: Option<Trees>,
    /// Directories of sources and output inside a given build root; None where the root is assembled.
    pub dirs: Option<(PathBuf, PathBuf)>,
    /// Origin of the headers.
    pub from: HeadersFrom,
    /// Reasons why the sources before it were not used.
    pub passed_over: Vec<String>,
    /// The directory of unpacked headers.
    _unpacked: Option<Arc<ScratchDir>>,
}

impl Headers {
    /// Returns headers of which only what they state is known.
    fn bare(release: &str, stated: Stated, from: HeadersFrom) -> Self {
        Self {
            release: release.to_owned(),
            stated,
            compiler: String::new(),
            toolchain: Vec::new(),
            parts: Vec::new(),
            trees: None,
            dirs: None,
            from,
            passed_over: Vec::new(),
            _unpacked: None,
        }
    }

    /// Returns the compiler's program in the build root: the kernel's name for it, if that exists,
    /// or else the package's.
    pub fn compiler_program(&self, root: &Path) -> String {
        let named = self.stated.compiler_program();
        let plain = !named.is_empty() && !named.contains('/');
        let there = plain && root.join("usr/bin").join(named).symlink_metadata().is_ok();
        if there { named.to_owned() } else { self.compiler.clone() }
    }
}

/// A source of headers.
enum Source<'a> {
    /// A path of the configuration.
    Given(&'a Path),
    /// The archives.
    Archives,
    /// The host's own file system, by its root.
    Host(&'a Path),
}

/// Returns the sources of headers in the fallback order.
fn sources(places: &HeaderPlaces) -> impl Iterator<Item = Source<'_>> {
    let given = places.given.iter().map(|path| Source::Given(path));
    let host = places.host_root.iter().map(|root| Source::Host(root));
    given.chain([Source::Archives]).chain(host)
}

/// Finds the headers for a kernel, in the first source that has them. Fetches an archive's headers
/// package, which states the exact kernel and compiler it belongs to. The sources that `available`
/// passed over are not searched again; those after its own are, where that turns out not to fit.
///
/// # Errors
/// Exit code 11 where no source has them, with the reason of each, or where no archive has the
/// compiler; 12 and 13 for a package that cannot be fetched or is damaged.
pub async fn find(
    wanted: Wanted<'_>,
    places: &HeaderPlaces,
    available: Option<&AvailableHeaders>,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<Headers, Failure> {
    let mut passed_over = available.map(AvailableHeaders::before).unwrap_or_default().to_vec();
    // A configured path that does not exist is a mistake, and not only passed over.
    for path in places.given.iter().take(passed_over.len()) {
        local::metadata(path)?;
    }
    let mut missing = None;
    for source in sources(places).skip(passed_over.len()) {
        let (found, from) = match source {
            Source::Given(path) => {
                let found = local::given(path, wanted, store).await?;
                (found.map_err(|why| format!("{}: {why}", path.display())), HeadersFrom::Named)
            }
            Source::Archives => match packaged(wanted, archive, store, progress).await {
                Ok(found) => return Ok(Headers { passed_over, ..found }),
                Err(failure) if failure.kind() == FailureKind::Toolchain => {
                    passed_over.push(failure.one_line());
                    missing = Some(failure);
                    continue;
                }
                Err(failure) => return Err(failure),
            },
            Source::Host(root) => {
                let found = local::of_host(root, wanted);
                (found.map_err(|why| format!("the host: {why}")), HeadersFrom::Host)
            }
        };
        match found {
            Ok(found) => return with_toolchain(found, from, wanted, archive, passed_over),
            Err(why) => passed_over.push(why),
        }
    }
    Err(match missing {
        Some(missing) => none_of(missing, &passed_over),
        None => Failure::new(FailureKind::Toolchain, passed_over.join("; ")),
    })
}

/// The failure where no source has headers: the archives' reason first, since most hosts rely on
/// them, then the others.
fn none_of(missing: Failure, passed_over: &[String]) -> Failure {
    let archives = missing.one_line();
    let others: Vec<&str> =
        passed_over.iter().filter(|why| **why != archives).map(String::as_str).collect();
    if others.is_empty() {
        return missing;
    }
    let remedy = missing.remedy_text().unwrap_or_default().to_owned();
    let cause = format!("{archives}; also not used: {}", others.join("; "));
    Failure::new(missing.kind(), cause).remedy(remedy)
}

async fn packaged(
    wanted: Wanted<'_>,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<Headers, Failure> {
    let found = archive::find(archive, wanted.release, wanted.version)?;
    archive.fetch(std::slice::from_ref(&found.package), store, progress).await?;
    let stated = stated_by(&found.package, wanted, archive, store, progress).await?;
    let compiler = toolchain::compiler_for(&found, &stated)?;
    let toolchain = toolchain::closure(archive, &found, &compiler, &stated)?;
    Ok(Headers {
        compiler,
        parts: toolchain::parts_among(&found.package, &toolchain),
        toolchain,
        ..Headers::bare(wanted.release, stated, HeadersFrom::Archive)
    })
}

/// Reads the kernel and compiler that a headers package states.
async fn stated_by(
    package: &Package,
    wanted: Wanted<'_>,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<Stated, Failure> {
    let reading = archive::read(package, store)?;
    let implied = match wanted.version.filter(|_| reading.lacks_version()) {
        Some(version) => archive::implied_version(package, wanted.release, version),
        None if reading.lacks_version() => {
            kernel_image::version(archive, package, wanted.release, store, progress).await?
        }
        None => None,
    };
    let stated = reading.complete(&package.name, implied)?;
    archive::check_build(package, wanted.version, &stated)?;
    Ok(stated)
}

fn with_toolchain(
    found: local::LocalHeaders,
    from: HeadersFrom,
    wanted: Wanted<'_>,
    archive: &Archive,
    passed_over: Vec<String>,
) -> Result<Headers, Failure> {
    let local::LocalHeaders { trees, stated, unpacked } = found;
    let compiler = toolchain::compiler_package(&stated)?;
    let toolchain = toolchain::toolchain(archive, &compiler, &stated)?;
    Ok(Headers {
        compiler,
        toolchain,
        trees: Some(trees),
        passed_over,
        _unpacked: unpacked,
        ..Headers::bare(wanted.release, stated, from)
    })
}

/// Like [`find`], for the catalog: fetches and unpacks nothing, and absence is a result. A tar file
/// is assumed to be valid.
pub fn available(wanted: Wanted<'_>, places: &HeaderPlaces, archive: &Archive) -> AvailableHeaders {
    let mut passed_over = Vec::new();
    for path in &places.given {
        match local::look(path, wanted) {
            Ok(compiler) => {
                let place = path.display().to_string();
                return AvailableHeaders::Local { place, compiler, passed_over };
            }
            Err(why) => passed_over.push(format!("{}: {why}", path.display())),
        }
    }
    match archive::find(archive, wanted.release, wanted.version) {
        Ok(found) => {
            return AvailableHeaders::Archive {
                package: found.package.name,
                version: found.package.version,
                compiler: found.compiler,
                passed_over,
            };
        }
        Err(failure) => passed_over.push(failure.one_line()),
    }
    let host = |root: &PathBuf| available_of_host(root, wanted, &mut passed_over);
    if let Some((place, compiler)) = places.host_root.as_ref().and_then(host) {
        return AvailableHeaders::Local { place, compiler, passed_over };
    }
    let nearest = nearest::nearest(&archive::releases(archive), wanted.release);
    AvailableHeaders::Missing { nearest, passed_over }
}

fn available_of_host(
    root: &Path,
    wanted: Wanted<'_>,
    passed_over: &mut Vec<String>,
) -> Option<(String, String)> {
    match local::of_host(root, wanted) {
        Ok(found) => {
            let place = format!("the host's /lib/modules/{}/build", wanted.release);
            Some((place, found.stated.compiler))
        }
        Err(why) => {
            passed_over.push(format!("the host: {why}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::disk::Disk;
    use longshore_core::progress::Silent;

    const WANTED: Wanted<'static> = Wanted { release: "6.1.0-50-amd64", version: None };

    async fn fails(places: &HeaderPlaces, available: Option<&AvailableHeaders>) -> Failure {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (archive, store) =
            (Archive::empty(), Store::open(dir.path(), Disk::default()).expect("store"));
        let found = find(WANTED, places, available, &archive, &store, &Silent).await;
        found.expect_err("no source has any")
    }

    #[tokio::test]
    async fn sources_that_the_plan_passed_over_are_not_searched_again() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let given = vec![dir.path().to_path_buf()];
        let mut places = HeaderPlaces { given, host_root: None };
        let available = AvailableHeaders::Archive {
            package: "linux-headers-6.1.0-50-amd64".into(),
            version: "6.1.176-1".into(),
            compiler: Some("gcc-12".into()),
            passed_over: vec!["the plan's reason".into()],
        };
        let failure = fails(&places, Some(&available)).await;
        assert_eq!(failure.kind(), FailureKind::Toolchain);
        let text = failure.to_string();
        assert!(text.starts_with("no archive has linux-headers-6.1.0-50-amd64"), "{text}");
        assert!(text.ends_with("; also not used: the plan's reason"), "{text}");
        let searched = fails(&places, None).await.to_string();
        assert!(searched.contains("neither a Makefile"), "{searched}");
        // A path that does not exist is a mistake in the configuration, whatever the plan says.
        places.given[0].push("absent");
        for available in [None, Some(&available)] {
            let failure = fails(&places, available).await;
            assert_eq!(failure.kind(), FailureKind::Toolchain);
            assert!(failure.remedy_or_default().starts_with("correct `headers`"), "{failure}");
        }
    }

    #[tokio::test]
    async fn headers_that_turn_out_not_to_fit_are_followed_by_the_next_source() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let host_root = Some(dir.path().to_path_buf());
        let places = HeaderPlaces { given: Vec::new(), host_root };
        let available = AvailableHeaders::Archive {
            package: "linux-headers-6.1.0-50-amd64".into(),
            version: "6.1.176-1".into(),
            compiler: Some("gcc-12".into()),
            passed_over: Vec::new(),
        };
        let text = fails(&places, Some(&available)).await.to_string();
        assert!(text.contains("; also not used: the host: "), "{text}");
    }
}
