//! `sign`: signatures of artifacts and files, as cosign makes them.

use std::path::{Path, PathBuf};

use super::attest::of_layout;
use super::print;
use super::registry::{secret_key, to_push};
use super::verify::named;
use crate::config::Config;
use longshore_core::bounded_read;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_modules::layout;
use longshore_modules::signature::key::SecretKey;

/// Maximum size of a file that is signed: it is hashed in memory.
const MAX_FILE: u64 = 256 << 20;

/// Arguments of `sign`.
#[derive(Debug, clap::Args)]
pub(super) struct Sign {
    /// Artifact of any kind in a registry (HOST/REPOSITORY@DIGEST) or in an image layout
    /// (DIRECTORY@DIGEST), or a file, whose signature goes into FILE.sig
    #[arg(value_name = "REFERENCE|DIRECTORY|FILE")]
    what: String,
    /// Sign with this key: a cosign.key, its password in COSIGN_PASSWORD
    #[arg(long, value_name = "FILE")]
    sign_key: PathBuf,
    /// Repository that the signature names, for an artifact that a layout carries there
    #[arg(long, value_name = "HOST/REPOSITORY", default_value = "layout")]
    identity: String,
}

/// Signs an artifact or a file.
///
/// # Errors
/// Exit code 2 for a reference without a digest or a key that cannot be read, 12 where the artifact does not
/// exist, 13 where it is damaged, 15 where the signature cannot be written.
pub(super) async fn sign(config: &Config, asked: Sign) -> Result<ExitCode, Failure> {
    let key = secret_key(&asked.sign_key)?;
    let path = Path::new(&asked.what);
    let (place, new) = match of_layout(&asked.what) {
        Some((dir, Some(digest))) => {
            let (wait, disk) = (config.deadlines.lock, config.disk());
            let new = layout::sign(dir, digest, &asked.identity, &key, wait, disk)?;
            (format!("{}@{digest}", dir.display()), new)
        }
        Some((dir, None)) => return Err(without_digest(&dir.display().to_string())),
        None if path.is_file() => (sign_file(config, path, &key)?, true),
        None => in_registry(config, &asked.what, &key).await?,
    };
    let done = if new { "signed" } else { "was signed already" };
    print(&format!("{place}: {done}\n"))?;
    Ok(ExitCode::Done)
}

/// Signs an artifact of a registry; returns its name, and false where it has the signature already.
async fn in_registry(
    config: &Config,
    what: &str,
    key: &SecretKey,
) -> Result<(String, bool), Failure> {
    let (reference, _) = named(what)?;
    let Some(digest) = &reference.digest else { return Err(without_digest(what)) };
    let repository = &reference.repository;
    let registry = to_push(config, repository)?;
    let subject = registry.manifest(digest).await?;
    let new = registry.sign(&subject.digest, key).await?;
    Ok((format!("{repository}@{digest}"), new))
}

/// Refuses a tag: whoever can write to the place decides which artifact it names.
fn without_digest(what: &str) -> Failure {
    Failure::new(FailureKind::Usage, format!("{what} does not name one artifact by its digest"))
        .remedy("give HOST/REPOSITORY@sha256:..., DIRECTORY@sha256:..., or a file")
}

/// Signs a file, as `cosign sign-blob` does; returns the path of its signature.
fn sign_file(config: &Config, path: &Path, key: &SecretKey) -> Result<String, Failure> {
    let what = || format!("reading {}", path.display());
    let bytes = bounded_read::read(path, MAX_FILE).or_fail(FailureKind::Usage, what)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".sig");
    let signature = PathBuf::from(name);
    let text = format!("{}\n", key.sign(&bytes));
    let write = || format!("writing {}", signature.display());
    config
        .disk()
        .write_atomically(&signature, text.as_bytes())
        .or_fail(FailureKind::Preflight, write)?;
    Ok(signature.display().to_string())
}
