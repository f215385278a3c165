//! Signed index of a repository's sets: the digests of those that are current, with a version and an expiry.
//!
//! A signature stays true when a set is outdated. Whoever decides what a registry or a mirror shows can show old sets
//! alone; an index that expires, and whose versions only rise, bounds for how long
//! (the role that "timestamp" and "snapshot" have in The Update Framework, theupdateframework.github.io/specification).

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::dsse::{ENVELOPE_TYPE, Envelope};
use super::foreign::{is_json_text, place_of, shortened};
use super::key::SecretKey;
use super::trust::{Role, TrustedKey};
use crate::artifact::image::{Descriptor, Manifest, hex_of, json};
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// Tag of the index in its repository.
pub const INDEX_TAG: &str = "longshore-index";
/// `artifactType` of its manifest, and `payloadType` of its envelope.
pub const SET_INDEX_TYPE: &str = "application/vnd.longshore.index.v1+json";
/// Media type of the manifest's config, which is empty (OCI image specification 1.1, "empty descriptor").
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
/// Bytes of that config.
const EMPTY: &[u8] = b"{}";
/// Maximum size of the envelope. One with the most sets has 2 MB.
pub const MAX_INDEX: u64 = 4 << 20;
/// Maximum number of sets in an index.
pub const MOST_SETS: usize = 20_000;
/// Version of the payload's format.
const FORMAT: u32 = 1;
/// Difference of clocks that is allowed.
pub const SKEW: Duration = Duration::from_secs(300);

/// An index whose signature was verified, or that is to be signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetIndex {
    /// Seconds since 1970 of its issue; each index of a repository has a greater one than that before it.
    pub version: u64,
    /// Time of its issue.
    pub issued: Timestamp,
    /// Time from which it does not count any more.
    pub expires: Timestamp,
    /// Manifests (`sha256:...`) of the current sets.
    pub sets: BTreeSet<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {
    format: u32,
    version: u64,
    issued: Timestamp,
    expires: Timestamp,
    sets: Vec<String>,
}

/// The format alone: that of a later longshore has other fields.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Lowest versions of an index that count, by their source; the highest of them holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LowestVersions {
    /// Highest version that the store has seen.
    pub seen: Option<u64>,
    /// `index-minimum`.
    pub minimum: Option<u64>,
    /// Version in `index-minimum-file`.
    pub published: Option<u64>,
}

/// Reason why a set does not count by the index of a repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotListed {
    /// There is no index.
    #[error("the repository has no index (tag {INDEX_TAG})")]
    Missing,
    /// It cannot be read.
    #[error("the repository's index cannot be read: {0}")]
    Unreadable(String),
    /// No key with the role signed it.
    #[error("the repository's index is not signed by a key with the role index: {0}")]
    Untrusted(String),
    /// It is issued later than now.
    #[error("the repository's index is of {0:.0}, which is in the future")]
    Future(Timestamp),
    /// A later one was there before.
    #[error("the repository's index has the version {version}, and this store has seen {seen}")]
    Older {
        /// Version of the index.
        version: u64,
        /// Highest version that was seen.
        seen: u64,
    },
    /// The configuration wants a later one.
    #[error("the repository's index has the version {version}, and index-minimum is {minimum}")]
    BelowMinimum {
        /// Version of the index.
        version: u64,
        /// `index-minimum`.
        minimum: u64,
    },
    /// The cluster's builder has published a later one.
    #[error(
        "the repository's index has the version {version}, and index-minimum-file has {published}"
    )]
    BelowPublished {
        /// Version of the index.
        version: u64,
        /// Version in `index-minimum-file`.
        published: u64,
    },
    /// It does not count any more.
    #[error("the repository's index {version} has expired since {since:.0}")]
    Expired {
        /// Version of the index.
        version: u64,
        /// Time of its expiry.
        since: Timestamp,
    },
    /// It counts, and does not list the set.
    #[error("the repository's index {0} does not list it")]
    Unlisted(u64),
}

impl NotListed {
    /// Returns the failure for a set of `place` that does not count.
    pub fn refusal(&self, place: &str) -> Failure {
        Failure::new(FailureKind::Verification, format!("the index for {place}: {self}")).remedy(
            "make a new index (`longshore index REPOSITORY --sign-key`) with a key that has the role index (trust), \
             drop a mirror that is outdated, or do not require one (require-index)",
        )
    }
}

impl SetIndex {
    /// Checks the bounds of an index.
    ///
    /// # Errors
    /// A text that describes the fault.
    fn check(payload: Payload) -> Result<Self, String> {
        let Payload { version, issued, expires, sets, .. } = payload;
        if sets.len() > MOST_SETS {
            return Err(format!("it lists more than {MOST_SETS} sets"));
        }
        if expires <= issued {
            return Err("it expires before it is issued".into());
        }
        let mut unique = BTreeSet::new();
        for set in sets {
            if hex_of(&set).is_none() {
                return Err(format!("it lists {:?}, which is no sha256 digest", shortened(&set)));
            }
            if let Some(twice) = unique.replace(set) {
                return Err(format!("it lists {twice} twice"));
            }
        }
        Ok(Self { version, issued, expires, sets: unique })
    }

    /// Parses the payload of an envelope: JSON with `format`, `version`, `issued`, `expires` and `sets`.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn parse(payload: &[u8]) -> Result<Self, String> {
        let unreadable = |e: serde_json::Error| format!("its payload is damaged: {}", place_of(&e));
        let Format { format } = serde_json::from_slice(payload).map_err(unreadable)?;
        if format != FORMAT {
            return Err(format!("its format is {format}, and {FORMAT} is known"));
        }
        Self::check(serde_json::from_slice(payload).map_err(unreadable)?)
    }

    /// Checks that the index is no older than each of the `lowest` versions, and not of the future.
    ///
    /// # Errors
    /// The reason why it does not count.
    pub fn check_version(&self, now: Timestamp, lowest: LowestVersions) -> Result<(), NotListed> {
        let version = self.version;
        let latest = now.checked_add(SKEW).unwrap_or(Timestamp::MAX);
        // A version of the future, once remembered, would shut out all that follow.
        if self.issued > latest || version > seconds(latest) {
            return Err(NotListed::Future(self.issued));
        }
        let LowestVersions { seen, minimum, published } = lowest;
        match (seen, minimum, published) {
            (Some(seen), ..) if version < seen => Err(NotListed::Older { version, seen }),
            (_, Some(minimum), _) if version < minimum => {
                Err(NotListed::BelowMinimum { version, minimum })
            }
            (.., Some(published)) if version < published => {
                Err(NotListed::BelowPublished { version, published })
            }
            _ => Ok(()),
        }
    }

    /// Checks that the index has not expired.
    ///
    /// # Errors
    /// If it has.
    pub fn check_expiry(&self, now: Timestamp) -> Result<(), NotListed> {
        match now < self.expires {
            true => Ok(()),
            false => Err(NotListed::Expired { version: self.version, since: self.expires }),
        }
    }

    /// Checks that the index lists the manifest with this digest (`sha256:...`).
    ///
    /// # Errors
    /// If it does not.
    pub fn check_listed(&self, digest: &str) -> Result<(), NotListed> {
        match self.sets.contains(digest) {
            true => Ok(()),
            false => Err(NotListed::Unlisted(self.version)),
        }
    }

    /// Returns the version of an index that is issued `now` in the place of one with the version `before`. One of the
    /// future counts for nobody, and is not continued.
    pub(crate) fn next_version(now: Timestamp, before: Option<u64>) -> u64 {
        let latest = now.checked_add(SKEW).unwrap_or(Timestamp::MAX);
        let before = before.filter(|before| *before < seconds(latest));
        before.map_or(0, |before| before.saturating_add(1)).max(seconds(now))
    }
}

fn seconds(time: Timestamp) -> u64 {
    time.as_second().try_into().unwrap_or(0)
}

/// A signed index: the text of its envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedIndex(String);

impl SignedIndex {
    /// Signs an index.
    ///
    /// # Errors
    /// Exit code 2 for more than 20,000 sets, another digest than of sha256, and an expiry that is past.
    pub fn sign(index: &SetIndex, key: &SecretKey) -> Result<Self, Failure> {
        let what = || "making an index of sets";
        let payload = || Payload {
            format: FORMAT,
            version: index.version,
            issued: index.issued,
            expires: index.expires,
            sets: index.sets.iter().cloned().collect(),
        };
        SetIndex::check(payload()).or_fail(FailureKind::Usage, what).map_err(|failure| {
            failure.remedy("list sets by their digests (sha256:...), 20,000 at most; keep others in another repository")
        })?;
        let envelope = Envelope::sign_as(SET_INDEX_TYPE, &json(&payload())?, key);
        Ok(Self(envelope.to_json()?))
    }

    /// Takes the bytes of an envelope from elsewhere.
    ///
    /// # Errors
    /// If they are no text as JSON is, or more than 4 MiB.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, NotListed> {
        if bytes.len() as u64 > MAX_INDEX {
            return Err(NotListed::Unreadable(format!("it has more than {MAX_INDEX} bytes")));
        }
        let text = String::from_utf8(bytes).ok().filter(|text| is_json_text(text));
        text.map(Self).ok_or_else(|| NotListed::Unreadable("its envelope is not text".into()))
    }

    /// Returns the bytes of the envelope.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Verifies that a key with the role index signed it; returns the index and the key's name. The signature is
    /// verified first: an unsigned payload is not parsed.
    ///
    /// # Errors
    /// The reason why it does not count.
    pub fn verify(&self, keys: &[TrustedKey]) -> Result<(SetIndex, String), NotListed> {
        let envelope = Envelope::parse_as(SET_INDEX_TYPE, &self.0, MAX_INDEX);
        let envelope = envelope.map_err(NotListed::Unreadable)?;
        let (payload, by) = envelope.verify(keys).map_err(NotListed::Untrusted)?;
        let Some(key) = by.iter().find(|key| key.has(&Role::Index)) else {
            let names = by.iter().map(|key| key.name()).collect::<Vec<_>>().join(" and ");
            return Err(NotListed::Untrusted(format!("it is by {names}, which has not that role")));
        };
        let index = SetIndex::parse(&payload).map_err(NotListed::Unreadable)?;
        Ok((index, key.name().to_owned()))
    }

    /// Returns its manifest, and the blobs that the manifest names.
    ///
    /// # Errors
    /// Exit code 70; it can always be serialized.
    pub(crate) fn image(&self) -> Result<(Vec<u8>, [&[u8]; 2]), Failure> {
        let config = Descriptor::for_bytes(EMPTY_TYPE, EMPTY);
        let layers = vec![Descriptor::for_bytes(ENVELOPE_TYPE, self.as_bytes())];
        let manifest = Manifest::new(Some(SET_INDEX_TYPE), config, layers);
        Ok((json(&manifest)?, [EMPTY, self.as_bytes()]))
    }
}

/// Returns the descriptor of the envelope in an index's manifest.
///
/// # Errors
/// If the manifest is of another artifact, or its envelope is too large.
pub(crate) fn envelope_in(manifest: &[u8]) -> Result<Descriptor, NotListed> {
    let unreadable = |why: &str| NotListed::Unreadable(why.to_owned());
    let parsed: Manifest =
        serde_json::from_slice(manifest).map_err(|_| unreadable("its manifest is damaged"))?;
    if parsed.artifact_type.as_deref() != Some(SET_INDEX_TYPE) {
        return Err(unreadable("its tag has another artifact"));
    }
    let [envelope] = &parsed.layers[..] else {
        return Err(unreadable("its manifest has not one layer"));
    };
    if envelope.media_type != ENVELOPE_TYPE {
        return Err(unreadable("its layer is no envelope"));
    }
    match envelope.size <= MAX_INDEX {
        true => Ok(envelope.clone()),
        false => Err(unreadable(&format!("it has more than {MAX_INDEX} bytes"))),
    }
}

#[cfg(test)]
mod tests;
