//! Question for the sets of registries while an agent waits for one.

use super::Prebuilt;
use longshore_core::store::Store;
use longshore_host::facts::Kernel;
use longshore_modules::artifact::image::Described;

impl Prebuilt<'_> {
    /// Returns the digests of the manifests of the registries' sets for `kernel` that count. A registry that cannot be
    /// asked has none: it is asked again.
    pub(crate) async fn offered(&self, kernel: &Kernel, store: &Store) -> Vec<String> {
        let mut offered = Vec::new();
        for source in &self.config.registries {
            let registry = match self.open(source, store) {
                Ok(registry) => registry,
                Err(failure) => {
                    tracing::debug!("{}", failure.one_line());
                    continue;
                }
            };
            let found = self.find(&registry, kernel).await;
            if let Some(failure) = found.failed {
                tracing::debug!("{}: {}", source.reference, failure.one_line());
            }
            offered.extend(found.taken.iter().map(Described::digest));
        }
        offered.sort();
        offered
    }
}
