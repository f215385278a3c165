//! Index of a repository's sets: reading and writing it, and the requirement that a set is listed in it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;

use super::content::{FoundEvidence, described, evidence_in, find_small_blob};
use super::listing::set_tags;
use super::manifests::{manifest, overwrite_manifest};
use super::push::ensure_blob;
use super::session::Session;
use super::{Described, Registry};
use crate::artifact::image::{Manifest, digest};
use crate::sets::index_versions::IndexVersions;
use crate::signature::Trust;
use crate::signature::index_minimums::IndexMinimums;
use crate::signature::key::{PublicKey, SecretKey};
use crate::signature::set_index::{
    INDEX_TAG, LowestVersions, NotListed, SET_INDEX_TYPE, SetIndex, SignedIndex, envelope_in,
};
use crate::signature::trust::TrustedKey;
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// Number of sets whose signatures are read at a time.
const PARALLEL: usize = 8;

/// Requirement that a set of a registry is listed in a current index of the repository that it comes from.
#[derive(Debug, Clone)]
pub struct IndexRule {
    keys: Vec<TrustedKey>,
    minimum: Option<u64>,
    minimum_file: Option<PathBuf>,
    seen: IndexVersions,
}

impl IndexRule {
    /// Requires an index by a key of `trust` with that role, of the version `minimum` at least, and of none below the
    /// highest one that `seen` has of the registry.
    pub fn new(trust: &Trust, minimum: Option<u64>, seen: IndexVersions) -> Self {
        Self { keys: trust.keys().to_vec(), minimum, minimum_file: None, seen }
    }

    /// Requires the version in this file ([`IndexMinimums`]), too, as it is when an index is judged.
    #[must_use]
    pub fn with_minimum_file(self, minimum_file: Option<PathBuf>) -> Self {
        Self { minimum_file, ..self }
    }

    /// Returns the lowest versions of a registry's index that count now.
    ///
    /// # Errors
    /// Exit code 2 where the file of minimums cannot be used, 15 where the versions that were seen cannot be read: then
    /// no index counts.
    fn lowest(&self, registry: &str) -> Result<LowestVersions, Failure> {
        let published = self.minimum_file.as_deref().map(IndexMinimums::read).transpose()?;
        Ok(LowestVersions {
            seen: self.seen.highest(registry)?,
            minimum: self.minimum,
            published: published.and_then(|minimums| minimums.minimum(registry)),
        })
    }

    /// Judges an index of a place of `registry`, and remembers its version. An expired one is remembered, too: one
    /// before it that is valid for longer was replaced all the same.
    ///
    /// # Errors
    /// Exit code 15 where the versions that were seen cannot be read, or a new one cannot be kept.
    fn judge(
        &self,
        registry: &str,
        signed: &SignedIndex,
        lowest: LowestVersions,
        now: Timestamp,
    ) -> Result<Result<SetIndex, NotListed>, Failure> {
        let index = match signed.verify(&self.keys) {
            Ok((index, _)) => index,
            Err(why) => return Ok(Err(why)),
        };
        if let Err(why) = index.check_version(now, lowest) {
            return Ok(Err(why));
        }
        // Another process may have seen a later one meanwhile.
        let seen = Some(self.seen.remember(registry, index.version)?);
        let counts = index.check_version(now, LowestVersions { seen, ..lowest });
        Ok(counts.and_then(|()| index.check_expiry(now)).map(|()| index))
    }
}

/// Index that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexSummary {
    /// Seconds since 1970 of its issue, greater than that of the one before.
    pub version: u64,
    /// Version of the index in whose place it was written, if the same key signed that one.
    pub replaced: Option<u64>,
    /// Time of its expiry.
    pub expires: Timestamp,
    /// Number of sets.
    pub sets: usize,
    /// `sha256:...` of its manifest.
    pub digest: String,
}

/// Sets of a repository, by the signatures that they have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignedSets {
    /// Manifests (`sha256:...`) of those that one of the keys signed.
    pub signed: BTreeSet<String>,
    /// Tags of the others, with the reason.
    pub others: Vec<(String, String)>,
}

impl Registry {
    /// Counts sets only if an index lists them by this rule.
    #[must_use]
    pub fn requiring_index(self, rule: IndexRule) -> Self {
        Self { index_rule: Some(rule), ..self }
    }

    /// Returns the index of the repository itself, not verified; None where it has none.
    ///
    /// # Errors
    /// Exit code 12 where the repository cannot be asked, 13 where something else is in its place.
    pub async fn index(&self) -> Result<Option<SignedIndex>, Failure> {
        let session = self.only()?;
        match index_in(session).await? {
            Ok(index) => Ok(Some(index)),
            Err(NotListed::Missing) => Ok(None),
            Err(why) => Err(why.refusal(&session.repository.to_string())),
        }
    }

    /// Writes an index that lists `sets` (`sha256:...`), signed with `key`, and valid for `lasts` from now, in the
    /// place of the one that is there. Its version is greater than that of an index there by the same key.
    /// Registries have no write that depends on the state before: of two at the same moment one is lost.
    ///
    /// # Errors
    /// Exit code 2 for sets that cannot be listed, 12 where the registry refuses it, 13 where its tag has something
    /// else.
    pub async fn put_index(
        &self,
        key: &SecretKey,
        sets: BTreeSet<String>,
        lasts: Duration,
    ) -> Result<IndexSummary, Failure> {
        let session = self.only()?;
        let now = Timestamp::from_second(Timestamp::now().as_second())
            .or_fail(FailureKind::Bug, || "reading the clock")?;
        let what = || format!("making an index of {}", session.repository);
        let expires = now.checked_add(lasts).or_fail(FailureKind::Usage, what)?;
        let replaced = version_there(session, key).await?;
        let version = SetIndex::next_version(now, replaced);
        let index = SetIndex { version, issued: now, expires, sets };
        let signed = SignedIndex::sign(&index, key)?;
        let (manifest, blobs) = signed.image()?;
        for blob in blobs {
            ensure_blob(session, blob).await?;
        }
        overwrite_manifest(session, INDEX_TAG, &manifest).await?;
        let (sets, digest) = (index.sets.len(), digest(&manifest));
        Ok(IndexSummary { version, replaced, expires, sets, digest })
    }

    /// Returns the sets of the repository itself, for all kernels, that one of `keys` signed. Sets under tags of
    /// another form than `DRIVER-FLAVOUR-RELEASE-ARCH` are not searched: no host takes them.
    ///
    /// # Errors
    /// Exit code 12 where the repository cannot be read, 13 where it has more sets than an index lists.
    pub async fn sets_signed_by(&self, keys: &[PublicKey]) -> Result<SignedSets, Failure> {
        let session = self.only()?;
        let tags = set_tags(session).await?;
        let judged = stream::iter(tags).map(|tag| async move {
            let judged = signed_at(session, &tag, keys).await?;
            Ok::<_, Failure>((tag, judged))
        });
        let mut judged = judged.buffered(PARALLEL);
        let mut found = SignedSets::default();
        while let Some((tag, judged)) = judged.try_next().await? {
            match judged {
                Ok(digest) => drop(found.signed.insert(digest)),
                Err(why) => found.others.push((tag, why)),
            }
        }
        Ok(found)
    }

    /// Checks that an index of the first repository that has one which counts lists the manifest `digest`, where that
    /// is required.
    ///
    /// # Errors
    /// Exit code 12 where no repository can be asked, 13 where none lists it.
    pub async fn check_listed(&self, digest: &str) -> Result<(), Failure> {
        if self.index_rule.is_none() {
            return Ok(());
        }
        let (mut failed, mut unlisted) = (None, None);
        for session in &self.sessions {
            match self.index_at(session).await {
                Ok(judged) => match judged.and_then(|index| index.check_listed(digest)) {
                    Ok(()) => return Ok(()),
                    Err(why) => unlisted = Some(why),
                },
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        // A set counts as not listed only if every repository answered.
        Err(match (failed, unlisted) {
            (Some(failure), _) => failure,
            (None, Some(why)) => why.refusal(&format!("{}@{digest}", self.name())),
            (None, None) => super::nobody(self.name()),
        })
    }

    /// Returns those of a repository's sets that its index lists, and the others with the reason; all of them where no
    /// index is required.
    pub(super) async fn listed(
        &self,
        session: &Session,
        sets: Vec<Described>,
    ) -> Result<(Vec<Described>, Vec<(Described, NotListed)>), Failure> {
        if self.index_rule.is_none() || sets.is_empty() {
            return Ok((sets, Vec::new()));
        }
        let index = self.index_at(session).await?;
        let (mut listed, mut others) = (Vec::new(), Vec::new());
        for set in sets {
            let index = index.as_ref().map_err(Clone::clone);
            match index.and_then(|index| index.check_listed(&set.digest())) {
                Ok(()) => listed.push(set),
                Err(why) => others.push((set, why)),
            }
        }
        if let Some((_, why)) = others.first() {
            let count = others.len();
            tracing::warn!("{}: {count} sets do not count: {why}", session.repository);
        }
        Ok((listed, others))
    }

    /// Returns the index of one repository, judged by the rule. What was seen is kept by the registry's own name: a
    /// mirror is not to show what the registry has replaced.
    async fn index_at(&self, session: &Session) -> Result<Result<SetIndex, NotListed>, Failure> {
        let Some(rule) = &self.index_rule else { return Ok(Err(NotListed::Missing)) };
        let signed = index_in(session).await?;
        let registry = self.only()?.repository.name();
        let lowest = rule.lowest(&registry)?;
        match signed {
            Ok(signed) => rule.judge(&registry, &signed, lowest, Timestamp::now()),
            Err(why) => Ok(Err(why)),
        }
    }
}

/// Fetches the index of a repository, not verified.
async fn index_in(session: &Session) -> Result<Result<SignedIndex, NotListed>, Failure> {
    let unreadable = |failure: Failure| match failure.kind() {
        FailureKind::Verification => Ok(NotListed::Unreadable(failure.one_line())),
        _ => Err(failure),
    };
    let manifest = match manifest(session, INDEX_TAG).await {
        Ok(Some(manifest)) => manifest,
        Ok(None) => return Ok(Err(NotListed::Missing)),
        Err(failure) => return unreadable(failure).map(Err),
    };
    let envelope = match envelope_in(&manifest) {
        Ok(envelope) => envelope,
        Err(why) => return Ok(Err(why)),
    };
    match find_small_blob(session, &envelope).await {
        Ok(Some(bytes)) => Ok(SignedIndex::from_bytes(bytes)),
        Ok(None) => Ok(Err(NotListed::Unreadable("its envelope is missing".into()))),
        Err(failure) => unreadable(failure).map(Err),
    }
}

/// Returns the version of the index that is there, if this key signed it.
///
/// # Errors
/// Exit code 12 where the repository cannot be asked, 13 where the tag has something else.
async fn version_there(session: &Session, key: &SecretKey) -> Result<Option<u64>, Failure> {
    let there = manifest(session, INDEX_TAG).await?;
    let Some(there) = there else { return Ok(None) };
    let parsed = serde_json::from_slice::<Manifest>(&there).ok();
    if parsed.and_then(|there| there.artifact_type).as_deref() != Some(SET_INDEX_TYPE) {
        let cause = format!("the tag {INDEX_TAG} of {} has no index", session.repository);
        return Err(Failure::new(FailureKind::Verification, cause).remedy("remove that tag"));
    }
    let trust = Trust::in_keys([key.public()]);
    let verified = index_in(session).await?.and_then(|signed| signed.verify(trust.keys()));
    let verified = verified.inspect_err(|why| {
        tracing::warn!("{}: an index that is there is replaced: {why}", session.repository);
    });
    Ok(verified.ok().map(|(index, _)| index.version))
}

/// Returns the digest of the set under a tag, if one of `keys` signed it; else the reason. A set whose manifests, config
/// or signatures are absent or damaged is not signed: a registry's cleanup may have removed them, and the other sets
/// are listed all the same.
///
/// # Errors
/// Exit code 12 where the repository cannot be asked.
async fn signed_at(
    session: &Session,
    tag: &str,
    keys: &[PublicKey],
) -> Result<Result<String, String>, Failure> {
    let set = match described(session, tag).await {
        Ok(Some(set)) => set,
        Ok(None) => return Ok(Err("it is gone".into())),
        Err(failure) if failure.kind() == FailureKind::Verification => {
            return Ok(Err(failure.one_line()));
        }
        Err(failure) => return Err(failure),
    };
    let trust = Trust::in_keys(keys.iter().cloned());
    let FoundEvidence { evidence, lost, .. } = match evidence_in(session, &set, &trust).await {
        Ok(found) => found,
        Err(failure) if failure.kind() == FailureKind::Verification => {
            return Ok(Err(failure.one_line()));
        }
        Err(failure) => return Err(failure),
    };
    let verified = evidence.verify(&set.set, keys);
    Ok(verified.map(|_| set.digest()).map_err(|why| match lost {
        Some(payload) => format!(
            "the repository lost the payload {payload} of a signature; of the others: {why}"
        ),
        None => why.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::artifact::image::MANIFEST_TYPE;
    use crate::registry::stand_in::StandIn;
    use crate::signature::{Signature, signature_tag};
    use crate::testing;

    /// A repository with two sets that the key signed.
    struct Scene {
        registry: StandIn,
        key: SecretKey,
        sets: [Described; 2],
    }

    /// Part of the first set.
    #[derive(Debug, Clone, Copy)]
    enum Part {
        Payload,
        Signatures,
        Config,
        /// Manifest that an index under the set's tag names.
        OfIndex,
    }

    impl Scene {
        async fn new() -> Self {
            let (registry, key) = (StandIn::start(), SecretKey::generate());
            let sets = ["535.261.03", "550.163.01"].map(|version| {
                let mut set = testing::set();
                set.key.driver_version = version.into();
                let set = Described::from_set(&set).expect("describes");
                registry.put_blob(&set.config);
                registry.put_manifest(&set.set.key.tag(), &set.manifest);
                set
            });
            let scene = Self { registry, key, sets };
            for set in &scene.sets {
                let signed = scene.registry.open().sign(&set.digest(), &scene.key).await;
                assert!(signed.expect("signs"));
            }
            scene
        }

        /// Returns the path of a part of the first set.
        fn path(&self, part: Part) -> String {
            let set = &self.sets[0];
            match part {
                Part::Payload => {
                    let name = self.registry.open().only().expect("one").repository.name();
                    let signature = Signature::make(&self.key, &name, &set.digest());
                    let payload = signature.expect("signs").payload;
                    format!("blobs/{}", digest(payload.as_bytes()))
                }
                Part::Signatures => format!("manifests/{}", signature_tag(&set.digest())),
                Part::Config => format!("blobs/{}", digest(&set.config)),
                Part::OfIndex => {
                    let architecture = match std::env::consts::ARCH {
                        "x86_64" => "amd64",
                        "aarch64" => "arm64",
                        other => other,
                    };
                    let platform = json!({ "architecture": architecture, "os": "linux" });
                    let entry = json!({ "mediaType": MANIFEST_TYPE, "digest": set.digest(),
                                        "size": set.manifest.len(), "platform": platform });
                    let index = json!({ "schemaVersion": 2, "manifests": [entry],
                                        "mediaType": "application/vnd.oci.image.index.v1+json" });
                    let index = index.to_string().into_bytes();
                    self.registry.put_manifest(&set.set.key.tag(), &index);
                    self.registry.put_manifest(&set.digest(), &set.manifest)
                }
            }
        }

        async fn signed(&self) -> Result<SignedSets, Failure> {
            self.registry.open().sets_signed_by(&[self.key.public()]).await
        }
    }

    /// A registry's cleanup removed a part of one set: the other one is listed all the same.
    #[rstest]
    #[case::payload(Part::Payload, "lost the payload sha256:")]
    #[case::signatures(Part::Signatures, "no signature")]
    #[case::config(Part::Config, "has lost its config")]
    #[case::of_index(Part::OfIndex, "has lost its sha256:")]
    #[tokio::test]
    async fn a_set_that_lost_a_part_counts_as_not_signed_and_no_other_does(
        #[case] part: Part,
        #[case] why: &str,
    ) {
        let scene = Scene::new().await;
        let path = scene.path(part);
        let all: BTreeSet<String> = scene.sets.iter().map(Described::digest).collect();
        let both = scene.signed().await.expect("reads");
        assert_eq!((both.signed, both.others), (all, Vec::new()), "before");
        scene.registry.remove(&path);
        let found = scene.signed().await.expect("reads");
        assert_eq!(found.signed, BTreeSet::from([scene.sets[1].digest()]));
        let [(tag, reason)] = &found.others[..] else { panic!("{:?}", found.others) };
        assert_eq!(*tag, scene.sets[0].set.key.tag());
        assert!(reason.contains(why), "{reason}");
    }

    /// A part that is not absent, but cannot be asked for.
    #[rstest]
    #[case(Part::Payload)]
    #[case(Part::Signatures)]
    #[case(Part::Config)]
    #[case(Part::OfIndex)]
    #[tokio::test]
    async fn a_registry_that_cannot_be_asked_ends_the_search(#[case] part: Part) {
        let scene = Scene::new().await;
        scene.registry.refuse(&scene.path(part));
        let failure = scene.signed().await.expect_err("aborts");
        assert_eq!(failure.kind(), FailureKind::Download, "{}", failure.report());
    }

    #[tokio::test]
    async fn a_lost_payload_of_another_signature_leaves_a_set_signed() {
        let scene = Scene::new().await;
        let digest_of_set = scene.sets[0].digest();
        let other =
            Signature::make(&SecretKey::generate(), "another.example.com/a", &digest_of_set)
                .expect("signs");
        let added = scene.registry.open().add_signature(&digest_of_set, &other).await;
        assert!(added.expect("adds"));
        scene.registry.remove(&format!("blobs/{}", digest(other.payload.as_bytes())));
        let found = scene.signed().await.expect("reads");
        assert_eq!((found.signed.len(), found.others), (2, Vec::new()));
    }
}
