//! Finished modules of packages: fetched, linked where they come as objects, made a set of, and compared with the
//! kernel before the set is recorded.

use std::path::Path;

use super::{Boxed, Item, Missed, Provisioner, Source, SourceId, not_its_item};
use crate::catalog::{self, SetPlace};
use crate::config::Config;
use crate::plan;
use crate::supplier::fits::Host;
use crate::supplier::host_facts::{read_host, with_kernel};
use crate::supplier::missed::{LeftOut, missed};
use crate::supplier::open_archives::OpenArchives;
use crate::telemetry::Origin;
use longshore_build::linking::Linking;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::sets::SetStore;
use longshore_sources::finished::{self, FinishedModules, LinkedFrom};

/// Packages of archives with finished modules. The archives offer them.
pub(super) struct Packages;

impl Source for Packages {
    fn id(&self) -> SourceId {
        SourceId::Package
    }

    fn acquire<'a>(
        &'a self,
        item: &'a Item,
        of: &'a Provisioner<'_>,
    ) -> Boxed<'a, Result<Option<ModuleSet>, Missed>> {
        Box::pin(async move {
            let Item::Package(finished) = item else { return Err(not_its_item(item).into()) };
            of.read_package(finished).await.map(Some)
        })
    }
}

impl Provisioner<'_> {
    /// Fetches a package and makes a set of its modules. A package that is what its archive lists,
    /// and does not fit this host, is followed by the next source.
    async fn read_package(&self, of: &FinishedModules) -> Result<ModuleSet, Missed> {
        let (store, sources) = (self.store()?, &self.inventory.sources);
        let place = SetPlace::from(of);
        let archive = sources.archive(&store).await?;
        let fetched = archive.fetch(&of.packages(), &store, sources.progress()).await;
        fetched.map_err(|failure| missed(&place, failure))?;
        let linked = match &of.linked {
            None => None,
            Some(from) => Some(self.link(of, from, archive, &store).await?),
        };
        let (config, of) = (self.config().clone(), of.clone());
        let read = move || set_of(&config, &of, linked, &store);
        let set = tokio::task::spawn_blocking(read).await;
        let set = set.or_fail(FailureKind::Bug, || "reading a package's modules")?;
        let set = set.map_err(|failure| unusable(&place, failure))?;
        tracing::info!("the modules are those of {place}");
        if set.key.kernel_build().is_none() {
            let release = &set.key.kernel_release;
            tracing::info!(
                "the build of {release} is not known: its symbols are compared before a load"
            );
        }
        // From now on the store's set counts, be it used or not.
        self.inventory.exclude(place);
        self.telemetry.origin(Origin::Packaged);
        Ok(set)
    }

    /// Links a package's modules with the linker of their release.
    async fn link(
        &self,
        of: &FinishedModules,
        from: &LinkedFrom,
        archive: &Archive,
        store: &Store,
    ) -> Result<ModuleSet, Missed> {
        let (config, progress) = (self.config(), self.inventory.sources.progress());
        let (helper, user) = (Path::new("/proc/self/exe"), config.build_user);
        let linking = Linking { of, from, helper, user, limit: config.deadlines.build };
        let place = SetPlace::from(of);
        let root = linking.root(archive, store, progress).await;
        let root = root.map_err(|failure| missed(&place, failure))?;
        let linked = linking.link(&root, store, progress).await;
        linked.map_err(|failure| unusable(&place, failure))
    }
}

/// Classifies a failure to use the modules in `place`.
fn unusable(place: &SetPlace, failure: Failure) -> Missed {
    match failure.kind() {
        FailureKind::Verification => Missed::Part(LeftOut::Set(place.clone()), failure),
        _ => Missed::Failed(failure),
    }
}

/// Returns the set of a package in the store, recorded there; `linked` is that of modules that were linked.
fn set_of(
    config: &Config,
    of: &FinishedModules,
    linked: Option<ModuleSet>,
    store: &Store,
) -> Result<ModuleSet, Failure> {
    let set = linked.map_or_else(|| finished::read(of, store), Ok)?;
    let facts = with_kernel(read_host(config)?, &config.paths, &of.kernel.release);
    let signer = catalog::signer(config)?;
    let fit = Host { config, facts: &facts }.fit(&set, store);
    if let Some(why) = plan::unfit(&set, of, &fit, (config, &facts, signer.as_ref())) {
        let cause = format!("{} cannot be used: {why}", of.describe());
        return Err(Failure::new(FailureKind::Verification, cause).remedy(
            "boot the kernel's build that the package is for, or leave such packages out \
             (module-packages = false)",
        ));
    }
    store.put_set(&set)?;
    Ok(set)
}

#[cfg(test)]
mod tests;
