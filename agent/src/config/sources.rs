//! Archives and registries of the configuration file.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use super::values::AbsolutePath;
use crate::failure::{ExitCode, Failure};
use crate::image_reference::{BadReference, Host, Repository};
use crate::redact::shown;

/// One archive: base URL, suites, components, keyring.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ArchiveSource {
    /// Base URL: http, https or file.
    #[serde(deserialize_with = "archive_url")]
    pub url: String,
    /// Suites, for example `bookworm`, `bookworm-updates`.
    pub suites: Vec<String>,
    /// Components, for example `main`, `non-free`.
    pub components: Vec<String>,
    /// OpenPGP keyring (binary or armored) whose keys may sign InRelease.
    #[serde(deserialize_with = "absolute_path")]
    pub keyring: PathBuf,
}

/// Repository of a registry, with its mirrors.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "RegistryEntry")]
pub struct RegistrySource {
    /// The repository.
    pub reference: Repository,
    /// Repositories with the same content, tried first, in this order.
    pub mirrors: Vec<Repository>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RegistryEntry {
    reference: Repository,
    #[serde(default)]
    mirrors: Vec<Repository>,
    #[serde(default)]
    plain_http: bool,
}

impl From<RegistryEntry> for RegistrySource {
    fn from(entry: RegistryEntry) -> Self {
        let plain = |r: Repository| r.with_plain_http(entry.plain_http);
        Self {
            reference: plain(entry.reference),
            mirrors: entry.mirrors.into_iter().map(plain).collect(),
        }
    }
}

impl std::str::FromStr for RegistrySource {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        Ok(Self { reference: text.parse()?, mirrors: Vec::new() })
    }
}

/// Refuses registries that modules would come from without TLS and without a signature, except
/// those on this machine and those in `insecure`.
///
/// # Errors
/// Exit code 2, naming the first one.
pub(super) fn refuse_plain_http(
    registries: &[RegistrySource],
    insecure: &[Host],
) -> Result<(), Failure> {
    let places =
        registries.iter().flat_map(|source| source.mirrors.iter().chain([&source.reference]));
    let mut unsafe_ones = places.filter(|place| {
        place.plain_http() && !place.is_loopback() && !insecure.iter().any(|host| host.has(place))
    });
    let Some(place) = unsafe_ones.next() else { return Ok(()) };
    let cause = format!(
        "the registry {place} is used without TLS, and no signature is required: every host on \
         the way could put its own kernel modules in place of the registry's"
    );
    Err(Failure::new(ExitCode::Usage, cause).remedy(format!(
        "use TLS, or require signatures (signature-keys); where the network is to be trusted, say so: \
         insecure-registries = [\"{}\"], --insecure-registry or LONGSHORE_INSECURE_REGISTRIES",
        place.host()
    )))
}

fn archive_url<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let url = String::deserialize(from)?;
    let after = |scheme: &str| url.strip_prefix(scheme);
    let host = after("http://").or(after("https://"));
    if host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'))
        || url.starts_with("file:/")
    {
        Ok(url)
    } else {
        Err(serde::de::Error::custom(format!(
            "`{}` is not an http, https or file URL",
            shown(&url)
        )))
    }
}

fn absolute_path<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    AbsolutePath::deserialize(from).map(|path| path.as_path().to_path_buf())
}
