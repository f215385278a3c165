//! Signing of modules for kernels that require a signature.

use std::path::{Path, PathBuf};

use super::layer::settings;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::value::AbsolutePath;
use longshore_modules::module_signing::Hash;

/// File names in a Kubernetes secret of type `kubernetes.io/tls`.
const TLS_KEY: &str = "tls.key";
const TLS_CERTIFICATE: &str = "tls.crt";

/// Signing of modules for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleSigning {
    /// Signer's certificate: an X.509 file, PEM or DER.
    pub certificate: PathBuf,
    /// Source of the signatures.
    pub by: SignBy,
    /// Hash algorithm; None for that of the kernel's own modules.
    pub hash: Option<Hash>,
}

/// Source of module signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignBy {
    /// Made here, with this secret key (PEM).
    Key(PathBuf),
    /// Made elsewhere, and stored in this directory as `*.p7s`.
    Detached(PathBuf),
}

settings! {
    /// Module signing settings of one configuration layer.
    ModuleSigningFragment after replaced;

    /// Secret key (PEM) that signs modules for the kernel
    ///
    /// Or a directory with `tls.key` and `tls.crt`; its passphrase in `KBUILD_SIGN_PIN`:
    /// [module-signing.md](../supply-chain/module-signing.md).
    key: Option<AbsolutePath>;
        key "key" flag "module-key" "FILE|DIR" env "LONGSHORE_MODULE_KEY"
        default "none"
    /// X.509 certificate of the module signer, PEM or DER
    certificate: Option<AbsolutePath>;
        key "certificate" flag "module-certificate" "FILE|DIR" env "LONGSHORE_MODULE_CERTIFICATE"
        default "`tls.crt` beside `tls.key`"
    /// Directory with module signatures made elsewhere (`*.p7s`)
    ///
    /// They take the place of a key.
    signatures: Option<AbsolutePath>;
        key "signatures" flag "module-signatures" "DIR" env "LONGSHORE_MODULE_SIGNATURES"
        default "none"
    /// Hash algorithm of module signatures
    ///
    /// `sha256`, `sha384` or `sha512`.
    hash: Option<Hash>;
        key "hash" flag "module-hash" "HASH" env "LONGSHORE_MODULE_HASH"
        default "that of the kernel's own modules"
}

/// Replaces both below where one of them is given: a key and signatures exclude each other.
fn replaced(
    above: ModuleSigningFragment,
    mut below: ModuleSigningFragment,
) -> (ModuleSigningFragment, ModuleSigningFragment) {
    if above.key.is_some() || above.signatures.is_some() {
        (below.key, below.signatures) = (None, None);
    }
    (above, below)
}

impl ModuleSigningFragment {
    /// Returns the signing of modules, None where nothing is to sign them.
    ///
    /// # Errors
    /// Exit code 2 for a key together with signatures, or for a certificate or hash without either.
    pub(super) fn validated(&self) -> Result<Option<ModuleSigning>, Failure> {
        let path = |given: &Option<AbsolutePath>| given.as_ref().map(|p| p.as_path().to_path_buf());
        let certificate = path(&self.certificate).map(|given| within(given, TLS_CERTIFICATE));
        let (by, certificate) = match (path(&self.key), path(&self.signatures)) {
            (Some(_), Some(_)) => {
                return Err(wrong(
                    "both a key and signatures are given for modules",
                    "give the one or the other: --module-key or --module-signatures",
                ));
            }
            (Some(key), None) => {
                let key = within(key, TLS_KEY);
                let beside = || {
                    key.file_name()
                        .is_some_and(|name| name == TLS_KEY)
                        .then(|| key.with_file_name(TLS_CERTIFICATE))
                };
                let certificate = certificate.or_else(beside);
                (SignBy::Key(key), certificate)
            }
            (None, Some(dir)) => (SignBy::Detached(dir), certificate),
            (None, None) if self.certificate.is_none() && self.hash.is_none() => return Ok(None),
            (None, None) => {
                return Err(wrong(
                    "a certificate or a hash for modules is given, and nothing to sign with",
                    "give --module-key, or --module-signatures for signatures made elsewhere",
                ));
            }
        };
        let certificate = certificate.ok_or_else(|| {
            wrong(
                "modules are to be signed, and the signer's certificate is not given",
                "give --module-certificate (module-signing.certificate)",
            )
        })?;
        Ok(Some(ModuleSigning { certificate, by, hash: self.hash }))
    }
}

/// Returns the file `name` inside `given` where that is a directory: a mounted secret.
fn within(given: PathBuf, name: &str) -> PathBuf {
    if given.is_dir() { given.join(name) } else { given }
}

fn wrong(cause: &str, remedy: &str) -> Failure {
    Failure::new(FailureKind::Usage, cause).remedy(remedy)
}

impl ModuleSigning {
    /// Returns the secret key's file, where signatures are made here.
    pub fn key(&self) -> Option<&Path> {
        match &self.by {
            SignBy::Key(key) => Some(key),
            SignBy::Detached(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layer::Over;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    fn fragment(text: &str) -> ModuleSigningFragment {
        toml::from_str(text).expect("a fragment")
    }

    #[test]
    fn nothing_given_is_nothing_signed() {
        assert_eq!(fragment("").validated().expect("fine"), None);
    }

    #[test]
    fn a_mounted_secret_is_key_and_certificate() {
        let dir = tempfile::tempdir().expect("dir");
        let text = format!("key = '{}'", dir.path().display());
        let signing = fragment(&text).validated().expect("fine").expect("some");
        assert_eq!(signing.key(), Some(dir.path().join("tls.key").as_path()));
        assert_eq!(signing.certificate, dir.path().join("tls.crt"));
    }

    #[rstest]
    #[case("key = '/k.pem'", "certificate is not given")]
    #[case("certificate = '/c.pem'", "nothing to sign with")]
    #[case("hash = 'sha256'", "nothing to sign with")]
    #[case("signatures = '/s'", "certificate is not given")]
    #[case("key = '/k'\nsignatures = '/s'\ncertificate = '/c'", "both a key and signatures")]
    fn halves_are_refused(#[case] text: &str, #[case] wanted: &str) {
        let failure = fragment(text).validated().expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Usage);
        assert!(failure.to_string().contains(wanted), "{failure}");
    }

    #[test]
    fn signatures_above_take_the_place_of_a_key_below() {
        let below = fragment("key = '/k'\ncertificate = '/c'\nhash = 'sha512'");
        let all =
            fragment("signatures = '/s'").over(below).validated().expect("fine").expect("some");
        assert_eq!(all.by, SignBy::Detached("/s".into()));
        assert_eq!((all.certificate, all.hash), ("/c".into(), Some(Hash::Sha512)));
    }

    #[test]
    fn an_unknown_hash_is_refused() {
        assert!(toml::from_str::<ModuleSigningFragment>("hash = 'md5'").is_err());
    }
}
