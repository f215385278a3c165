//! Configured .run files, which a plan fetches before it is made again.

use super::{Ask, Boxed, Item, Missed, Provisioner, Query, Source, SourceId, not_its_item};
use crate::catalog::{Offers, SourceFailure};
use crate::supplier::open_archives::OpenArchives;
use longshore_core::failure::Failure;
use longshore_host::facts::Probe;
use longshore_modules::artifact::ModuleSet;

/// The configured .run files.
pub(super) struct ConfiguredFiles;

impl Source for ConfiguredFiles {
    fn id(&self) -> SourceId {
        SourceId::RunFiles
    }

    fn query(&self) -> Option<Query> {
        Some(Query::Files)
    }

    fn is_needed(&self, ask: &Ask<'_>) -> bool {
        ask.inventory.sources.run_files.are_named()
    }

    /// The plan judges a failure to read them, as it does for the archives: with a set for this kernel available it is
    /// no reason to leave a node without its driver, and a host without a GPU has a graver finding.
    fn offers<'a>(&'a self, ask: &'a Ask<'_>) -> Boxed<'a, Result<Offers, Failure>> {
        Box::pin(async move {
            let (inventory, sources) = (ask.inventory, &ask.inventory.sources);
            let mut offers = Offers::default();
            let found = sources.run_files.look(ask.store, ask.is_answered(), sources).await;
            offers.run_files = Some(found.unwrap_or_else(|failure| {
                let why = failure.to_string();
                inventory.telemetry.source_failed(SourceId::RunFiles, &failure);
                offers.failures = vec![SourceFailure::new(self.id(), ".run files", failure)];
                Probe::Unreadable(why)
            }));
            Ok(offers)
        })
    }

    fn acquire<'a>(
        &'a self,
        item: &'a Item,
        of: &'a Provisioner<'_>,
    ) -> Boxed<'a, Result<Option<ModuleSet>, Missed>> {
        Box::pin(async move {
            let Item::RunFile(file) = item else { return Err(not_its_item(item).into()) };
            let (store, sources) = (of.store()?, &of.inventory.sources);
            sources.run_files.fetch(file, &store, sources.progress()).await?;
            Ok(None)
        })
    }
}
