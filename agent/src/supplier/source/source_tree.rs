//! Configured trees of NVIDIA's open kernel modules: each version and its digest is known from the configuration.

use super::{Ask, Boxed, Item, Missed, Provisioner, Query, Source, SourceId, not_its_item};
use crate::catalog::Offers;
use longshore_core::failure::Failure;
use longshore_modules::artifact::ModuleSet;

/// The configured trees.
pub(super) struct ConfiguredTrees;

impl Source for ConfiguredTrees {
    fn id(&self) -> SourceId {
        SourceId::SourceTrees
    }

    fn query(&self) -> Option<Query> {
        Some(Query::Files)
    }

    fn is_needed(&self, ask: &Ask<'_>) -> bool {
        !ask.inventory.config.source_trees.is_empty()
    }

    fn offers<'a>(&'a self, ask: &'a Ask<'_>) -> Boxed<'a, Result<Offers, Failure>> {
        Box::pin(async move {
            let source_trees = ask.inventory.config.source_trees.clone();
            Ok(Offers { source_trees, ..Offers::default() })
        })
    }

    fn acquire<'a>(
        &'a self,
        item: &'a Item,
        of: &'a Provisioner<'_>,
    ) -> Boxed<'a, Result<Option<ModuleSet>, Missed>> {
        Box::pin(async move {
            let Item::SourceTree(tree) = item else { return Err(not_its_item(item).into()) };
            let store = of.store()?;
            of.inventory.sources.fetch_tree(tree, &store).await.inspect_err(|failure| {
                of.telemetry.source_failed(self.id(), failure);
            })?;
            Ok(None)
        })
    }
}
