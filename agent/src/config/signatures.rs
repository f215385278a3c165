//! Trusted signature keys, their roles, and the requirements of modules.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::Fragment;
use super::freshness::LongSpan;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::value::AbsolutePath;
use longshore_modules::signature::index_minimums::IndexMinimums;
use longshore_modules::signature::statement::PredicateType;
use longshore_modules::signature::{Role, Trust, TrustEntry};

/// Trusted signature keys, and whether a signature is required.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignatureConfig {
    /// True if only modules signed by one of the keys are loaded.
    pub required: bool,
    /// Files with public keys in cosign's format, the short form: see [`Trust::read`].
    pub keys: Vec<PathBuf>,
    /// Keys with their roles.
    pub entries: Vec<TrustEntry>,
    /// Types of the attestations by one of the keys that modules need, too.
    pub attestations: Vec<PredicateType>,
    /// Age above which a required attestation does not count; None for any.
    pub attestation_max_age: Option<Duration>,
    /// Manifests (`sha256:...`) of sets that are refused whatever signs them.
    pub denied: BTreeSet<String>,
    /// True if sets of registries count only if a signed index lists them.
    pub index_required: bool,
    /// Lowest version of such an index.
    pub index_minimum: Option<u64>,
    /// File with the lowest versions of registries' indexes: see [`IndexMinimums`].
    pub index_minimum_file: Option<PathBuf>,
}

impl SignatureConfig {
    /// Keys are meant to be enforced: only an explicit `false` permits unsigned modules beside them. Keys whose role is the
    /// support table say nothing of modules; those for indexes or attestations alone do, and are refused by [`Self::check`].
    pub(super) fn with_defaults(all: &Fragment) -> Self {
        let keys = AbsolutePath::list(all.signature_keys.clone());
        let entries = all.trust.clone().unwrap_or_default();
        let denied = all.denied_sets.iter().flatten().map(|set| set.as_str().to_owned());
        let index_minimum_file = all.index_minimum_file.as_ref().map(AbsolutePath::as_path);
        let has_keys = !keys.is_empty() || entries.iter().any(is_for_sets);
        Self {
            required: all.require_signature.unwrap_or(has_keys),
            keys,
            entries,
            attestations: all.require_attestation.clone().unwrap_or_default(),
            attestation_max_age: all.attestation_max_age.map(LongSpan::duration),
            denied: denied.collect(),
            index_required: all.require_index.unwrap_or(false),
            index_minimum: all.index_minimum,
            index_minimum_file: index_minimum_file.map(Into::into),
        }
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// Exit code 2 where one cannot be read.
    pub fn trust(&self) -> Result<Trust, Failure> {
        let trust = Trust::read(self.required, &self.keys, &self.entries)?;
        let trust = trust.requiring(self.attestations.clone()).denying(self.denied.clone());
        Ok(trust.within_age(self.attestation_max_age))
    }

    /// Reads the lowest versions of indexes in `index-minimum-file`; none where it is not set, or absent.
    ///
    /// # Errors
    /// Exit code 2 where it cannot be used.
    pub fn published_minimums(&self) -> Result<IndexMinimums, Failure> {
        let read = self.index_minimum_file.as_deref().map(IndexMinimums::read);
        read.unwrap_or_else(|| Ok(IndexMinimums::default()))
    }

    /// True if a key is for sets of modules.
    fn has_keys(&self) -> bool {
        !self.keys.is_empty() || self.entries.iter().any(is_for_sets)
    }

    /// True if a key has this role; those of the short form have all of them where there are no entries.
    fn has(&self, role: &Role) -> bool {
        let short = !self.keys.is_empty() && (self.entries.is_empty() || *role == Role::Modules);
        short || self.entries.iter().any(|entry| entry.roles.contains(role))
    }

    /// Refuses a policy that cannot be met, and warns about keys without effect.
    ///
    /// # Errors
    /// Exit code 2.
    pub fn check(&self) -> Result<(), Failure> {
        if !self.attestations.is_empty() && !self.required {
            let cause = match self.has_keys() {
                false => "require-attestation is set, and no signature-keys are",
                true => "require-attestation is set, and require-signature is false",
            };
            return Err(Failure::new(FailureKind::Usage, cause).remedy(
                "name the public keys that attestations are signed with (signature-keys, trust), and \
                 let signatures be required",
            ));
        }
        if self.required && !self.has_keys() {
            let cause =
                "require-signature is set, and no signature-keys are: no module can be loaded";
            return Err(Failure::new(FailureKind::Usage, cause).remedy(
                "name the public keys (signature-keys, --signature-key, LONGSHORE_SIGNATURE_KEYS)",
            ));
        }
        self.check_index()?;
        let wanted = self.attestations.iter().cloned().map(Role::Attestation);
        let mut wanted = std::iter::once(Role::Modules).chain(wanted);
        match wanted.find(|role| self.required && !self.has(role)) {
            Some(role) => return Err(without_key(&role)),
            None => self.warn(),
        }
        Ok(())
    }

    /// Refuses an index that no key could sign, or beside sets that need no signature.
    fn check_index(&self) -> Result<(), Failure> {
        let cause = match () {
            () if !self.index_required => return Ok(()),
            () if !self.has(&Role::Index) => "require-index is set, and no key has the role index",
            () if !self.required => "require-index is set, and require-signature is false",
            () => return Ok(()),
        };
        Err(Failure::new(FailureKind::Usage, cause).remedy(
            "give a key that role (signature-keys alone have every role; [[trust]] key = \"/keys/cosign.pub\", roles = \
             [\"index\"]), and let signatures be required",
        ))
    }

    /// Warns about settings and keys without effect.
    fn warn(&self) {
        if !self.index_required && self.index_minimum.is_some() {
            tracing::warn!("index-minimum has no effect: require-index is not set");
        }
        if !self.index_required && self.index_minimum_file.is_some() {
            tracing::warn!("index-minimum-file has no effect: require-index is not set");
        }
        if self.attestations.is_empty() && self.attestation_max_age.is_some() {
            tracing::warn!("attestation-max-age has no effect: require-attestation is not set");
        }
        if !self.required && self.has_keys() {
            tracing::warn!(
                "require-signature is false though keys are set (signature-keys, trust): unsigned \
                 modules are loaded too"
            );
        }
        for role in self.entries.iter().flat_map(|entry| &entry.roles) {
            match role {
                Role::Attestation(kind) if !self.attestations.contains(kind) => tracing::warn!(
                    "trust names a key for {kind}, and require-attestation does not require it: sets \
                     without it are loaded too"
                ),
                _ => {}
            }
        }
    }
}

/// True if an entry has a role other than the support table.
fn is_for_sets(entry: &TrustEntry) -> bool {
    entry.roles.iter().any(|role| *role != Role::SupportTable)
}

fn without_key(role: &Role) -> Failure {
    let cause = match role {
        Role::Modules | Role::Index | Role::SupportTable => {
            format!("signatures are required, and no key of trust has the role {role}")
        }
        Role::Attestation(kind) => format!(
            "require-attestation names {kind}, and no key has that role: beside entries of trust, \
             signature-keys sign modules alone"
        ),
    };
    let short = match role {
        Role::Modules => ", or name it in signature-keys (--signature-key)",
        Role::Index | Role::SupportTable | Role::Attestation(_) => "",
    };
    Failure::new(FailureKind::Usage, cause).remedy(format!(
        "give a key that role: [[trust]] key = \"/keys/cosign.pub\", roles = [\"{role}\"]{short}"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::tests::load_with;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    #[rstest]
    #[case::of_tables_alone(&["--trust", "support-table=/k.pub"], Ok(false))]
    #[case::of_tables_and_modules(&["--trust", "support-table+modules=/k.pub"], Ok(true))]
    #[case::of_another_key(&["--trust", "support-table=/k.pub", "--trust", "modules=/m.pub"], Ok(true))]
    #[case::short_form(&["--trust", "support-table=/k.pub", "--signature-key", "/m.pub"], Ok(true))]
    #[case::modules_alone(&["--trust", "modules=/m.pub"], Ok(true))]
    #[case::explicitly(
        &["--trust", "support-table=/k.pub", "--require-signature"],
        Err("no module can be loaded")
    )]
    #[case::explicitly_not(&["--trust", "modules=/m.pub", "--require-signature=false"], Ok(false))]
    #[case::of_tables_and_indexes(
        &["--trust", "support-table=/k.pub", "--trust", "index=/i.pub"],
        Err("no key of trust has the role modules")
    )]
    #[case::attestations_of_tables(
        &["--trust", "support-table=/k.pub", "--require-attestation", "spdx"],
        Err("require-attestation is set, and no signature-keys are")
    )]
    fn keys_require_signatures_of_modules_unless_they_are_of_support_tables_alone(
        #[case] flags: &[&str],
        #[case] wanted: Result<bool, &str>,
    ) {
        match (load_with(flags, &[], None), wanted) {
            (Ok(config), Ok(required)) => assert_eq!(config.signatures.required, required),
            (Err(failure), Err(why)) => {
                assert_eq!(failure.code(), ExitCode::Usage);
                assert!(failure.to_string().contains(why), "{failure}");
            }
            (loaded, wanted) => panic!("{loaded:?}, and not {wanted:?}"),
        }
    }
}
