//! Sets that a registry is to have, whichever kernel this host runs: for `longshore builder`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Provisioner;
use super::once::{is_met_by, request_of};
use super::publication::Publication;
use crate::catalog;
use crate::config::{ATTESTED, PublishConfig};
use crate::plan::BuildSet;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::Described;
use longshore_modules::module_signing::Signer;
use longshore_modules::registry::call::is_of_content;
use longshore_modules::registry::set_index::IndexSummary;
use longshore_modules::registry::{Judge, Registry, SetsFound};
use longshore_modules::signature::Trust;
use longshore_modules::signature::set_index::SetIndex;
use longshore_modules::signature::statement::PredicateType;
use longshore_sources::driver::AvailableDriver;

/// Number of sets that are not listed and are named in the log.
const MOST_NAMED: usize = 10;

/// Reason that a set was not made.
#[derive(Debug)]
pub(crate) enum NotMade {
    /// The registry could not be asked, or took nothing.
    Registry(Failure),
    /// The set could not be compiled, or signed for the kernel; or the registry refuses exactly this one.
    Build(Failure),
}

impl NotMade {
    /// Sorts a failure of the registry: one of its contents, of what was sent, or of this configuration, is no outage.
    fn of_registry(failure: Failure) -> Self {
        match failure.kind() {
            FailureKind::Download if !is_of_content(&failure) => Self::Registry(failure),
            _ => Self::Build(failure),
        }
    }
}

/// The registry that compiled sets are pushed to, and what a set in it has to have.
pub(crate) struct ForRegistry<'p> {
    publication: Publication<'p>,
    trust: Trust,
    /// Signer of the modules for the kernel, where configured.
    signer: Option<Signer>,
}

impl<'p> ForRegistry<'p> {
    /// Reads the keys.
    ///
    /// # Errors
    /// Exit code 2 where a key or the certificate cannot be read.
    pub(crate) fn new(
        provisioner: &'p Provisioner<'p>,
        publish: &'p PublishConfig,
    ) -> Result<Self, Failure> {
        provisioner.signing.check()?;
        let publication = Publication::new(provisioner, publish)?;
        let trust = trust(&publication)?;
        Ok(Self { publication, trust, signer: catalog::signer(provisioner.config())? })
    }

    /// Returns the driver of this version or branch, the newest without one, as the sources have it now.
    ///
    /// # Errors
    /// Exit code 12 where no source has it.
    pub(crate) async fn driver(
        &self,
        version: Option<&str>,
        flavour: Flavour,
    ) -> Result<AvailableDriver, Failure> {
        let provisioner = self.publication.provisioner;
        let store = provisioner.store()?;
        provisioner.inventory.sources.driver_in_store(version, Some(flavour), &store).await
    }

    /// Searches the registry for the set of `build`; returns the digest of its manifest. A set counts with a signature
    /// by this key and, where configured, with the attestations, and signed for the kernel. One that is denied is not
    /// made anew: nodes refuse it, and its tag keeps others away.
    ///
    /// # Errors
    /// The registry's failure, or that the set is denied.
    pub(crate) async fn look(&self, build: &BuildSet) -> Result<Option<String>, NotMade> {
        let registry = self.publication.open().map_err(NotMade::of_registry)?;
        let judge = Counts { of: self, registry: &registry, build };
        let found = registry.find(request_of(build), &judge).await;
        served(found, registry.name())
    }

    /// Compiles the set of `build` and pushes it, signed and attested as configured; returns the digest of its manifest.
    /// One that is in the store already, with the record of its compile, is pushed as it is.
    ///
    /// # Errors
    /// The failure of the build, which includes unsigned headers that may not be used, and a set that is denied; or the
    /// registry's.
    pub(crate) async fn make(&self, build: &BuildSet) -> Result<String, NotMade> {
        let set = self.compile(build).await.map_err(NotMade::Build)?;
        let digest = Described::from_set(&set).map_err(NotMade::Build)?.digest();
        if self.trust.check_denied(&digest).is_err() {
            return Err(NotMade::Build(made_denied(&digest)));
        }
        self.publication.push(&set).await.map_err(NotMade::of_registry)
    }

    /// Returns the manifests of the registry's sets that the builder's key signed; none without a key.
    ///
    /// # Errors
    /// The registry's failure.
    pub(crate) async fn signed_sets(&self) -> Result<BTreeSet<String>, NotMade> {
        let Some(key) = &self.publication.key else { return Ok(BTreeSet::new()) };
        let registry = self.publication.open().map_err(NotMade::of_registry)?;
        let found = registry.sets_signed_by(&[key.public()]).await.map_err(NotMade::of_registry)?;
        for (tag, why) in found.others.iter().take(MOST_NAMED) {
            tracing::info!("{}:{tag} is not listed: {why}", registry.name());
        }
        Ok(found.signed)
    }

    /// Returns the index of the registry, if the builder's key signed it. It may have expired, or be an older one.
    ///
    /// # Errors
    /// The registry's failure.
    pub(crate) async fn index(&self) -> Result<Option<SetIndex>, NotMade> {
        let Some(key) = &self.publication.key else { return Ok(None) };
        let registry = self.publication.open().map_err(NotMade::of_registry)?;
        let there = match registry.index().await {
            Ok(there) => there,
            // The write replaces what is damaged, and refuses to replace something else.
            Err(failure) if failure.kind() == FailureKind::Verification => None,
            Err(failure) => return Err(NotMade::of_registry(failure)),
        };
        let trust = Trust::in_keys([key.public()]);
        let verified = there.and_then(|signed| signed.verify(trust.keys()).ok());
        Ok(verified.map(|(index, _)| index))
    }

    /// Writes the index of the registry, signed by the builder's key.
    ///
    /// # Errors
    /// The registry's failure, or that there is no key.
    pub(crate) async fn write_index(
        &self,
        sets: BTreeSet<String>,
        lasts: Duration,
    ) -> Result<IndexSummary, NotMade> {
        let key = self.publication.key.as_ref();
        let key = key.ok_or_else(|| Failure::new(FailureKind::Bug, "an index without a key"));
        let key = key.map_err(NotMade::Build)?;
        let registry = self.publication.open().map_err(NotMade::of_registry)?;
        registry.put_index(key, sets, lasts).await.map_err(NotMade::of_registry)
    }

    async fn compile(&self, build: &BuildSet) -> Result<ModuleSet, Failure> {
        self.publication.provisioner.ready_to_build().await?;
        if let Some(place) = self.publication.unsigned_headers(build).await {
            let cause = format!(
                "the headers of kernel {} are from {place}, unsigned, and every node would load modules \
                 compiled with them",
                build.kernel_release
            );
            return Err(Failure::new(FailureKind::Toolchain, cause).remedy(
                "add an archive with the headers of that kernel, or allow such sets to be published \
                 (publish-unsigned-headers)",
            ));
        }
        self.publication.compile(build).await.map_err(|failed| failed.failure)
    }

    async fn counts(&self, registry: &Registry, described: &Described) -> Result<(), String> {
        if let Some(signer) = &self.signer
            && !signer.signed(described.set.key.signed_by.as_ref())
        {
            return Err(format!("its modules are not signed for the kernel by {signer}"));
        }
        if !self.trust.required {
            return Ok(());
        }
        let evidence = registry.evidence(described, &self.trust).await;
        let evidence = evidence.map_err(|failure| failure.one_line())?;
        evidence.meets(&described.set, &self.trust).map(drop).map_err(|why| why.to_string())
    }
}

/// Reason that a set of the registry is not the wanted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotServed {
    /// The configuration takes it back.
    Denied,
    /// It is another one, or does not count; the reason is in the log.
    Other,
}

/// Returns the digest of the set that a search in the registry found; None where it is to be made.
///
/// # Errors
/// The registry's failure, or that the only such set is denied.
fn served(found: SetsFound<NotServed>, registry: &str) -> Result<Option<String>, NotMade> {
    let denied = found.refused.iter().find(|(_, why)| *why == NotServed::Denied);
    let denied = denied.map(|(set, _)| found_denied(set, registry));
    let taken = found.into_taken().map_err(NotMade::of_registry)?;
    match (taken.first(), denied) {
        (Some(set), _) => Ok(Some(set.digest())),
        (None, Some(failure)) => Err(NotMade::Build(failure)),
        (None, None) => Ok(None),
    }
}

fn found_denied(set: &Described, registry: &str) -> Failure {
    let (digest, tag) = (set.digest(), set.set.key.tag());
    let cause = format!("{registry}:{tag}: the set {digest} is denied (denied-sets)");
    Failure::new(FailureKind::Verification, cause).remedy(format!(
        "remove its tag {tag} from the registry, and the set from the builder's store; if it is to be loaded again, remove \
         its digest from denied-sets"
    ))
}

fn made_denied(digest: &str) -> Failure {
    let cause = format!("the set {digest} is denied (denied-sets), and is not pushed");
    Failure::new(FailureKind::Verification, cause).remedy(
        "remove it from the builder's store; where a compile gives the same set again, build another driver version, \
         or remove its digest from denied-sets",
    )
}

/// Returns the key of the publication as the one that signs, the attestations that it makes, and the denied sets.
fn trust(publication: &Publication<'_>) -> Result<Trust, Failure> {
    let denied = publication.provisioner.config().signatures.denied.clone();
    let Some(key) = &publication.key else { return Ok(Trust::default().denying(denied)) };
    let made = ATTESTED.iter().filter(|_| publication.publish.attest);
    let attestations = made.map(|name| name.parse()).collect::<Result<Vec<PredicateType>, _>>();
    let attestations = attestations.or_fail(FailureKind::Bug, || "naming the attestations")?;
    Ok(Trust::in_keys([key.public()]).requiring(attestations).denying(denied))
}

/// Criteria for a set of the registry.
struct Counts<'a> {
    of: &'a ForRegistry<'a>,
    registry: &'a Registry,
    build: &'a BuildSet,
}

impl Judge for Counts<'_> {
    type Why = NotServed;

    async fn judge(&self, set: &Described) -> Result<(), NotServed> {
        if !is_met_by(self.build, &set.set, self.of.publication.provisioner.config()) {
            return Err(NotServed::Other);
        }
        self.of.trust.check_denied(&set.digest()).map_err(|_| NotServed::Denied)?;
        self.of.counts(self.registry, set).await.map_err(|why| {
            tracing::info!("{} in the registry is made anew: {why}", set.digest());
            NotServed::Other
        })
    }
}

impl Provisioner<'_> {
    /// Releases the store, and removes what exceeds its size limit; a failure is a warning.
    pub(crate) async fn tidy(&self) {
        self.inventory.store.release();
        if let Err(failure) = self.inventory.collect().await {
            tracing::warn!("nothing was removed from the store: {}", failure.one_line());
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use longshore_modules::registry::call::ContentRefused;
    use longshore_modules::signature::key::SecretKey;

    const REGISTRY: &str = "registry.example.com/nvidia/modules";

    fn set(version: &str) -> Described {
        let mut set = longshore_modules::testing::set();
        set.key.driver_version = version.into();
        Described::from_set(&set).expect("describes")
    }

    fn outage() -> Option<Failure> {
        Some(Failure::new(FailureKind::Download, "no answer"))
    }

    /// Sets of a search, and its outcome: the version of the set that is there, none, or a failure.
    #[rstest]
    #[case::nothing(&[], &[], None, Ok(None))]
    #[case::there(&["1.1"], &[], None, Ok(Some("1.1")))]
    #[case::another(&[], &[("1.1", NotServed::Other)], None, Ok(None))]
    #[case::denied(&[], &[("1.1", NotServed::Denied)], None, Err("denied"))]
    #[case::denied_beside_another(
        &[],
        &[("1.2", NotServed::Other), ("1.1", NotServed::Denied)],
        None,
        Err("denied")
    )]
    #[case::denied_and_there(&["1.2"], &[("1.1", NotServed::Denied)], None, Ok(Some("1.2")))]
    #[case::denied_in_an_outage(&[], &[("1.1", NotServed::Denied)], outage(), Err("denied"))]
    #[case::outage(&[], &[], outage(), Err("outage"))]
    fn a_denied_set_is_neither_served_nor_made_anew(
        #[case] taken: &[&str],
        #[case] refused: &[(&str, NotServed)],
        #[case] failed: Option<Failure>,
        #[case] wanted: Result<Option<&str>, &str>,
    ) {
        let found = SetsFound {
            taken: taken.iter().map(|version| set(version)).collect(),
            refused: refused.iter().map(|(version, why)| (set(version), *why)).collect(),
            unlisted: Vec::new(),
            failed,
        };
        match (served(found, REGISTRY), wanted) {
            (Ok(found), Ok(wanted)) => {
                assert_eq!(found, wanted.map(|version| set(version).digest()));
            }
            (Err(NotMade::Build(failure)), Err("denied")) => {
                let (digest, tag) = (set("1.1").digest(), set("1.1").set.key.tag());
                let said = failure.one_line();
                assert!(said.contains(&format!("{digest} is denied (denied-sets)")), "{said}");
                let remedy = failure.remedy_text().expect("a remedy");
                assert!(remedy.starts_with(&format!("remove its tag {tag} ")), "{remedy}");
            }
            (Err(NotMade::Registry(_)), Err("outage")) => {}
            (found, wanted) => panic!("{found:?} in place of {wanted:?}"),
        }
    }

    /// With a key and without one.
    #[rstest]
    #[case(true)]
    #[case(false)]
    fn the_denied_sets_of_the_configuration_are_those_of_the_registry(#[case] signs: bool) {
        let scene = crate::supplier::test_scene::Scene::new("bookworm-t4");
        let (mut config, digest) = (scene.config, set("1.1").digest());
        config.signatures.denied = BTreeSet::from([digest.clone()]);
        let publish = PublishConfig {
            reference: REGISTRY.parse().expect("a repository"),
            sign_key: None,
            attest: false,
            lease: Duration::ZERO,
            wait: Duration::ZERO,
            unsigned_headers: false,
        };
        let provisioner = Provisioner::new(&config);
        let key = signs.then(SecretKey::generate);
        let publication = Publication { provisioner: &provisioner, publish: &publish, key };
        let trust = trust(&publication).expect("reads");
        assert_eq!(trust.required, signs);
        trust.check_denied(&digest).expect_err("denied");
        trust.check_denied(&set("1.2").digest()).expect("not denied");
    }

    #[rstest]
    #[case::away(Failure::new(FailureKind::Download, "a"), true)]
    #[case::refused(Failure::new(FailureKind::Download, "a").with_source(ContentRefused), false)]
    #[case::damaged(Failure::new(FailureKind::Verification, "a"), false)]
    #[case::configured(Failure::new(FailureKind::Usage, "a"), false)]
    fn a_failure_for_one_set_is_no_outage(#[case] failure: Failure, #[case] is_outage: bool) {
        assert_eq!(matches!(NotMade::of_registry(failure), NotMade::Registry(_)), is_outage);
    }
}
