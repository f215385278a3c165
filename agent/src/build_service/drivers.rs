//! Drivers of the sources, each looked up once in a round.

use std::collections::BTreeMap;

use longshore_core::failure::Failure;
use longshore_core::flavour::Flavour;
use longshore_sources::driver::AvailableDriver;

use super::queue::Work;
use crate::supplier::ForRegistry;

/// Result of each lookup, by the wished driver and its flavour.
#[derive(Debug, Default)]
pub(super) struct Drivers(BTreeMap<(Option<String>, Flavour), Result<AvailableDriver, Failure>>);

impl Drivers {
    /// Returns the driver of a set in this flavour.
    ///
    /// # Errors
    /// That of the lookup, which is not repeated.
    pub(super) async fn driver(
        &mut self,
        registry: &ForRegistry<'_>,
        work: &Work,
        flavour: Flavour,
    ) -> Result<AvailableDriver, Failure> {
        let key = (work.driver.clone(), flavour);
        if let Some(known) = self.0.get(&key) {
            return known.clone();
        }
        let found = registry.driver(work.driver.as_deref(), flavour).await;
        self.0.insert(key, found.clone());
        found
    }
}
