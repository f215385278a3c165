//! Packages of the benchmark: those of a build root for this machine's distribution.

use std::path::Path;

use longshore_core::failure::Failure;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Requirement};
use longshore_debian::max_age::MaxAge;
use longshore_debian::settings::ArchiveConfig;
use tokio::runtime::Runtime;

use longshore_tests::archive::{ARCH, Suite};
use longshore_tests::packages::TOOLS;
use longshore_tests::scene::disk;

/// Makes an archive of headers with their compiler, and of the other packages of a build, each without
/// its dependencies, as all are requested by name. They are fetched from this machine's apt sources
/// once, and kept in `dir`.
pub(crate) fn suite(runtime: &Runtime, dir: &Path) -> Result<Suite, Failure> {
    let store = Store::open(dir, disk())?;
    let config = ArchiveConfig {
        sources: Vec::new(),
        use_host_apt: true,
        host_components: Vec::new(),
        host_suites: Vec::new(),
        container_lists: None,
        frozen: true,
        max_age: MaxAge::default(),
    };
    let packages = runtime.block_on(async {
        let archive = Archive::open(&config, Path::new("/"), &store, &Silent).await?;
        let headers = format!("linux-headers-{ARCH}");
        let roots = [&[headers.as_str()][..], &TOOLS].concat();
        let roots: Vec<_> = roots.into_iter().map(Requirement::any).collect();
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
