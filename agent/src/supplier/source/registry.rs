//! Registries of sets.

use super::{Ask, Boxed, Item, Missed, Provisioner, Query, Source, SourceId, not_its_item};
use crate::catalog::Offers;
use crate::supplier::open_archives::OpenArchives;
use crate::telemetry::Origin;
use longshore_core::failure::{Failure, FailureKind};
use longshore_modules::artifact::ModuleSet;

/// The configured registries.
pub(super) struct Registries;

impl Source for Registries {
    fn id(&self) -> SourceId {
        SourceId::Registry
    }

    fn query(&self) -> Option<Query> {
        Some(Query::Sets)
    }

    /// A set of exactly the wanted version is enough, with or without a tree, which no registry has.
    fn is_needed(&self, ask: &Ask<'_>) -> bool {
        let config = ask.inventory.config;
        let version = config.driver.version.as_deref();
        let has_set = |version| ask.inventory.has_set(version, ask.kernel, ask.catalog);
        !config.registries.is_empty() && !version.is_some_and(has_set)
    }

    /// Asked once: a plan and its acquisitions rely on the same answers.
    fn offers<'a>(&'a self, ask: &'a Ask<'_>) -> Boxed<'a, Result<Offers, Failure>> {
        Box::pin(async move {
            let (inventory, sources) = (ask.inventory, &ask.inventory.sources);
            let prebuilt = sources.prebuilt()?;
            let query = async || {
                let offers = prebuilt.ask_registries(ask.kernel, ask.store).await?;
                for one in &offers.failures {
                    inventory.telemetry.source_failed(SourceId::Registry, &one.failure);
                }
                Ok::<_, Failure>(offers)
            };
            sources.registries.get_or_try_init(query).await.cloned()
        })
    }

    fn acquire<'a>(
        &'a self,
        item: &'a Item,
        of: &'a Provisioner<'_>,
    ) -> Boxed<'a, Result<Option<ModuleSet>, Missed>> {
        Box::pin(async move {
            let Item::Set(place) = item else { return Err(not_its_item(item).into()) };
            let configured = of.config().registries.iter();
            // The same reference may be configured again, with other mirrors.
            let registries = configured.filter(|one| one.reference.to_string() == place.at);
            let sources = &of.inventory.sources;
            let (prebuilt, store) = (sources.prebuilt()?, of.store()?);
            let progress = sources.progress();
            let mut away = not_its_item(item);
            for registry in registries {
                match prebuilt.pull(registry, &place.digest, &store, progress).await {
                    Ok(set) => {
                        of.telemetry.origin(Origin::Pulled);
                        return Ok(Some(set));
                    }
                    Err(failure) if failure.kind() == FailureKind::Download => away = failure,
                    Err(failure) => return Err(of.missed_set(place, failure)),
                }
            }
            Err(of.missed_set(place, away))
        })
    }
}
