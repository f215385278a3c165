//! Support table of the report: the built-in one, or that of a file with its signature.

use std::path::{Path, PathBuf};

use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_modules::signature::key::PublicKey;
use longshore_modules::signature::signer_of_file;
use longshore_support::SupportTable;

/// Maximum size of a table, in bytes: the agent's.
const MOST_BYTES: u64 = 1 << 20;

/// Maximum size of a signature, in bytes.
const LONGEST_SIGNATURE: u64 = 1 << 10;

/// Reads the table of a file, whose signature is `FILE.sig`; the built-in one where it is newer and the file does not
/// extend it.
///
/// # Errors
/// Exit code 2 where the file or a key cannot be read, or the table contradicts itself; 13 where no key signed it.
pub(crate) fn of_file(file: &Path, keys: &[PathBuf]) -> Result<SupportTable, Failure> {
    let reading = |path: &Path| format!("reading the support table {}", path.display());
    let text =
        bounded_read::read_text(file, MOST_BYTES).or_fail(FailureKind::Usage, || reading(file))?;
    let mut name = file.as_os_str().to_owned();
    name.push(".sig");
    let beside = PathBuf::from(name);
    let signature = bounded_read::read_text(&beside, LONGEST_SIGNATURE)
        .or_fail(FailureKind::Verification, || reading(&beside))?;
    let keys: Vec<PublicKey> =
        keys.iter().map(|key| PublicKey::read(key)).collect::<Result<_, Failure>>()?;
    if signer_of_file(text.as_bytes(), &signature, &keys).is_none() {
        let names: Vec<&str> = keys.iter().map(PublicKey::name).collect();
        let cause = format!(
            "the signature {} is not of {} by any of these keys: {}",
            beside.display(),
            file.display(),
            names.join(", ")
        );
        return Err(Failure::new(FailureKind::Verification, cause).remedy(format!(
            "sign the table: `longshore sign {} --sign-key cosign.key`",
            file.display()
        )));
    }
    let built_in = SupportTable::built_in()?;
    built_in.merged(&text)
}
