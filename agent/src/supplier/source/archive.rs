//! Archives in Debian's format: drivers, headers, finished modules, programs for NVLink switches.

use super::{Ask, Boxed, Query, Source, SourceId};
use crate::catalog::{AptState, Offers};
use crate::config::Config;
use crate::supplier::open_archives::OpenArchives;
use longshore_build::sign;
use longshore_core::failure::Failure;
use longshore_core::kernel_id::KernelId;
use longshore_core::machine::Machine;
use longshore_debian::archive::Archive;
use longshore_host::facts::{Kernel, Probe};
use longshore_sources::userspace::switches::switch_programs;
use longshore_sources::{driver, finished, headers};

/// The archives, configured or of the host's apt.
pub(super) struct Archives;

impl Source for Archives {
    fn id(&self) -> SourceId {
        SourceId::Archives
    }

    fn query(&self) -> Option<Query> {
        Some(Query::Archives)
    }

    fn is_needed(&self, ask: &Ask<'_>) -> bool {
        !ask.is_answered() && !ask.inventory.config.needs_no_archive()
    }

    fn offers<'a>(&'a self, ask: &'a Ask<'_>) -> Boxed<'a, Result<Offers, Failure>> {
        Box::pin(async move {
            let (inventory, sources) = (ask.inventory, &ask.inventory.sources);
            let opened = match ask.has_some() {
                true => sources.archive_soon(ask.store).await,
                false => sources.archive(ask.store).await,
            };
            Ok(match opened {
                Ok(archive) => offered(inventory.config, ask.kernel, archive),
                Err(failure) => {
                    inventory.telemetry.source_failed(SourceId::Archives, &failure);
                    Offers::without_archives(failure)
                }
            })
        })
    }
}

/// Returns what the archives have for `kernel`.
fn offered(config: &Config, kernel: &Kernel, archive: &Archive) -> Offers {
    let KernelId { release, version, .. } = kernel.id();
    let wanted = headers::Wanted { release, version };
    let mut offers = Offers {
        drivers: Some(Probe::Read(driver::drivers(archive))),
        headers: Some(Probe::Read(headers::available(wanted, &config.header_places(), archive))),
        no_sign_file: sign::check_archive(archive, release, version).err().map(|f| f.one_line()),
        apt: Some(AptState {
            unread: archive.unread().to_vec(),
            left_out: archive.left_out().to_vec(),
            proxies: archive.apt_proxies().to_vec(),
        }),
        ..Offers::default()
    };
    if let Ok(machine) = Machine::named(&kernel.arch) {
        offers.switch_programs = Some(Probe::Read(switch_programs(archive, machine.debian)));
    }
    if config.takes_module_packages() {
        let version = version.unwrap_or_default().to_owned();
        let of = finished::Kernel { release: release.to_owned(), version };
        offers.finished = finished::find(archive, &of);
    }
    offers
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rstest::rstest;

    use super::*;
    use crate::catalog::Catalog;
    use crate::config::{self, Fragment};
    use longshore_host::HostFacts;
    use longshore_modules::module_signing::Signer;

    /// Returns an index with the headers of the tree's kernel, and with the package of its sign-file.
    fn index(has_headers: bool, has_kbuild: bool) -> String {
        let stanza = |name: &str, depends: &str| {
            format!(
                "Package: {name}\nSource: linux\nVersion: 6.1.176-1\nArchitecture: amd64\nDepends: {depends}\n\
                 Filename: pool/{name}.deb\nSize: 1\nSHA256: {}\n\n",
                "1".repeat(64)
            )
        };
        let headers = stanza("linux-headers-6.1.0-50-amd64", "linux-kbuild-6.1, gcc-12");
        let kbuild = stanza("linux-kbuild-6.1", "");
        [(has_headers, headers), (has_kbuild, kbuild)]
            .into_iter()
            .filter_map(|(has, text)| has.then_some(text))
            .collect()
    }

    #[rstest]
    #[case::there(true, true, false, None)]
    #[case::without_kbuild(true, false, false, Some("linux-kbuild-6.1"))]
    #[case::without_headers(false, true, false, Some("linux-headers-6.1.0-50-amd64"))]
    #[case::made_elsewhere(false, false, true, None)]
    fn a_key_needs_sign_file_of_the_archives(
        #[case] has_headers: bool,
        #[case] has_kbuild: bool,
        #[case] detached: bool,
        #[case] lacks: Option<&str>,
    ) {
        let signer = Signer {
            certificate: "0".repeat(64),
            name: "Example: Module signing".into(),
            key_id: "25a7".into(),
            detached,
        };
        let mut catalog =
            Catalog { signer: Some(signer), ..Catalog::without_sources("not asked yet") };
        let archive = Archive::of_suites(&[("bookworm", &index(has_headers, has_kbuild))]);
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bookworm-t4");
        let facts = HostFacts::read(&tree, &tree).expect("facts");
        let config = config::load(Fragment::default(), &|_| None, None).expect("defaults");
        catalog.add(offered(&config, &facts.kernel, &archive), &facts.kernel);
        assert_eq!(catalog.signer.is_some(), lacks.is_none());
        let why = catalog.no_sign_file.as_deref();
        assert!(why.unwrap_or_default().contains(lacks.unwrap_or_default()), "{why:?}");
        assert_eq!(why.is_some(), lacks.is_some(), "{why:?}");
    }
}
