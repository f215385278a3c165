//! Signing of sets for the kernel, as configured.

use std::time::Duration;

use crate::catalog::Catalog;
use crate::config::{Config, ModuleSigning, SignBy};
use crate::plan::BuildSet;
use longshore_build::sign::{self, SignFile};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_modules::artifact::{ModuleKey, ModuleSet};
use longshore_modules::module_signing::{Certificate, Signer};
use longshore_modules::sets::SetStore;
use longshore_modules::signed_sets;
use longshore_modules::signed_sets::detached::Pile;

/// Signing configuration of sets; may be absent.
pub(super) struct Signing<'a> {
    config: Option<&'a ModuleSigning>,
    /// Time limit of sign-file.
    limit: Duration,
}

impl<'a> Signing<'a> {
    pub(super) fn new(config: &'a Config) -> Self {
        Self { config: config.module_signing.as_ref(), limit: config.deadlines.build }
    }

    /// Checks that key, certificate and signatures are readable, before anything is compiled.
    ///
    /// # Errors
    /// Exit code 2 where one is not.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.config {
            None => Ok(()),
            Some(ModuleSigning { by: SignBy::Key(key), certificate, hash }) => {
                SignFile::new(key, certificate, *hash).map(drop)
            }
            Some(ModuleSigning { by: SignBy::Detached(dir), certificate, .. }) => {
                Certificate::read(certificate)?;
                Pile::read(dir).map(drop)
            }
        }
    }

    /// Checks that the archives have the program that signs with the key, before minutes of compiling. The store's
    /// set of the same kernel and driver may be signed already.
    ///
    /// # Errors
    /// Exit code 11 where they do not; 2 where the certificate cannot be read.
    pub(super) fn check_archive(
        &self,
        build: &BuildSet,
        archive: &Archive,
        store: &Store,
    ) -> Result<(), Failure> {
        let Some(signing) = self.config.filter(|signing| signing.key().is_some()) else {
            return Ok(());
        };
        let signer = Signer::from_certificate(&Certificate::read(&signing.certificate)?, false);
        let is_same = |key: &ModuleKey| {
            key.kernel_release == build.kernel_release
                && key.driver_version == build.driver_version
                && key.flavour == build.flavour
        };
        let mut sets = store.sets()?.into_iter().map(|set| set.key);
        if sets.any(|key| is_same(&key) && signer.signed(key.signed_by.as_ref())) {
            return Ok(());
        }
        sign::check_archive(archive, &build.kernel_release, build.kernel_version.as_deref())
    }

    /// True if a set with this key can be loaded without anything from the archives, the source of
    /// sign-file.
    pub(super) fn suffices(&self, key: &ModuleKey, catalog: &Catalog) -> bool {
        let makes_signatures = self.config.is_some_and(|signing| signing.key().is_some());
        !makes_signatures || key.signed_by.is_some() || self.has_signed(key, catalog)
    }

    fn has_signed(&self, key: &ModuleKey, catalog: &Catalog) -> bool {
        catalog.signer.as_ref().is_some_and(|signer| {
            let keys = catalog.sets.iter().map(|available| &available.set.key);
            keys.filter(|other| signer.signed(other.signed_by.as_ref()))
                .any(|other| other.unsigned() == *key)
        })
    }

    /// Signs `set`, where configured and not done yet.
    ///
    /// # Errors
    /// As [`SignFile::sign`] with a key, and as [`Pile::sign`] with signatures made elsewhere.
    pub(super) async fn sign<'s, F>(
        &self,
        set: ModuleSet,
        store: &Store,
        progress: &dyn Progress,
        archive: impl FnOnce() -> F,
    ) -> Result<ModuleSet, Failure>
    where
        F: Future<Output = Result<&'s Archive, Failure>>,
    {
        let Some(signing) = self.config.filter(|_| set.key.signed_by.is_none()) else {
            return Ok(set);
        };
        match &signing.by {
            SignBy::Key(key) => {
                let read = SignFile::new(key, &signing.certificate, signing.hash)?;
                let sign_file = SignFile { limit: self.limit, ..read };
                let certificate = &sign_file.certificate;
                let there = signed_sets::stored(&set, certificate, signing.hash, store)?;
                if let Some(signed) = there {
                    return Ok(signed);
                }
                sign_file.sign(&set, archive().await?, store, progress).await
            }
            SignBy::Detached(dir) => {
                let certificate = Certificate::read(&signing.certificate)?;
                let (dir, store) = (dir.clone(), store.clone());
                let (wanted, hash) = (set.key.file_stem(), signing.hash);
                let sign = move || match signed_sets::stored(&set, &certificate, hash, &store)? {
                    Some(signed) => Ok(signed),
                    None => Pile::read(&dir)?.sign(&set, &certificate, &store),
                };
                tokio::task::spawn_blocking(sign)
                    .await
                    .or_fail(FailureKind::Bug, || format!("signing the set {wanted}"))?
            }
        }
    }
}
