//! `verify`: signatures and attestations of module sets in registries and layouts.

use std::path::{Path, PathBuf};

use super::print;
use super::registry::to_read;
use crate::config::{Config, SignatureConfig};
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::image_reference::Reference;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::layout;
use longshore_modules::signature::statement::PredicateType;
use longshore_modules::signature::{self, Evidence, Trust};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    /// Module set in a registry (HOST/REPOSITORY:TAG or @DIGEST), or directory of an image layout
    #[arg(value_name = "REFERENCE|DIRECTORY")]
    what: String,
    /// Public key, a cosign.pub (repeatable), in place of those of signature-keys. The keys of trust have their
    /// roles as in the configuration (--trust)
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// Verify an attestation of this type, too: provenance, spdx, test-result, or the URI of a type
    /// (repeatable); by default those of require-attestation
    #[arg(long = "attestation", value_name = "TYPE")]
    attestations: Vec<PredicateType>,
}

pub(super) async fn verify(config: &Config, verify: Verify) -> Result<ExitCode, Failure> {
    let mut signatures = SignatureConfig { required: true, ..config.signatures.clone() };
    if !verify.keys.is_empty() {
        signatures.keys = verify.keys;
    }
    if !verify.attestations.is_empty() {
        signatures.attestations = verify.attestations;
    }
    if signatures.keys.is_empty() && signatures.entries.is_empty() {
        return Err(Failure::new(FailureKind::Usage, "no key to verify with")
            .remedy("give --key cosign.pub, or set signature-keys or trust"));
    }
    signatures.check()?;
    let trust = signatures.trust()?;
    let dir = Path::new(&verify.what);
    if dir.is_dir() {
        for entry in sets_in(dir)? {
            let place = format!("{}@{}", dir.display(), entry.manifest);
            judge(&place, &layout::evidence(dir, &entry.manifest, &trust)?, &entry.set, &trust)?;
        }
        return Ok(ExitCode::Done);
    }
    let (reference, name) = named(&verify.what)?;
    let registry = to_read(config, &reference.repository)?;
    let set = registry.describe(&name).await?;
    let place = format!("{}@{}", reference.repository, set.digest());
    judge(&place, &registry.evidence(&set, &trust).await?, &set.set, &trust)?;
    Ok(ExitCode::Done)
}

/// Lists the sets of a layout; at least one.
pub(super) fn sets_in(dir: &Path) -> Result<Vec<layout::LayoutSet>, Failure> {
    let entries = layout::list(dir)?;
    if entries.is_empty() {
        let what = format!("{} holds no set of modules", dir.display());
        return Err(Failure::new(FailureKind::Download, what)
            .remedy("name the directory that `longshore build --out` wrote"));
    }
    Ok(entries)
}

/// Parses the reference of one set in a registry; returns its digest or tag, too.
pub(super) fn named(what: &str) -> Result<(Reference, String), Failure> {
    let reference: Reference = what.parse().map_err(|e| {
        Failure::new(FailureKind::Usage, format!("{what} is no directory either"))
            .with_source(e)
            .remedy("give HOST/REPOSITORY:TAG, HOST/REPOSITORY@sha256:..., or a layout's directory")
    })?;
    let Some(name) = reference.digest.clone().or_else(|| reference.tag.clone()) else {
        return Err(Failure::new(
            FailureKind::Usage,
            format!("{reference} has neither tag nor digest"),
        )
        .remedy("say which set: HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:..."));
    };
    Ok((reference, name))
}

fn judge(place: &str, evidence: &Evidence, set: &ModuleSet, trust: &Trust) -> Result<(), Failure> {
    let name = evidence.meets(set, trust).map_err(|why| signature::refusal(place, &why))?;
    let key = &set.key;
    let mut line = format!(
        "{place}: driver {} ({}) for {} ({}), signed by {name}",
        key.driver_version, key.flavour, key.kernel_release, key.kernel_version
    );
    for kind in &trust.attestations {
        let by =
            evidence.attested(kind, trust).map_err(|why| signature::refusal(place, &why.into()))?;
        line.push_str(&format!(", {kind} attested by {by}"));
    }
    print(&format!("{line}\n"))
}
