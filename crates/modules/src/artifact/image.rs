//! A set as an OCI artifact: its manifest, config and layers, in any storage.
//!
//! After the OCI image specification 1.1: "image manifest" with `artifactType`.

use std::collections::BTreeMap;

use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::ModuleSet;
use longshore_core::digest::hex;
use longshore_core::digest::is_sha256;
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// `artifactType` of a set's manifest.
pub const ARTIFACT_TYPE: &str = "application/vnd.longshore.modules.v1";
/// Media type of the config blob: a [`ModuleSet`] as JSON.
pub(crate) const CONFIG_TYPE: &str = "application/vnd.longshore.modules.config.v1+json";
/// Media type of a layer: one `.ko`, not compressed.
pub(crate) const MODULE_TYPE: &str = "application/vnd.longshore.module.v1";

/// Media type of an image manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Size limit of a manifest or description; registries refuse manifests above 4 MiB.
pub const MAX_JSON: u64 = 4 << 20;
/// Annotation of a layer: the file name that other tools give it.
pub const TITLE: &str = "org.opencontainers.image.title";

/// Media type of an index.
pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// A descriptor: media type, digest and size of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type.
    pub media_type: String,
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    /// Bytes.
    pub size: u64,
    /// Artifact type, for manifests of artifacts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Free annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Fields of other tools; kept as they are.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

impl Descriptor {
    /// Describes `bytes`.
    pub fn for_bytes(media_type: &str, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: digest(bytes),
            size: bytes.len() as u64,
            artifact_type: None,
            annotations: BTreeMap::new(),
            other: BTreeMap::new(),
        }
    }

    /// Describes a manifest or an index of any kind of artifact, with the media type that it names (OCI image
    /// specification 1.1, `manifest.md` and `image-index.md`).
    ///
    /// # Errors
    /// If `bytes` are no JSON object, or it has neither layers nor manifests.
    pub fn for_manifest(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Named {
            media_type: Option<String>,
            layers: Option<Vec<IgnoredAny>>,
            manifests: Option<Vec<IgnoredAny>>,
        }
        let named: Named = serde_json::from_slice(bytes)?;
        let usual = match (named.layers, named.manifests) {
            (Some(_), _) => MANIFEST_TYPE,
            (None, Some(_)) => INDEX_TYPE,
            (None, None) => return Err(serde_json::Error::custom("neither layers nor manifests")),
        };
        Ok(Self::for_bytes(named.media_type.as_deref().unwrap_or(usual), bytes))
    }

    /// True if `bytes` match its digest and size.
    pub fn describes(&self, bytes: &[u8]) -> bool {
        self.size == bytes.len() as u64 && self.digest == digest(bytes)
    }
}

/// An image manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u8,
    /// The media type of an image manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// [`ARTIFACT_TYPE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Descriptor of the set's description.
    pub config: Descriptor,
    /// The modules, in load order.
    pub layers: Vec<Descriptor>,
    /// The manifest that this one refers to, which makes it a referrer of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// Free annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Manifest {
    /// Returns a manifest without subject and annotations.
    pub(crate) fn new(
        artifact_type: Option<&str>,
        config: Descriptor,
        layers: Vec<Descriptor>,
    ) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(MANIFEST_TYPE.to_owned()),
            artifact_type: artifact_type.map(str::to_owned),
            config,
            layers,
            subject: None,
            annotations: BTreeMap::new(),
        }
    }
}

/// A set with the bytes that describe it, as they are stored and signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The manifest.
    pub manifest: Vec<u8>,
    /// The config.
    pub config: Vec<u8>,
    /// The set that they describe.
    pub set: ModuleSet,
}

impl Described {
    /// Describes a set.
    ///
    /// # Errors
    /// Exit code 70; a set always serializes.
    pub fn from_set(set: &ModuleSet) -> Result<Self, Failure> {
        let config = json(set)?;
        let manifest = json(&manifest(set, &config))?;
        Ok(Self { manifest, config, set: set.clone() })
    }

    /// `sha256:...` of the manifest.
    pub fn digest(&self) -> String {
        digest(&self.manifest)
    }

    /// Descriptor of the manifest, as others refer to it.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor::for_bytes(MANIFEST_TYPE, &self.manifest)
    }

    /// Parses a manifest and the config it names, from `place` (as messages call it).
    ///
    /// # Errors
    /// Exit code 13 where they are damaged or do not match.
    pub fn assemble(manifest: Vec<u8>, config: Vec<u8>, place: &str) -> Result<Self, Failure> {
        let parsed = parse_manifest(&manifest, place)?
            .ok_or_else(|| wrong(place, "it is not a set of modules".into()))?;
        let set = parse_config(&parsed, &config, place)?;
        Ok(Self { manifest, config, set })
    }
}

/// `sha256:` and the hex digits of the digest of `bytes`.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// The hex digits of a `sha256:` digest.
pub fn hex_of(digest: &str) -> Option<&str> {
    digest.strip_prefix("sha256:").filter(|hex| is_sha256(hex))
}

/// Parses the manifest of a set; None if it is of another kind of image.
///
/// # Errors
/// Exit code 13 where it is marked as a set and is none.
pub fn parse_manifest(bytes: &[u8], place: &str) -> Result<Option<Manifest>, Failure> {
    let manifest: Manifest = match serde_json::from_slice(bytes) {
        Ok(manifest) => manifest,
        // An index of images, for example; only a manifest marked as a set's must be valid.
        Err(_) if !contains(bytes, ARTIFACT_TYPE) => return Ok(None),
        Err(error) => {
            return Err(wrong(place, "its manifest is damaged".into()).with_source(error));
        }
    };
    // Tools older than OCI 1.1 drop `artifactType`; the config's media type is equivalent.
    let ours = manifest.artifact_type.as_deref() == Some(ARTIFACT_TYPE)
        || manifest.config.media_type == CONFIG_TYPE;
    Ok(ours.then_some(manifest))
}

/// Parses the set in a manifest's config; the layers must be exactly its modules.
///
/// # Errors
/// Exit code 13 where they are not.
pub(crate) fn parse_config(
    manifest: &Manifest,
    config: &[u8],
    place: &str,
) -> Result<ModuleSet, Failure> {
    if !manifest.config.describes(config) {
        return Err(wrong(place, "its description does not match the manifest".into()));
    }
    let set: ModuleSet = serde_json::from_slice(config)
        .map_err(|e| wrong(place, "its description is damaged".into()).with_source(e))?;
    set.check()
        .map_err(|e| wrong(place, "its description contradicts itself".into()).with_source(e))?;
    let layers = manifest.layers.iter().map(|l| (l.digest.clone(), l.size));
    let modules = set.modules.iter().map(|m| (format!("sha256:{}", m.sha256), m.size));
    if !layers.eq(modules) {
        let what = "a manifest's layers are not the modules of its description";
        return Err(wrong(place, what.into()));
    }
    Ok(set)
}

fn manifest(set: &ModuleSet, config: &[u8]) -> Manifest {
    let layers = set.modules.iter().map(|module| Descriptor {
        media_type: MODULE_TYPE.to_owned(),
        digest: format!("sha256:{}", module.sha256),
        size: module.size,
        artifact_type: None,
        annotations: BTreeMap::from([(TITLE.to_owned(), module.file.clone())]),
        other: BTreeMap::new(),
    });
    let key = &set.key;
    let annotations = [
        ("org.opencontainers.image.version", &key.driver_version),
        ("longshore.flavour", &key.flavour.to_string()),
        ("longshore.kernel.release", &key.kernel_release),
        ("longshore.kernel.version", &key.kernel_version),
    ];
    let mut annotations: BTreeMap<_, _> =
        annotations.map(|(name, value)| (name.to_owned(), value.clone())).into();
    if !set.has_signed_headers() {
        annotations.insert("longshore.headers".to_owned(), set.headers_origin().to_string());
    }
    let config = Descriptor::for_bytes(CONFIG_TYPE, config);
    Manifest { annotations, ..Manifest::new(Some(ARTIFACT_TYPE), config, layers.collect()) }
}

/// Returns `value` as JSON.
///
/// # Errors
/// Exit code 70, which is a fault in the program.
pub fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(value).or_fail(FailureKind::Bug, || "writing JSON")
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn wrong(place: &str, what: String) -> Failure {
    Failure::new(FailureKind::Verification, format!("{place}: {what}"))
        .remedy("build or push the set again")
}
