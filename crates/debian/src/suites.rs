//! Suites read one by one, for callers that compare them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use super::archive::{self, Archive};
use super::loading;
use super::release::Rules;
use super::selection;
use crate::settings::ArchiveConfig;
use longshore_core::failure::Failure;
use longshore_core::machine::Machine;
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_fetch::http::Policy;

impl Archive {
    /// Reads the suites that `config` adds to the host's apt sources, each as an archive of its own: one
    /// that cannot be read leaves the others. The host's other suites are not read.
    ///
    /// # Errors
    /// As [`Archive::open`] for invalid sources; the failure of a suite is that suite's result.
    pub async fn open_suites(
        config: &ArchiveConfig,
        host_root: &Path,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<BTreeMap<String, Result<Self, Failure>>, Failure> {
        let arch = Machine::this()?.debian;
        let mut wanted = selection::select(config, host_root, arch)?.wanted;
        wanted.retain(|wanted| config.host_suites.contains(&wanted.suite));
        let proxies = archive::proxies(&wanted, host_root)?;
        let fetcher = archive::fetcher(Policy::default(), config, host_root, &proxies)?;
        let rules = Rules { now: archive::seconds_now(), frozen: config.frozen };
        let loaded = loading::load(&fetcher, store, rules, arch, &wanted, progress).await;
        let mut suites = BTreeMap::new();
        for (wanted, loaded) in wanted.into_iter().zip(loaded) {
            let read = loaded.map(|indexes| Self::of_indexes(indexes, fetcher.clone(), arch));
            add(&mut suites, wanted.suite, read);
        }
        Ok(suites)
    }
}

/// Adds a suite as one of the host's archives has it; another archive may have it, too.
fn add(
    suites: &mut BTreeMap<String, Result<Archive, Failure>>,
    suite: String,
    read: Result<Archive, Failure>,
) {
    match (suites.entry(suite), read) {
        (Entry::Vacant(free), read) => {
            free.insert(read);
        }
        (Entry::Occupied(mut known), Ok(more)) => match known.get_mut() {
            Ok(first) => first.append(more),
            Err(_) => *known.get_mut() = Ok(more),
        },
        (Entry::Occupied(_), Err(failure)) => {
            tracing::warn!("an archive was skipped: {}", failure.one_line());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::FailureKind;

    const INDEX: &str = "Package: a\nVersion: 1\nArchitecture: all\nFilename: a\nSize: 1\n\
        SHA256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n";

    #[test]
    fn a_suite_is_what_any_archive_of_it_has() {
        let good = || Ok(Archive::of_suites(&[("s", INDEX)]));
        let bad = || Err(Failure::new(FailureKind::Download, "gone"));
        for (reads, packages) in [
            (vec![good()], Some(1)),
            (vec![good(), bad()], Some(1)),
            (vec![bad(), good()], Some(1)),
            (vec![bad(), bad()], None),
        ] {
            let mut suites = BTreeMap::new();
            reads.into_iter().for_each(|read| add(&mut suites, "s".to_owned(), read));
            let found = suites["s"].as_ref().map(|archive| archive.packages("a").len());
            assert_eq!(found.ok(), packages);
        }
    }
}
