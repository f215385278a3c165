//! Trusted keys with their roles, and the requirements of a signature and of attestations.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::NotSigned;
use super::key::PublicKey;
use super::statement::PredicateType;
use longshore_core::failure::Failure;
use longshore_core::value::{AbsolutePath, BadValue, Uri};

/// Kind of statement that counts by a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, derive_more::Display)]
#[serde(try_from = "String")]
pub enum Role {
    /// Signatures of sets of modules.
    #[display("modules")]
    Modules,
    /// Indexes of a repository's sets.
    #[display("index")]
    Index,
    /// Support tables.
    #[display("support-table")]
    SupportTable,
    /// Attestations of one type.
    Attestation(PredicateType),
}

impl FromStr for Role {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let mut named = [Self::Modules, Self::Index, Self::SupportTable].into_iter();
        if let Some(role) = named.find(|role| role.to_string() == text) {
            return Ok(role);
        }
        let wanted = "modules, index, support-table, provenance, spdx, test-result or the URI of a predicate's type";
        text.parse().map(Self::Attestation).map_err(|_| BadValue::new(text, wanted))
    }
}

longshore_core::from_string!(Role);

/// Key file of a configuration, with its roles.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Table")]
pub struct TrustEntry {
    /// File with a public key in cosign's format.
    pub key: PathBuf,
    /// Statements that count by it.
    pub roles: Vec<Role>,
    /// `builder.id` that its provenance has to name; None for any.
    pub builder_id: Option<Uri>,
}

/// An entry as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Table {
    key: AbsolutePath,
    roles: Vec<Role>,
    builder_id: Option<Uri>,
}

impl TryFrom<Table> for TrustEntry {
    type Error = BadValue;

    fn try_from(Table { key, roles, builder_id }: Table) -> Result<Self, BadValue> {
        Self::new(key, roles, builder_id)
    }
}

impl TrustEntry {
    fn new(key: AbsolutePath, roles: Vec<Role>, builder_id: Option<Uri>) -> Result<Self, BadValue> {
        let key = key.as_path().to_path_buf();
        let provenance = Role::Attestation(PredicateType::named(PredicateType::PROVENANCE));
        if roles.is_empty() {
            return Err(BadValue::new(&key.display().to_string(), "a key with a role"));
        }
        match &builder_id {
            Some(builder) if !roles.contains(&provenance) => Err(BadValue::new(
                builder.as_str(),
                "of use: a builder-id is compared with provenance, and the key has not that role",
            )),
            _ => Ok(Self { key, roles, builder_id }),
        }
    }

    /// Parses `ROLE[+ROLE...]=FILE`, or `ROLE[+ROLE...]=FILE=BUILDER-ID`, with an absolute path.
    ///
    /// # Errors
    /// The part that is not valid.
    pub fn strict(text: &str) -> Result<Self, BadValue> {
        Self::parse(text, AbsolutePath::strict)
    }

    fn parse(
        text: &str,
        path: fn(&str) -> Result<AbsolutePath, BadValue>,
    ) -> Result<Self, BadValue> {
        let wanted = "ROLE[+ROLE...]=FILE, such as test-result=/keys/qa.pub";
        let (roles, rest) = text.split_once('=').ok_or_else(|| BadValue::new(text, wanted))?;
        let (file, builder) = match rest.split_once('=') {
            Some((file, builder)) => (file, Some(builder.parse::<Uri>()?)),
            None => (rest, None),
        };
        let roles: Vec<Role> = roles.split('+').map(str::parse).collect::<Result<_, BadValue>>()?;
        Self::new(path(file)?, roles, builder)
    }
}

impl FromStr for TrustEntry {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        Self::parse(text, AbsolutePath::from_str)
    }
}

/// A key, and the statements that count by it.
#[derive(Debug, Clone)]
pub struct TrustedKey {
    key: PublicKey,
    /// None for all.
    roles: Option<Vec<Role>>,
    builder: Option<Uri>,
}

impl TrustedKey {
    /// True if statements of this kind count by it.
    pub fn has(&self, role: &Role) -> bool {
        self.roles.as_ref().is_none_or(|roles| roles.contains(role))
    }

    /// Returns the file of the key.
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// Returns the builder that its provenance has to name.
    pub(super) fn builder(&self) -> Option<&Uri> {
        self.builder.as_ref()
    }
}

impl AsRef<PublicKey> for TrustedKey {
    fn as_ref(&self) -> &PublicKey {
        &self.key
    }
}

/// Trusted keys with their roles, and the requirements of a signature and of attestations.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// True to refuse a set without a signature by one of the keys.
    pub required: bool,
    /// Keys with their roles; a key may be there several times.
    keys: Vec<TrustedKey>,
    /// Types of the attestations by one of the keys that a set has to have, too.
    pub attestations: Vec<PredicateType>,
    /// Age above which an attestation does not count, by the time that it states; None for any.
    pub attestation_max_age: Option<Duration>,
    /// Manifests (`sha256:...`) that are refused whatever signs them.
    pub denied: BTreeSet<String>,
}

impl Trust {
    /// Requires signatures by one of these keys, each of which has every role.
    pub fn in_keys(keys: impl IntoIterator<Item = PublicKey>) -> Self {
        let all = |key| TrustedKey { key, roles: None, builder: None };
        let keys = keys.into_iter().map(all).collect();
        Self { required: true, keys, ..Self::default() }
    }

    /// Reads the keys: those of `keys`, the short form, and those of `entries`. The short form has every role where
    /// there are no entries, and signs modules alone where there are.
    ///
    /// # Errors
    /// Exit code 2 where one cannot be read.
    pub fn read(required: bool, keys: &[PathBuf], entries: &[TrustEntry]) -> Result<Self, Failure> {
        let roles = (!entries.is_empty()).then(|| vec![Role::Modules]);
        let short = keys.iter().map(|path| (path, roles.clone(), None));
        let long = entries
            .iter()
            .map(|entry| (&entry.key, Some(entry.roles.clone()), entry.builder_id.clone()));
        let read = |(path, roles, builder): (&PathBuf, _, _)| {
            Ok(TrustedKey { key: PublicKey::read(path)?, roles, builder })
        };
        let keys = short.chain(long).map(read).collect::<Result<_, Failure>>()?;
        Ok(Self { required, keys, ..Self::default() })
    }

    /// Requires a signature, where a set of modules counts by this key, too.
    #[must_use]
    pub fn requiring_or_by(mut self, key: PublicKey) -> Self {
        self.keys.push(TrustedKey { key, roles: Some(vec![Role::Modules]), builder: None });
        Self { required: true, ..self }
    }

    /// Requires attestations of these types, too.
    #[must_use]
    pub fn requiring(self, attestations: Vec<PredicateType>) -> Self {
        Self { attestations, ..self }
    }

    /// Counts attestations only if the time that they state is within this age.
    #[must_use]
    pub fn within_age(self, attestation_max_age: Option<Duration>) -> Self {
        Self { attestation_max_age, ..self }
    }

    /// Refuses the manifests with these digests (`sha256:...`), whatever signs them.
    #[must_use]
    pub fn denying(self, denied: BTreeSet<String>) -> Self {
        Self { denied, ..self }
    }

    /// Checks that a manifest is not denied.
    ///
    /// # Errors
    /// If it is.
    pub fn check_denied(&self, digest: &str) -> Result<(), NotSigned> {
        match self.denied.contains(digest) {
            true => Err(NotSigned::Denied(digest.to_owned())),
            false => Ok(()),
        }
    }

    /// Returns the keys with their roles.
    pub fn keys(&self) -> &[TrustedKey] {
        &self.keys
    }

    /// Returns the keys with a role.
    pub fn keys_for(&self, role: &Role) -> Vec<PublicKey> {
        self.keys.iter().filter(|key| key.has(role)).map(|key| key.key.clone()).collect()
    }

    /// True if a statement of this kind counts by this key; one of provenance, where it names this builder.
    pub fn counts(&self, key: &PublicKey, role: &Role, builder: &Uri) -> bool {
        let own = self.keys.iter().filter(|one| one.key.fingerprint() == key.fingerprint());
        let is_provenance = matches!(role, Role::Attestation(kind)
            if *kind == PredicateType::named(PredicateType::PROVENANCE));
        own.filter(|one| one.has(role)).any(|one| {
            !is_provenance || one.builder.as_ref().is_none_or(|wanted| wanted == builder)
        })
    }

    /// Returns the keys that sign sets of modules.
    pub fn module_keys(&self) -> Vec<PublicKey> {
        self.keys_for(&Role::Modules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::key::SecretKey;
    use rstest::rstest;

    #[rstest]
    #[case::one("test-result=/k.pub", 1, None)]
    #[case::index("index=/k.pub", 1, None)]
    #[case::many("modules+provenance+spdx=/k.pub", 3, None)]
    #[case::builder(
        "provenance=/k.pub=https://example.com/b?c=d",
        1,
        Some("https://example.com/b?c=d")
    )]
    #[case::uri("https://example.com/type=/k.pub", 1, None)]
    fn entries(#[case] text: &str, #[case] roles: usize, #[case] builder: Option<&str>) {
        let entry = TrustEntry::strict(text).expect("parses");
        assert_eq!((entry.roles.len(), entry.key.to_str()), (roles, Some("/k.pub")));
        assert_eq!(entry.builder_id.as_ref().map(Uri::as_str), builder);
    }

    #[rstest]
    #[case::no_role("=/k.pub", "is not modules, index, support-table, provenance")]
    #[case::no_key("modules", "ROLE[+ROLE...]=FILE")]
    #[case::other_role("sbom=/k.pub", "`sbom` is not modules, index, support-table, provenance")]
    #[case::relative("modules=k.pub", "an absolute path")]
    #[case::bad_builder("provenance=/k.pub=ci", "an absolute URI")]
    #[case::builder_of_no_provenance("modules=/k.pub=https://example.com/b", "has not that role")]
    fn wrong_entries(#[case] text: &str, #[case] said: &str) {
        let bad = TrustEntry::strict(text).expect_err("refused").to_string();
        assert!(bad.contains(said), "{bad}");
    }

    #[test]
    fn keys_of_the_short_form_sign_modules_alone_beside_entries() {
        let dir = tempfile::tempdir().expect("dir");
        let write = |name: &str| {
            let path = dir.path().join(name);
            let pem = SecretKey::generate().public_pem().expect("pem");
            std::fs::write(&path, pem).expect("writes");
            path
        };
        let (short, key) = (write("short.pub"), write("qa.pub"));
        let test_result = Role::Attestation(PredicateType::named(PredicateType::TEST_RESULT));
        let entry = TrustEntry { key, roles: vec![test_result.clone()], builder_id: None };
        let short = [short];
        let names = |entries: &[TrustEntry], role: &Role| {
            let trust = Trust::read(true, &short, entries).expect("reads");
            let keys = trust.keys_for(role);
            keys.iter()
                .map(|key| key.name().rsplit('/').next().map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let named = |name: &str| vec![Some(name.to_owned())];
        assert_eq!(names(&[], &test_result), named("short.pub"));
        assert_eq!(names(std::slice::from_ref(&entry), &test_result), named("qa.pub"));
        assert_eq!(names(&[], &Role::Index), named("short.pub"));
        assert_eq!(names(std::slice::from_ref(&entry), &Role::Index), Vec::new());
        assert_eq!(names(&[entry], &Role::Modules), named("short.pub"));
    }
}
