//! A set as an OCI image layout: a directory that oras, skopeo and cosign can read.
//!
//! ```text
//! oci-layout             {"imageLayoutVersion":"1.0.0"}
//! index.json             one entry per set, tagged `DRIVER-FLAVOUR-RELEASE`
//! blobs/sha256/HEX       manifests, descriptions (the config), modules (the layers)
//! ```
//!
//! After the OCI image specification 1.1: "image layout", "image manifest" with `artifactType`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::destination::unwritable;
use super::{ModuleSet, is_sha256};
use crate::failure::{ExitCode, Failure, OrFail};
use crate::store::{Store, hex, write_atomically};

/// `artifactType` of a set's manifest.
pub const ARTIFACT_TYPE: &str = "application/vnd.longshore.modules.v1";
/// Media type of the config blob: a [`ModuleSet`] as JSON.
pub const CONFIG_TYPE: &str = "application/vnd.longshore.modules.config.v1+json";
/// Media type of a layer: one `.ko`, not compressed.
pub const MODULE_TYPE: &str = "application/vnd.longshore.module.v1";

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const TITLE: &str = "org.opencontainers.image.title";
/// Larger than any manifest or description; registries refuse manifests above 4 MiB.
const MAX_JSON: u64 = 4 << 20;
/// Larger than any module, even with its debug information.
const MAX_MODULE: u64 = 1 << 30;

/// A descriptor: what a blob is, its digest and size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type.
    pub media_type: String,
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    /// Bytes.
    pub size: u64,
    /// Set for manifests of artifacts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Free annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What other tools wrote into it; kept as it is.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// An image manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// 2.
    pub schema_version: u8,
    /// The media type of an image manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// [`ARTIFACT_TYPE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// The description of the set.
    pub config: Descriptor,
    /// The modules, in load order.
    pub layers: Vec<Descriptor>,
    /// Free annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u8,
    #[serde(default)]
    media_type: Option<String>,
    manifests: Vec<Descriptor>,
    #[serde(flatten)]
    other: BTreeMap<String, serde_json::Value>,
}

/// One set in a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `sha256:...` of its manifest.
    pub manifest: String,
    /// What it holds, as its description says; the modules are verified on import.
    pub set: ModuleSet,
}

/// Writes `set` into the layout at `dir`, which is made where it is not there, beside the sets
/// already in it. Returns `sha256:...` of the manifest.
///
/// Blobs come first, the index last and by rename: a reader sees the set whole or not at all. Two
/// exports into one directory take turns.
///
/// # Errors
/// Exit code 13 where a module in the store is damaged or `dir` is another kind of directory, 15
/// where `dir` cannot be written.
pub fn export(set: &ModuleSet, store: &Store, dir: &Path) -> Result<String, Failure> {
    let _turn = prepare(dir)?;
    let mut index = read_index(dir)?;
    for module in &set.modules {
        copy_module(store, &module.sha256, dir)?;
    }
    let config = json(set)?;
    let manifest = manifest(set, &config);
    write_blob(dir, &config)?;
    let bytes = json(&manifest)?;
    write_blob(dir, &bytes)?;
    let mut entry = descriptor(MANIFEST_TYPE, &bytes);
    entry.artifact_type = Some(ARTIFACT_TYPE.to_owned());
    entry.annotations.insert(REF_NAME.to_owned(), set.key.tag());
    let digest = entry.digest.clone();
    index.manifests.retain(|m| {
        m.digest != digest && m.annotations.get(REF_NAME) != entry.annotations.get(REF_NAME)
    });
    index.manifests.push(entry);
    let path = dir.join("index.json");
    write_atomically(&path, &json(&index)?).map_err(|e| unwritable(&path, e))?;
    Ok(digest)
}

/// The sets in the layout at `dir`; what is in it besides is passed over.
///
/// # Errors
/// Exit code 12 where there is no layout, 13 where a manifest or description is damaged.
pub fn list(dir: &Path) -> Result<Vec<Entry>, Failure> {
    let layout = dir.join("oci-layout");
    if !layout.is_file() {
        return Err(Failure::new(
            ExitCode::Download,
            format!("{} is no OCI image layout: it has no file oci-layout", dir.display()),
        )
        .remedy("name the directory that `longshore build --out` wrote"));
    }
    read_index(dir)?
        .manifests
        .iter()
        .filter(|m| m.artifact_type.as_deref().is_none_or(|t| t == ARTIFACT_TYPE))
        .filter_map(|m| entry_of(dir, m).transpose())
        .collect()
}

/// Copies the set with this manifest (`sha256:...`) from the layout at `dir` into the store,
/// with every digest verified and every module compared with what the set says of it.
///
/// # Errors
/// Exit code 12 where something is not in the layout, 13 where it is not what it should be, 15
/// where the store cannot be written.
pub fn import(dir: &Path, manifest: &str, store: &Store) -> Result<ModuleSet, Failure> {
    let (manifest, set) = read_manifest(dir, manifest, None)?.ok_or_else(|| {
        verification(dir, format!("{manifest} is not a set of modules ({ARTIFACT_TYPE})"))
    })?;
    check_layers(dir, &manifest, &set)?;
    for module in &set.modules {
        let image = read_blob(dir, &module.sha256, Some(module.size), MAX_MODULE)?;
        module
            .check_image(&image, &set.key.kernel_release)
            .or_fail(ExitCode::Verification, || {
                format!("importing {} from {}", module.file, dir.display())
            })?;
        store.put(&image)?;
    }
    store.put_set(&set)?;
    Ok(set)
}

/// Makes the layout's skeleton and waits for other writers of this directory.
fn prepare(dir: &Path) -> Result<nix::fcntl::Flock<File>, Failure> {
    let blobs = dir.join("blobs/sha256");
    let is_new = fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
    let marker = dir.join("oci-layout");
    if !is_new && !marker.is_file() {
        return Err(verification(dir, "it holds something else than an OCI image layout".into())
            .remedy("name a new or empty directory, or one that holds an OCI image layout"));
    }
    fs::create_dir_all(&blobs).map_err(|e| unwritable(&blobs, e))?;
    if !marker.is_file() {
        write_atomically(&marker, br#"{"imageLayoutVersion":"1.0.0"}"#)
            .map_err(|e| unwritable(&marker, e))?;
    }
    let handle = File::open(dir).map_err(|e| unwritable(dir, e))?;
    nix::fcntl::Flock::lock(handle, nix::fcntl::FlockArg::LockExclusive)
        .map_err(|(_, e)| unwritable(dir, e.into()))
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
    Manifest {
        schema_version: 2,
        media_type: Some(MANIFEST_TYPE.to_owned()),
        artifact_type: Some(ARTIFACT_TYPE.to_owned()),
        config: descriptor(CONFIG_TYPE, config),
        layers: layers.collect(),
        annotations: annotations.map(|(k, v)| (k.to_owned(), v.clone())).into(),
    }
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: format!("sha256:{}", hex(&Sha256::digest(bytes))),
        size: bytes.len() as u64,
        artifact_type: None,
        annotations: BTreeMap::new(),
        other: BTreeMap::new(),
    }
}

fn entry_of(dir: &Path, listed: &Descriptor) -> Result<Option<Entry>, Failure> {
    let found = read_manifest(dir, &listed.digest, Some(listed.size))?;
    Ok(found.map(|(_, set)| Entry { manifest: listed.digest.clone(), set }))
}

/// The manifest and its description, or None where it is of another kind of image.
fn read_manifest(
    dir: &Path,
    digest: &str,
    size: Option<u64>,
) -> Result<Option<(Manifest, ModuleSet)>, Failure> {
    let bytes = read_blob(dir, hex_of(dir, digest)?, size, MAX_JSON)?;
    let manifest: Manifest = match serde_json::from_slice(&bytes) {
        Ok(manifest) => manifest,
        // An index of images, for example; only what calls itself ours must be right.
        Err(_) if !contains(&bytes, ARTIFACT_TYPE) => return Ok(None),
        Err(error) => return Err(malformed(dir, digest, error)),
    };
    // Tools older than OCI 1.1 drop `artifactType`; the config's media type says the same.
    let ours = manifest.artifact_type.as_deref() == Some(ARTIFACT_TYPE)
        || manifest.config.media_type == CONFIG_TYPE;
    if !ours {
        return Ok(None);
    }
    let config = &manifest.config;
    let bytes = read_blob(dir, hex_of(dir, &config.digest)?, Some(config.size), MAX_JSON)?;
    let set: ModuleSet =
        serde_json::from_slice(&bytes).map_err(|e| malformed(dir, &config.digest, e))?;
    set.check().or_fail(ExitCode::Verification, || {
        format!("reading the set {} of {}", config.digest, dir.display())
    })?;
    Ok(Some((manifest, set)))
}

/// The layers are exactly the modules of the description, in the same order.
fn check_layers(dir: &Path, manifest: &Manifest, set: &ModuleSet) -> Result<(), Failure> {
    let layers: Vec<_> = manifest.layers.iter().map(|l| (l.digest.clone(), l.size)).collect();
    let modules: Vec<_> =
        set.modules.iter().map(|m| (format!("sha256:{}", m.sha256), m.size)).collect();
    if layers == modules {
        return Ok(());
    }
    Err(verification(dir, "a manifest's layers are not the modules of its description".into()))
}

fn read_index(dir: &Path) -> Result<Index, Failure> {
    let path = dir.join("index.json");
    if !path.exists() {
        return Ok(Index {
            schema_version: 2,
            media_type: Some(INDEX_TYPE.to_owned()),
            manifests: Vec::new(),
            other: BTreeMap::new(),
        });
    }
    let bytes = read_bounded(&path, MAX_JSON)?;
    parse_json(&bytes).map_err(|e| malformed(dir, "index.json", e))
}

fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(bytes)
}

fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(value).or_fail(ExitCode::Bug, || "writing JSON")
}

fn copy_module(store: &Store, sha256: &str, dir: &Path) -> Result<(), Failure> {
    let path = blob_path(dir, sha256);
    if read_blob(dir, sha256, None, MAX_MODULE).is_ok() {
        return Ok(());
    }
    let bytes = store.read_blob(sha256)?;
    write_atomically(&path, &bytes).map_err(|e| unwritable(&path, e))
}

fn write_blob(dir: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let path = blob_path(dir, &hex(&Sha256::digest(bytes)));
    write_atomically(&path, bytes).map_err(|e| unwritable(&path, e))
}

fn read_blob(dir: &Path, sha256: &str, size: Option<u64>, limit: u64) -> Result<Vec<u8>, Failure> {
    let path = blob_path(dir, sha256);
    let bytes = read_bounded(&path, limit)?;
    if size.is_some_and(|size| size != bytes.len() as u64) {
        return Err(verification(dir, format!("{sha256} has {} bytes", bytes.len())));
    }
    let found = hex(&Sha256::digest(&bytes));
    if found != sha256 {
        return Err(verification(dir, format!("the blob {sha256} has the digest {found}")));
    }
    Ok(bytes)
}

fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().or_fail(ExitCode::Download, || format!("reading {}", path.display()))?;
    if bytes.len() as u64 > limit {
        return Err(Failure::new(
            ExitCode::Verification,
            format!("{} is larger than {limit} bytes", path.display()),
        ));
    }
    Ok(bytes)
}

fn blob_path(dir: &Path, sha256: &str) -> PathBuf {
    dir.join("blobs/sha256").join(sha256)
}

fn hex_of<'a>(dir: &Path, digest: &'a str) -> Result<&'a str, Failure> {
    digest
        .strip_prefix("sha256:")
        .filter(|hex| is_sha256(hex))
        .ok_or_else(|| verification(dir, format!("{digest:?} is no sha256 digest")))
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn malformed(dir: &Path, what: &str, error: serde_json::Error) -> Failure {
    verification(dir, format!("{what} is not what it should be")).because(error)
}

fn verification(dir: &Path, what: String) -> Failure {
    Failure::new(ExitCode::Verification, format!("the image layout {}: {what}", dir.display()))
        .remedy("fetch or build the layout again")
}

#[cfg(test)]
mod tests;
