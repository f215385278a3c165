//! What is fetched: the packages that a build root of this machine's distribution is made of.

use std::path::Path;

use longshore::Failure;
use longshore::config::ArchiveConfig;
use longshore::progress::Silent;
use longshore::source::archive::{Archive, Requirement};
use longshore::store::Store;
use tokio::runtime::Runtime;

use crate::mini::{ARCH, Suite};

/// Headers, which bring their compiler, and what a build calls besides.
const ROOTS: [&str; 11] = [
    "linux-headers-ARCH",
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

/// An archive of those packages, each without its dependencies: all are asked for by name. They
/// are fetched from the sources of this machine's apt once, and kept in `dir`.
pub(crate) fn suite(runtime: &Runtime, dir: &Path) -> Result<Suite, Failure> {
    let store = Store::open(dir)?;
    let config = ArchiveConfig {
        sources: Vec::new(),
        use_host_apt: true,
        host_components: Vec::new(),
        host_suites: Vec::new(),
        frozen: true,
    };
    let packages = runtime.block_on(async {
        let archive = Archive::open(&config, Path::new("/"), &store, &Silent).await?;
        let roots = ROOTS.map(|root| Requirement::any(root.replace("ARCH", ARCH)));
        let packages = archive.closure(&roots)?;
        archive.fetch(&packages, &store, &Silent).await?;
        Ok::<_, Failure>(packages)
    })?;
    let mut suite = Suite { packages: Vec::new(), ..Suite::usual() };
    for package in packages {
        let stanza = format!(
            "Package: {}\nVersion: {}\nArchitecture: {}\n",
            package.name, package.version, package.arch
        );
        suite.packages.push((stanza, store.read_blob(&package.sha256)?));
    }
    Ok(suite)
}
