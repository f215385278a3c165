//! A support table with its signature, as a place has them, and the check of that signature.

use std::path::{Path, PathBuf};

use crate::config::Config;
use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_modules::signature::key::PublicKey;
use longshore_modules::signature::{self, Role};
use serde::{Deserialize, Serialize};

/// Maximum size of a table, in bytes; the built-in one has less than a tenth.
pub(super) const MOST_BYTES: u64 = 1 << 20;

/// Maximum size of a signature, in bytes.
pub(super) const LONGEST_SIGNATURE: usize = 1 << 10;

/// A table that has not been checked, with its signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignedTable {
    /// Path, or `oci://HOST/REPOSITORY:TAG`.
    pub(super) place: String,
    /// The table, TOML.
    pub(super) text: String,
    /// Signature of `text`, as `longshore sign` and `cosign sign-blob` write it.
    pub(super) signature: String,
}

impl SignedTable {
    /// Reads a file with its signature beside it, FILE.sig.
    pub(super) fn read(file: &Path) -> Result<Self, Failure> {
        let reading = || format!("reading the support table {}", file.display());
        let text =
            bounded_read::read_text(file, MOST_BYTES).or_fail(FailureKind::Usage, reading)?;
        let mut name = file.as_os_str().to_owned();
        name.push(".sig");
        let path = PathBuf::from(name);
        let signature =
            bounded_read::read_text(&path, LONGEST_SIGNATURE as u64).map_err(|error| {
                let path = path.display();
                unsigned(
                    &file.display().to_string(),
                    format!("the support table has no signature: reading {path}: {error}"),
                )
            })?;
        Ok(Self { place: file.display().to_string(), text, signature })
    }
}

/// Returns the keys with the role of support tables.
///
/// # Errors
/// Exit code 2 where there is none.
pub(super) fn keys(config: &Config, place: &str) -> Result<Vec<PublicKey>, Failure> {
    let keys = config.signatures.trust()?.keys_for(&Role::SupportTable);
    if keys.is_empty() {
        let cause = format!("support-table is {place}, and no key may sign it");
        return Err(Failure::new(FailureKind::Usage, cause).remedy(
            "give a key that role: [[trust]] key = \"/keys/cosign.pub\", roles = [\"support-table\"]; or name it in \
             signature-keys",
        ));
    }
    Ok(keys)
}

/// Checks the signature by the keys with the role of support tables.
pub(super) fn verify(config: &Config, signed: &SignedTable) -> Result<(), Failure> {
    let place = &signed.place;
    let keys = keys(config, place)?;
    match signature::signer_of_file(signed.text.as_bytes(), &signed.signature, &keys) {
        Some(_) => Ok(()),
        None => {
            let names: Vec<&str> = keys.iter().map(|key| key.name()).collect();
            let names = names.join(", ");
            Err(unsigned(
                place,
                format!(
                    "the signature of the support table {place} is not by any of these keys: {names}"
                ),
            ))
        }
    }
}

/// Refusal of a table whose signature is absent or of no key.
pub(super) fn unsigned(place: &str, cause: String) -> Failure {
    let file = if place.starts_with('/') { place } else { "support.toml" };
    Failure::new(FailureKind::Verification, cause)
        .remedy(format!("sign the table: `longshore sign {file} --sign-key cosign.key`"))
}
