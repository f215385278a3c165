//! Signing of modules for kernels that require a signature.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::values::AbsolutePath;
use crate::failure::{ExitCode, Failure};
use crate::module_signing::Hash;

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

/// Module signing settings of one configuration layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ModuleSigningFragment {
    /// Sign modules for the kernel with this key (PEM), or with the tls.key of this directory;
    /// passphrase in KBUILD_SIGN_PIN
    #[arg(long = "module-key", global = true, value_name = "FILE|DIR")]
    pub key: Option<AbsolutePath>,
    /// Certificate of the module signer (PEM or DER); by default the tls.crt beside tls.key
    #[arg(long = "module-certificate", global = true, value_name = "FILE|DIR")]
    pub certificate: Option<AbsolutePath>,
    /// Directory with module signatures that were made elsewhere (*.p7s), instead of a key
    #[arg(long = "module-signatures", global = true, value_name = "DIR")]
    pub signatures: Option<AbsolutePath>,
    /// Hash algorithm of module signatures: sha256, sha384 or sha512; by default that of the
    /// kernel's own modules
    #[arg(long = "module-hash", global = true, value_name = "HASH")]
    pub hash: Option<Hash>,
}

impl ModuleSigningFragment {
    /// Returns this fragment, with unset settings taken from `below`. A key and signatures exclude
    /// each other, so either one in this fragment replaces both below.
    pub(super) fn over(self, below: Self) -> Self {
        let decided = self.key.is_some() || self.signatures.is_some();
        let (key, signatures) =
            if decided { (self.key, self.signatures) } else { (below.key, below.signatures) };
        Self {
            key,
            signatures,
            certificate: self.certificate.or(below.certificate),
            hash: self.hash.or(below.hash),
        }
    }

    /// # Errors
    /// Exit code 2 for a key together with signatures, or for a certificate or hash without either.
    pub(super) fn settle(&self) -> Result<Option<ModuleSigning>, Failure> {
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
    Failure::new(ExitCode::Usage, cause).remedy(remedy)
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
    use rstest::rstest;

    fn fragment(text: &str) -> ModuleSigningFragment {
        toml::from_str(text).expect("a fragment")
    }

    #[test]
    fn nothing_given_is_nothing_signed() {
        assert_eq!(fragment("").settle().expect("fine"), None);
    }

    #[test]
    fn a_mounted_secret_is_key_and_certificate() {
        let dir = tempfile::tempdir().expect("dir");
        let text = format!("key = '{}'", dir.path().display());
        let signing = fragment(&text).settle().expect("fine").expect("some");
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
        let failure = fragment(text).settle().expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Usage);
        assert!(failure.to_string().contains(wanted), "{failure}");
    }

    #[test]
    fn signatures_above_take_the_place_of_a_key_below() {
        let below = fragment("key = '/k'\ncertificate = '/c'\nhash = 'sha512'");
        let all = fragment("signatures = '/s'").over(below).settle().expect("fine").expect("some");
        assert_eq!(all.by, SignBy::Detached("/s".into()));
        assert_eq!((all.certificate, all.hash), ("/c".into(), Some(Hash::Sha512)));
    }

    #[test]
    fn an_unknown_hash_is_refused() {
        assert!(toml::from_str::<ModuleSigningFragment>("hash = 'md5'").is_err());
    }
}
