//! Sources that a plan's items come from: a file for each kind, and its row in [`ALL`]. The store and the directories
//! of prebuilt sets are read first of all, without a query (`catalog::gather`).

mod archive;
mod build_root;
mod finished;
mod layout;
mod registry;
mod run_file;
mod source_tree;

use std::future::Future;
use std::pin::Pin;

use super::Provisioner;
use super::inventory::Inventory;
use super::missed::Missed;
use crate::catalog::{Catalog, Item, Offers};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::source_id::SourceId;
use longshore_core::store::Store;
use longshore_host::facts::Kernel;
use longshore_modules::artifact::ModuleSet;

/// All kinds, in the order in which they are asked.
const ALL: [&dyn Source; 7] = [
    &layout::Layouts,
    &registry::Registries,
    &source_tree::ConfiguredTrees,
    &run_file::ConfiguredFiles,
    &archive::Archives,
    &finished::Packages,
    &build_root::ConfiguredRoot,
];

/// A future of a source.
pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Queries, one after the other: whether one is needed is decided by the answers of those before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Query {
    /// For built sets.
    Sets,
    /// For drivers in files.
    Files,
    /// For all else: drivers and headers in archives and build roots.
    Archives,
}

impl Query {
    /// All queries, in their order.
    pub(super) const ALL: [Query; 3] = [Query::Sets, Query::Files, Query::Archives];
}

/// Question to the sources, with the answers so far.
pub(super) struct Ask<'a> {
    pub(super) inventory: &'a Inventory<'a>,
    pub(super) kernel: &'a Kernel,
    pub(super) store: &'a Store,
    pub(super) catalog: &'a Catalog,
}

impl Ask<'_> {
    /// True if sets and trees of all versions that a plan may choose are available.
    fn is_answered(&self) -> bool {
        self.inventory.suffices(self.kernel, self.catalog)
    }

    /// True if set and tree of a suitable driver, of any matching version, are available.
    fn has_some(&self) -> bool {
        self.inventory.has_some(self.kernel, self.catalog)
    }
}

/// Kind of source.
pub(super) trait Source: Sync {
    /// Returns the kind.
    fn id(&self) -> SourceId;

    /// Returns the query that it is part of; None for a kind that is read without one.
    fn query(&self) -> Option<Query> {
        None
    }

    /// True if the answers so far leave something for it.
    fn is_needed(&self, _ask: &Ask<'_>) -> bool {
        false
    }

    /// Returns what it has for the kernel, with its own failure: a plan may do without it.
    ///
    /// # Errors
    /// Exit code 2 for a configuration that permits no question at all.
    fn offers<'a>(&'a self, _ask: &'a Ask<'_>) -> Boxed<'a, Result<Offers, Failure>> {
        Box::pin(async { Ok(Offers::default()) })
    }

    /// Brings an item of its own into the store; returns the set, where it is one.
    ///
    /// # Errors
    /// The reason, and the item, where a plan may do without it.
    fn acquire<'a>(
        &'a self,
        item: &'a Item,
        _of: &'a Provisioner<'_>,
    ) -> Boxed<'a, Result<Option<ModuleSet>, Missed>> {
        Box::pin(async { Err(not_its_item(item).into()) })
    }
}

/// Returns the sources of a query that the answers so far leave something for.
pub(super) fn needed(query: Query, ask: &Ask<'_>) -> Vec<&'static dyn Source> {
    let of_query = ALL.into_iter().filter(|source| source.query() == Some(query));
    of_query.filter(|source| source.is_needed(ask)).collect()
}

/// Brings an item into the store; returns the set, where it is one.
pub(super) async fn acquire(
    item: &Item,
    of: &Provisioner<'_>,
) -> Result<Option<ModuleSet>, Missed> {
    match ALL.into_iter().find(|source| source.id() == item.source()) {
        Some(source) => source.acquire(item, of).await,
        None => Err(not_its_item(item).into()),
    }
}

fn not_its_item(item: &Item) -> Failure {
    let source = item.source().as_str();
    Failure::new(FailureKind::Bug, format!("no item of {source} can be acquired in this form"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_but_the_store_and_the_publication_has_one_row() {
        for id in SourceId::ALL {
            let rows = ALL.iter().filter(|source| source.id() == *id).count();
            let wanted = usize::from(!matches!(id, SourceId::Store | SourceId::Publish));
            assert_eq!(rows, wanted, "{}", id.as_str());
        }
    }
}
