//! A set as an OCI image layout: a directory that oras, skopeo and cosign can read.
//!
//! ```text
//! oci-layout             {"imageLayoutVersion":"1.0.0"}
//! index.json             one entry per set, tagged `DRIVER-FLAVOUR-RELEASE-ARCH`
//! blobs/sha256/HEX       manifests, descriptions (the config), modules (the layers)
//! ```
//!
//! After the OCI image specification 1.1: "image layout", "image manifest" with `artifactType`.

pub mod destination;
pub mod elsewhere;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

pub use crate::artifact::image::{ARTIFACT_TYPE, Descriptor, INDEX_TYPE, MANIFEST_TYPE, Manifest};
use crate::artifact::image::{Described, MAX_JSON, json, parse_config, parse_manifest};
pub use crate::artifact::index::Index;
use crate::artifact::{ModuleSet, image};
use crate::layout::destination::unwritable;
use crate::sets::SetStore;
use crate::signature::attestation::{
    Attestation, AttestationImage, AttestationReader, attestation_tag,
};
use crate::signature::key::SecretKey;
use crate::signature::{
    Evidence, Signature, SignatureImage, SignatureReader, Trust, signature_tag,
};
use longshore_core::digest::hex;
use longshore_core::disk::Disk;
use longshore_core::durable::read_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::locks::{Attempt, LockKind};
use longshore_core::store::Store;

/// Content of the file `oci-layout`.
pub const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
/// Lock file, which exists while a process writes.
const LOCK: &str = ".lock";
/// Annotation with which `cosign save` marks the manifest of signatures.
pub const SAVED_SIGNATURES: &str = "dev.cosignproject.cosign/sigs";
/// Annotation with which `cosign save` marks the manifest of attestations.
pub const SAVED_ATTESTATIONS: &str = "dev.cosignproject.cosign/atts";
/// Annotation with the tag of a manifest.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Maximum number of images of signatures, and of attestations, of one set that are read.
const MOST_BESIDE: usize = 64;
/// Size limit of a module, even with its debug information.
pub const MAX_MODULE: u64 = 1 << 30;

/// One set in a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutSet {
    /// `sha256:...` of its manifest.
    pub manifest: String,
    /// Its content, from its description; the modules are verified on import.
    pub set: ModuleSet,
}

/// Writes `set` into the layout at `dir`, beside the sets already in it; makes the layout if it
/// does not exist. Returns `sha256:...` of the manifest.
///
/// Blobs come first, the index last and by rename: a reader sees the set whole or not at all. Two
/// exports into one directory exclude each other by a lock, for which one waits at most
/// `wait` (`lock-deadline`).
///
/// # Errors
/// Exit code 13 where a module in the store is damaged or `dir` is another kind of directory, 15
/// where `dir` cannot be written.
pub fn export(
    set: &ModuleSet,
    store: &Store,
    dir: &Path,
    wait: Duration,
) -> Result<String, Failure> {
    let target = Target { dir, disk: store.disk() };
    target.written(wait, || target.export(set, store))
}

/// Signs the manifest with this digest, of any kind of artifact, as cosign does, and keeps the signatures that it
/// has; false where it has this one. `identity` is the repository that the signature names, which cosign ignores
/// and `containers-policy.json(5)` compares.
///
/// # Errors
/// As [`export`] and [`manifest`].
pub fn sign(
    dir: &Path,
    digest: &str,
    identity: &str,
    key: &SecretKey,
    wait: Duration,
    disk: Disk,
) -> Result<bool, Failure> {
    let subject = manifest(dir, digest)?;
    let signature = Signature::make(key, identity, digest)?;
    let target = Target { dir, disk };
    target.written(wait, || target.add_signature(&subject.digest, &signature))
}

/// Stores attestations beside the set with the manifest `digest`, with those that it has; false where
/// it has all of them already.
///
/// # Errors
/// As [`export`] and [`manifest`].
pub fn add_attestations(
    dir: &Path,
    digest: &str,
    attestations: &[Attestation],
    wait: Duration,
    disk: Disk,
) -> Result<bool, Failure> {
    let subject = manifest(dir, digest)?;
    let target = Target { dir, disk };
    target.written(wait, || target.add_attestations(&subject, attestations))
}

/// Describes the manifest with this digest, of any kind of artifact that the layout's index lists.
///
/// # Errors
/// Exit code 12 where the index does not list it, 13 where it is damaged or is no manifest.
pub fn manifest(dir: &Path, digest: &str) -> Result<Descriptor, Failure> {
    let hex = hex_of(dir, digest)?;
    if !read_index(dir)?.manifests.iter().any(|entry| entry.digest == digest) {
        let what = format!("the image layout {} has no {digest}", dir.display());
        return Err(Failure::new(FailureKind::Download, what)
            .remedy("give the digest of an entry of its index.json"));
    }
    let bytes = read_blob(dir, hex, None, MAX_JSON)?;
    Descriptor::for_manifest(&bytes).or_fail(FailureKind::Verification, || {
        format!("the image layout {}: {digest} is no manifest", dir.display())
    })
}

/// Reads a set's manifest and config from the layout, and the signatures beside them: under cosign's
/// tags, or as `cosign save` marks them. The attestations, too, where `trust` requires any and the set
/// is signed as it demands; one that is damaged does not count.
///
/// # Errors
/// As [`import`].
pub fn evidence(dir: &Path, digest: &str, trust: &Trust) -> Result<Evidence, Failure> {
    let (manifest, set) =
        read_manifest(dir, digest, None)?.ok_or_else(|| not_a_set(dir, digest))?;
    let hex = |d: &str| hex_of(dir, d).map(str::to_owned);
    let bytes = read_blob(dir, &hex(digest)?, None, MAX_JSON)?;
    let config = read_blob(dir, &hex(&manifest.config.digest)?, None, MAX_JSON)?;
    let index = read_index(dir)?.manifests;
    let read_most = |of: &Descriptor, most| read_blob(dir, &hex(&of.digest)?, Some(of.size), most);
    let read = |of: &Descriptor| read_most(of, MAX_JSON);
    let images = beside(&index, &signature_tag(digest), SAVED_SIGNATURES);
    let signatures = SignatureReader::read_all(images.into_iter(), MAX_JSON, &read_most)?;
    let evidence = Evidence::new(bytes, config, signatures)?;
    if !evidence.needs_attestations(&set, trust) {
        return Ok(evidence);
    }
    let images = beside(&index, &attestation_tag(digest), SAVED_ATTESTATIONS);
    Ok(evidence.with_attestations(AttestationReader::read_all(images.into_iter(), &read)))
}

/// Returns an index's entries with this tag, then those that `cosign save` marked as `saved`: each
/// image once, and 64 at most.
pub fn beside<'i>(index: &'i [Descriptor], tag: &str, saved: &str) -> Vec<&'i Descriptor> {
    let with = |name: &'static str, value: &str| {
        let is_it = |entry: &&Descriptor| entry.annotations.get(name).is_some_and(|v| v == value);
        index.iter().filter(is_it).collect::<Vec<_>>()
    };
    let mut seen = BTreeSet::new();
    let mut found = [with(REF_NAME, tag), with("kind", saved)].concat();
    found.retain(|entry| seen.insert(entry.digest.as_str()));
    found.truncate(MOST_BESIDE);
    found
}

fn not_a_set(dir: &Path, digest: &str) -> Failure {
    verification(dir, format!("{digest} is not a set of modules ({ARTIFACT_TYPE})"))
}

/// Lists the sets in the layout at `dir`; ignores other entries.
///
/// # Errors
/// Exit code 12 where there is no layout, 13 where a manifest or description is damaged, 15 where
/// one cannot be read.
pub fn list(dir: &Path) -> Result<Vec<LayoutSet>, Failure> {
    let layout = dir.join("oci-layout");
    if !layout.is_file() {
        let cause = format!("{} is no OCI image layout: it has no file oci-layout", dir.display());
        return Err(Failure::new(FailureKind::Download, cause)
            .remedy("name the directory that `longshore build --out` wrote"));
    }
    read_index(dir)?
        .manifests
        .iter()
        .filter(|m| m.artifact_type.as_deref().is_none_or(|t| t == ARTIFACT_TYPE))
        .filter_map(|m| layout_set(dir, m).transpose())
        .collect()
}

/// Reads the set with this manifest (`sha256:...`) from its description.
///
/// # Errors
/// As [`import`].
pub fn describe(dir: &Path, manifest: &str) -> Result<ModuleSet, Failure> {
    let found = read_manifest(dir, manifest, None)?;
    found.map(|(_, set)| set).ok_or_else(|| not_a_set(dir, manifest))
}

/// Copies the set with this manifest (`sha256:...`) from the layout at `dir` into the store;
/// verifies every digest, and compares every module with the set's entry for it.
///
/// # Errors
/// Exit code 12 where a part is not in the layout, 13 where it is damaged or does not match, 15
/// where the store cannot be written.
pub fn import(dir: &Path, manifest: &str, store: &Store) -> Result<ModuleSet, Failure> {
    let (_, set) = read_manifest(dir, manifest, None)?.ok_or_else(|| not_a_set(dir, manifest))?;
    for module in &set.modules {
        let image = read_blob(dir, &module.sha256, Some(module.size), MAX_MODULE)?;
        module.check_image(&image, &set.key).or_fail(FailureKind::Verification, || {
            format!("importing {} from {}", module.file, dir.display())
        })?;
        store.put(&image)?;
    }
    store.put_set(&set)?;
    Ok(set)
}

/// Directory of a layout that is written to, on its disk.
#[derive(Clone, Copy)]
struct Target<'a> {
    dir: &'a Path,
    disk: Disk,
}

impl Target<'_> {
    /// Writes to the layout, one writer at a time; waits for another one as long as `wait`. The
    /// lock file is removed by its holder: a layout is copied and passed on.
    fn written<T>(
        self,
        wait: Duration,
        write: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.prepare()?;
        let lock = self.dir.join(LOCK);
        let fail = |e| unwritable(&lock, e);
        let mut attempt = Attempt::begin(&lock, LockKind::Exclusive, wait).map_err(fail)?;
        let held =
            attempt.within_limit_here().map_err(fail)?.ok_or_else(|| attempt.still_held())?;
        let written = write();
        // Removed while it is held: the next writer does not find it, and makes another.
        let removed = fs::remove_file(&lock);
        drop(held);
        let written = written?;
        removed.map(|()| written).map_err(fail)
    }

    /// Makes the layout's skeleton.
    fn prepare(self) -> Result<(), Failure> {
        let blobs = self.dir.join("blobs/sha256");
        let is_new = fs::read_dir(self.dir).map_or(true, |mut entries| entries.next().is_none());
        let marker = self.dir.join("oci-layout");
        if !is_new && !marker.is_file() {
            return Err(verification(
                self.dir,
                "it is not empty and not an OCI image layout".into(),
            )
            .remedy("name a new or empty directory, or one that holds an OCI image layout"));
        }
        fs::create_dir_all(&blobs).map_err(|e| unwritable(&blobs, e))?;
        if !marker.is_file() {
            self.write(&marker, LAYOUT)?;
        }
        Ok(())
    }

    fn export(self, set: &ModuleSet, store: &Store) -> Result<String, Failure> {
        let mut index = read_index(self.dir)?;
        for module in &set.modules {
            self.copy_module(store, &module.sha256)?;
        }
        let described = Described::from_set(set)?;
        self.write_blob(&described.config)?;
        self.write_blob(&described.manifest)?;
        let mut entry = Descriptor::for_bytes(MANIFEST_TYPE, &described.manifest);
        entry.artifact_type = Some(ARTIFACT_TYPE.to_owned());
        entry.annotations.insert(REF_NAME.to_owned(), set.key.tag());
        self.add_to_index(&mut index, entry)?;
        Ok(described.digest())
    }

    fn add_signature(self, digest: &str, signature: &Signature) -> Result<bool, Failure> {
        let mut index = read_index(self.dir)?;
        let tag = signature_tag(digest);
        let existing = self.tagged(&index, &tag)?;
        let Some(image) = SignatureImage::with(existing.as_deref(), signature)? else {
            return Ok(false);
        };
        let entry = Descriptor::for_bytes(MANIFEST_TYPE, &image.manifest);
        self.add_image(&mut index, entry, tag, &image.manifest, &image.blobs).map(|()| true)
    }

    fn add_attestations(
        self,
        subject: &Descriptor,
        attestations: &[Attestation],
    ) -> Result<bool, Failure> {
        let mut index = read_index(self.dir)?;
        let tag = attestation_tag(&subject.digest);
        let existing = self.tagged(&index, &tag)?;
        let image = AttestationImage::with(existing.as_deref(), subject, attestations)?;
        let Some(image) = image else { return Ok(false) };
        let entry = AttestationImage::descriptor(&image.manifest);
        self.add_image(&mut index, entry, tag, &image.manifest, &image.blobs).map(|()| true)
    }

    /// Reads the manifest under a tag.
    fn tagged(self, index: &Index, tag: &str) -> Result<Option<Vec<u8>>, Failure> {
        let has_tag = |m: &&Descriptor| m.annotations.get(REF_NAME).is_some_and(|t| t == tag);
        let read = |m: &Descriptor| {
            read_blob(self.dir, hex_of(self.dir, &m.digest)?, Some(m.size), MAX_JSON)
        };
        index.manifests.iter().find(has_tag).map(read).transpose()
    }

    /// Writes an image's blobs, then its manifest, and lists it under a tag.
    fn add_image(
        self,
        index: &mut Index,
        mut entry: Descriptor,
        tag: String,
        manifest: &[u8],
        blobs: &[Vec<u8>],
    ) -> Result<(), Failure> {
        for blob in blobs {
            self.write_blob(blob)?;
        }
        self.write_blob(manifest)?;
        entry.annotations.insert(REF_NAME.to_owned(), tag);
        self.add_to_index(index, entry)
    }

    fn add_to_index(self, index: &mut Index, entry: Descriptor) -> Result<(), Failure> {
        index.manifests.retain(|m| {
            m.digest != entry.digest
                && m.annotations.get(REF_NAME) != entry.annotations.get(REF_NAME)
        });
        index.manifests.push(entry);
        self.write(&self.dir.join("index.json"), &json(index)?)
    }

    fn copy_module(self, store: &Store, sha256: &str) -> Result<(), Failure> {
        if read_blob(self.dir, sha256, None, MAX_MODULE).is_ok() {
            return Ok(());
        }
        self.write(&blob_path(self.dir, sha256), &store.read_blob(sha256)?)
    }

    fn write_blob(self, bytes: &[u8]) -> Result<(), Failure> {
        self.write(&blob_path(self.dir, &hex(&Sha256::digest(bytes))), bytes)
    }

    fn write(self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        self.disk.write_atomically(path, bytes).map_err(|e| unwritable(path, e))
    }
}

fn layout_set(dir: &Path, listed: &Descriptor) -> Result<Option<LayoutSet>, Failure> {
    let found = read_manifest(dir, &listed.digest, Some(listed.size))?;
    Ok(found.map(|(_, set)| LayoutSet { manifest: listed.digest.clone(), set }))
}

/// Reads the manifest and its description; None if it is of another kind of image.
fn read_manifest(
    dir: &Path,
    digest: &str,
    size: Option<u64>,
) -> Result<Option<(Manifest, ModuleSet)>, Failure> {
    let bytes = read_blob(dir, hex_of(dir, digest)?, size, MAX_JSON)?;
    let place = format!("the image layout {}", dir.display());
    let Some(manifest) = parse_manifest(&bytes, &place)? else { return Ok(None) };
    let config = &manifest.config;
    let bytes = read_blob(dir, hex_of(dir, &config.digest)?, Some(config.size), MAX_JSON)?;
    let set = parse_config(&manifest, &bytes, &place)?;
    Ok(Some((manifest, set)))
}

fn read_index(dir: &Path) -> Result<Index, Failure> {
    let path = dir.join("index.json");
    if !path.exists() {
        return Ok(Index::default());
    }
    let bytes = read_bounded(&path, MAX_JSON)?;
    serde_json::from_slice(&bytes)
        .map_err(|e| verification(dir, "index.json is malformed".into()).with_source(e))
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
    let bytes = read().map_err(|e| read_failure(path, e))?;
    if bytes.len() as u64 > limit {
        let cause = format!("{} is larger than {limit} bytes", path.display());
        return Err(Failure::new(FailureKind::Verification, cause));
    }
    Ok(bytes)
}

fn blob_path(dir: &Path, sha256: &str) -> PathBuf {
    dir.join("blobs/sha256").join(sha256)
}

fn hex_of<'a>(dir: &Path, digest: &'a str) -> Result<&'a str, Failure> {
    image::hex_of(digest)
        .ok_or_else(|| verification(dir, format!("{digest:?} is no sha256 digest")))
}

fn verification(dir: &Path, what: String) -> Failure {
    Failure::new(FailureKind::Verification, format!("the image layout {}: {what}", dir.display()))
        .remedy("fetch or build the layout again")
}

#[cfg(test)]
mod tests;
