//! The configured build root, with headers and compiler.

use super::{Ask, Boxed, Query, Source, SourceId};
use crate::catalog::Offers;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::kernel_id::KernelId;
use longshore_host::facts::Probe;
use longshore_sources::headers;

/// The configured build root. Its headers take the place of those of the archives.
pub(super) struct ConfiguredRoot;

impl Source for ConfiguredRoot {
    fn id(&self) -> SourceId {
        SourceId::BuildRoot
    }

    fn query(&self) -> Option<Query> {
        Some(Query::Archives)
    }

    fn is_needed(&self, ask: &Ask<'_>) -> bool {
        !ask.is_answered() && ask.inventory.config.may_compile()
    }

    /// # Errors
    /// Exit code 2 where it is a path with nothing, and nothing else suffices.
    fn offers<'a>(&'a self, ask: &'a Ask<'_>) -> Boxed<'a, Result<Offers, Failure>> {
        Box::pin(async move {
            let KernelId { release, version, .. } = ask.kernel.id();
            let wanted = headers::Wanted { release, version };
            let found = match ask.inventory.sources.build_root().await {
                Ok(root) => root.map(|root| Probe::Read(root.available(wanted, ask.store))),
                Err(failure) if failure.kind() == FailureKind::Usage && !ask.has_some() => {
                    return Err(failure);
                }
                Err(failure) => Some(Probe::Unreadable(failure.one_line())),
            };
            Ok(Offers { headers: found, ..Offers::default() })
        })
    }
}
