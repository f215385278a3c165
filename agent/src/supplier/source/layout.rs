//! Directories of prebuilt sets: OCI image layouts.

use super::{Boxed, Item, Missed, Provisioner, Source, SourceId, not_its_item};
use crate::telemetry::Origin;
use longshore_modules::artifact::ModuleSet;

/// The directories of prebuilt sets. `catalog::gather` lists them.
pub(super) struct Layouts;

impl Source for Layouts {
    fn id(&self) -> SourceId {
        SourceId::Layout
    }

    fn acquire<'a>(
        &'a self,
        item: &'a Item,
        of: &'a Provisioner<'_>,
    ) -> Boxed<'a, Result<Option<ModuleSet>, Missed>> {
        Box::pin(async move {
            let Item::Set(place) = item else { return Err(not_its_item(item).into()) };
            let mut configured = of.config().prebuilt.iter();
            let dir = configured.find(|dir| dir.display().to_string() == place.at);
            let Some(dir) = dir else { return Err(not_its_item(item).into()) };
            let (prebuilt, store) = (of.inventory.sources.prebuilt()?, of.store()?);
            let imported = prebuilt.import(dir, &place.digest, &store).await;
            let set = imported.map_err(|failure| of.missed_set(place, failure))?;
            of.telemetry.origin(Origin::Imported);
            Ok(Some(set))
        })
    }
}
