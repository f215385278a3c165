//! `index`: the signed list of a repository's current module sets.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::print;
use super::registry::{secret_key, to_push, to_read};
use crate::config::{Config, LongSpan, SetDigest};
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::image_reference::Repository;
use longshore_modules::registry::set_index::SignedSets;
use longshore_modules::signature::set_index::{LowestVersions, NotListed};

/// Number of sets that are named in the log, each with the reason why it is not listed.
const MOST_NAMED: usize = 20;

/// Arguments of `index`.
#[derive(Debug, clap::Args)]
pub(super) struct Index {
    /// Repository (HOST/REPOSITORY)
    #[arg(value_name = "REPOSITORY")]
    repository: Repository,
    /// List the sets that this key signed, or one of signature-keys or trust, and sign the list with
    /// it: a cosign.key, its password in COSIGN_PASSWORD
    #[arg(long, value_name = "FILE", required_unless_present = "show")]
    sign_key: Option<PathBuf>,
    /// Time for which the index counts, from 1h to 1y; make the next one before
    #[arg(long, value_name = "SPAN", default_value = "7d", value_parser = LongSpan::within_a_year)]
    expires: LongSpan,
    /// Leave out the set with this digest (repeatable)
    #[arg(long, value_name = "DIGEST")]
    without: Vec<SetDigest>,
    /// Show the index that is there, verified with the keys that have the role index, and write none
    #[arg(long, conflicts_with_all = ["sign_key", "expires", "without"])]
    show: bool,
}

/// Writes the index of a repository, or shows it.
///
/// # Errors
/// Exit code 2 for a key that cannot be read, 12 where the repository cannot be asked or refuses the index, 13 where
/// it has no set by the keys, or an index that does not count.
pub(super) async fn index(config: &Config, asked: Index) -> Result<ExitCode, Failure> {
    match &asked.sign_key {
        Some(path) if !asked.show => write(config, &asked, path).await?,
        _ => show(config, &asked.repository).await?,
    }
    Ok(ExitCode::Done)
}

async fn write(config: &Config, asked: &Index, key: &Path) -> Result<(), Failure> {
    let key = secret_key(key)?;
    let mut keys = config.signatures.trust()?.module_keys();
    keys.push(key.public());
    let repository = &asked.repository;
    let registry = to_push(config, repository)?;
    let SignedSets { signed: mut sets, others } = registry.sets_signed_by(&keys).await?;
    for (tag, why) in others.iter().take(MOST_NAMED) {
        tracing::warn!("{repository}:{tag} is not listed: {why}");
    }
    if let Some(more) = others.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        tracing::warn!("{repository}: {more} more sets are not listed");
    }
    if sets.is_empty() {
        return Err(nothing_signed(repository));
    }
    for without in &asked.without {
        if !sets.remove(without.as_str()) {
            tracing::warn!("{repository} has no signed set {}", without.as_str());
        }
    }
    let made = registry.put_index(&key, sets, asked.expires.duration()).await?;
    print(&format!(
        "{repository}: index {}, expires {:.0}, {}\n",
        made.version,
        made.expires,
        counted(made.sets)
    ))
}

async fn show(config: &Config, repository: &Repository) -> Result<(), Failure> {
    let trust = config.signatures.trust()?;
    if trust.keys().is_empty() {
        return Err(Failure::new(FailureKind::Usage, "no key to verify the index with")
            .remedy("give --signature-key cosign.pub, or --trust index=cosign.pub"));
    }
    let refuse = |why: NotListed| why.refusal(&repository.to_string());
    let there = to_read(config, repository)?.index().await?;
    let (index, by) = there
        .ok_or(NotListed::Missing)
        .and_then(|signed| signed.verify(trust.keys()))
        .map_err(refuse)?;
    let mut text = format!(
        "{repository}: index {}, issued {:.0}, expires {:.0}, {}, signed by {by}\n",
        index.version,
        index.issued,
        index.expires,
        counted(index.sets.len())
    );
    for set in &index.sets {
        text.push_str(&format!("{set}\n"));
    }
    print(&text)?;
    let now = Timestamp::now();
    let published = config.signatures.published_minimums()?.minimum(&repository.name());
    let minimum = config.signatures.index_minimum;
    let counts = index.check_version(now, LowestVersions { seen: None, minimum, published });
    counts.and_then(|()| index.check_expiry(now)).map_err(refuse)
}

fn counted(sets: usize) -> String {
    match sets {
        1 => "1 set".to_owned(),
        _ => format!("{sets} sets"),
    }
}

fn nothing_signed(repository: &Repository) -> Failure {
    let cause = format!("{repository} has no set that the key signed, and no index is written");
    Failure::new(FailureKind::Verification, cause).remedy(
        "sign the sets first (`longshore push --sign-key`), or name the keys that signed them (signature-keys, \
         --signature-key)",
    )
}
