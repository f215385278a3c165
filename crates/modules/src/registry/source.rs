//! Registries as a configuration names them.

use serde::Deserialize;

use longshore_core::image_reference::{BadReference, Repository};

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
