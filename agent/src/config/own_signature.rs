//! Sets that are compiled on this host where signatures are required: they count if the key that signs what is
//! published (`publish-key`) is among the trusted ones.

use super::{Config, PublishConfig, SignatureConfig};
use longshore_core::environment::Env;
use longshore_core::failure::Failure;
use longshore_core::sanitize::in_line;
use longshore_core::value::Uri;
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::statement::PredicateType;
use longshore_modules::signature::{Role, Trust};

/// Statements about a compiled set that are made where `publish-attest` is set, by their short names.
pub const ATTESTED: [&str; 2] = ["provenance", "spdx"];

/// Standing of a set that this host compiles and signs, among the required signatures; its text is the reason that
/// the set does not count.
#[derive(Debug, Clone, Default, PartialEq, Eq, derive_more::Display)]
pub enum OwnSignature {
    /// There is no key here that signs.
    #[default]
    #[display("modules compiled here have no signature, which is required")]
    None,
    /// The key cannot be read.
    #[display("{}: the publish key cannot be used: {_0}", Self::None)]
    Unreadable(String),
    /// The key is not among those that count.
    #[display(
        "modules compiled here would be signed by the publish key, which is none of the signature-keys"
    )]
    Foreign,
    /// The key counts, and this attestation is required and not made here.
    #[display("modules compiled here would lack the attestation {_0}, which is required")]
    Unattested(PredicateType),
    /// The key counts.
    #[display("modules compiled here are signed by the publish key")]
    Counts,
}

impl OwnSignature {
    /// Judges the publish key by the required signatures. Its password comes from `COSIGN_PASSWORD`. Without a key,
    /// and where no signature is required, no file is read.
    pub(super) fn judge(config: &Config, env: Env<'_>) -> Self {
        let (Some(publish), true) = (&config.publish, config.signatures.required) else {
            return Self::None;
        };
        let judged = Self::judged(publish, &config.signatures, &config.builder_id, env);
        judged.unwrap_or_else(|failure| Self::Unreadable(in_line(&failure.one_line()).into_owned()))
    }

    fn judged(
        publish: &PublishConfig,
        signatures: &SignatureConfig,
        builder: &Uri,
        env: Env<'_>,
    ) -> Result<Self, Failure> {
        let Some(path) = &publish.sign_key else { return Ok(Self::None) };
        let own = SecretKey::read(path, env("COSIGN_PASSWORD").as_deref())?.public();
        let trust = Trust::read(signatures.required, &signatures.keys, &signatures.entries)?;
        if !trust.counts(&own, &Role::Modules, builder) {
            return Ok(Self::Foreign);
        }
        let is_made = |kind: &PredicateType| {
            let is_known = ATTESTED.contains(&kind.to_string().as_str());
            publish.attest
                && is_known
                && trust.counts(&own, &Role::Attestation(kind.clone()), builder)
        };
        let missing = signatures.attestations.iter().find(|kind| !is_made(kind));
        Ok(missing.map_or(Self::Counts, |kind| Self::Unattested(kind.clone())))
    }

    /// True if a set that is compiled here may be loaded though signatures are required.
    pub fn counts(&self) -> bool {
        *self == Self::Counts
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::config::{Fragment, load};
    use rstest::rstest;

    const PASSWORD: &str = "of the key";

    fn config(dir: &Path, more: &str, password: &str, is_trusted: bool) -> Config {
        let own = SecretKey::generate();
        let trusted =
            if is_trusted { own.public_pem() } else { SecretKey::generate().public_pem() };
        let path = |name: &str| dir.join(name).display().to_string();
        fs::write(path("cosign.key"), own.to_encrypted_pem(PASSWORD).expect("PEM"))
            .expect("written");
        fs::write(path("cosign.pub"), trusted.expect("PEM")).expect("written");
        let file = format!(
            "signature-keys = ['{}']\n{more}\n[publish]\nreference = 'registry.example.com/a'\n\
             sign-key = '{}'\n{}",
            path("cosign.pub"),
            path("cosign.key"),
            if more.contains("provenance") { "attest = true" } else { "" }
        );
        fs::write(path("config.toml"), file).expect("written");
        let env = |name: &str| match name {
            "COSIGN_PASSWORD" => Some(password.to_owned()),
            "LONGSHORE_CONFIG" => Some(path("config.toml")),
            _ => None,
        };
        load(Fragment::default(), &env, None).expect("a configuration")
    }

    #[rstest]
    #[case::own_key("", PASSWORD, true, true)]
    #[case::foreign_key("", PASSWORD, false, false)]
    #[case::wrong_password("", "another", true, false)]
    #[case::attested("require-attestation = ['provenance', 'spdx']", PASSWORD, true, true)]
    #[case::not_tested(
        "require-attestation = ['provenance', 'test-result']",
        PASSWORD,
        true,
        false
    )]
    #[case::not_attested("require-attestation = ['spdx']", PASSWORD, true, false)]
    fn only_what_this_host_signs_with_a_trusted_key_is_compiled_to_be_loaded(
        #[case] more: &str,
        #[case] password: &str,
        #[case] is_trusted: bool,
        #[case] compiles: bool,
    ) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = config(dir.path(), more, password, is_trusted);
        assert!(config.signatures.required);
        assert_eq!(config.may_compile(), compiles, "{}", config.own_signature);
    }
}
