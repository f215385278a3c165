//! Trusted signature keys, their roles, and the requirements of modules.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::Fragment;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::value::AbsolutePath;
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
    /// Manifests (`sha256:...`) of sets that are refused whatever signs them.
    pub denied: BTreeSet<String>,
}

impl SignatureConfig {
    /// Keys are meant to be enforced: only an explicit `false` permits unsigned modules beside
    /// them.
    pub(super) fn with_defaults(all: &Fragment) -> Self {
        let keys = AbsolutePath::list(all.signature_keys.clone());
        let entries = all.trust.clone().unwrap_or_default();
        let attestations = all.require_attestation.clone().unwrap_or_default();
        let required = all.require_signature.unwrap_or(!keys.is_empty() || !entries.is_empty());
        let denied = all.denied_sets.iter().flatten().map(|set| set.as_str().to_owned()).collect();
        Self { required, keys, entries, attestations, denied }
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// Exit code 2 where one cannot be read.
    pub fn trust(&self) -> Result<Trust, Failure> {
        let trust = Trust::read(self.required, &self.keys, &self.entries)?;
        Ok(trust.requiring(self.attestations.clone()).denying(self.denied.clone()))
    }

    fn has_keys(&self) -> bool {
        !self.keys.is_empty() || !self.entries.is_empty()
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
        let wanted = self.attestations.iter().cloned().map(Role::Attestation);
        let mut wanted = std::iter::once(Role::Modules).chain(wanted);
        match wanted.find(|role| self.required && !self.has(role)) {
            Some(role) => return Err(without_key(&role)),
            None => self.warn(),
        }
        Ok(())
    }

    /// Warns about keys without effect.
    fn warn(&self) {
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

fn without_key(role: &Role) -> Failure {
    let cause = match role {
        Role::Modules => "signatures are required, and no key of trust has the role modules".into(),
        Role::Attestation(kind) => format!(
            "require-attestation names {kind}, and no key has that role: beside entries of trust, \
             signature-keys sign modules alone"
        ),
    };
    let short = match role {
        Role::Modules => ", or name it in signature-keys (--signature-key)",
        Role::Attestation(_) => "",
    };
    Failure::new(FailureKind::Usage, cause).remedy(format!(
        "give a key that role: [[trust]] key = \"/keys/cosign.pub\", roles = [\"{role}\"]{short}"
    ))
}
