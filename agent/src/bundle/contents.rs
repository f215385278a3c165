//! Contents of a bundle: every blob and its source, determined before the first is written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::kinds::{TREE_TYPE, manifest_of, tag_of};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::store::Store;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::{
    ARTIFACT_TYPE, Described, Descriptor, MANIFEST_TYPE, digest, hex_of, json,
};
use longshore_modules::layout::{Index, REF_NAME};
use longshore_modules::sets::SetStore;
use longshore_modules::signature::attestation::{Attestation, AttestationImage, attestation_tag};
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::{Signature, SignatureImage, signature_tag};
use longshore_sources::userspace::AvailableUserspace;
use longshore_sources::userspace::packed::Packed;

/// Contents of a bundle, in the order it is written.
#[derive(Debug, Default)]
pub struct Contents {
    index: Vec<Descriptor>,
    blobs: Vec<Blob>,
    named: BTreeSet<String>,
}

/// One blob of a bundle.
#[derive(Debug)]
pub(super) struct Blob {
    /// sha256 (hex).
    pub(super) sha256: String,
    /// Size in bytes.
    pub(super) size: u64,
    pub(super) from: From,
}

/// Source of a blob's bytes.
#[derive(Debug)]
pub(super) enum From {
    Memory(Vec<u8>),
    File(PathBuf),
}

impl Contents {
    /// Collects sets of the store and the trees that belong to them; each signed by `key`, if
    /// given, in addition to the signatures that sets have already.
    ///
    /// # Errors
    /// Exit code 13 where something in the store is damaged.
    pub fn collect(
        sets: &[ModuleSet],
        trees: &[AvailableUserspace],
        key: Option<&SecretKey>,
        store: &Store,
    ) -> Result<Self, Failure> {
        let mut contents = Self::default();
        let sets: BTreeMap<String, &ModuleSet> =
            sets.iter().map(|set| (set.key.file_stem(), set)).collect();
        let trees: BTreeMap<&PathBuf, &AvailableUserspace> =
            trees.iter().map(|tree| (&tree.root, tree)).collect();
        let packed =
            trees.values().map(|tree| Packed::read(tree)).collect::<Result<Vec<_>, _>>()?;
        // Descriptions come first, so that a reader knows early which blobs follow.
        for set in sets.values() {
            contents.describe_set(set, key, store)?;
        }
        for tree in &packed {
            contents.describe_tree(tree, key)?;
        }
        for module in sets.values().flat_map(|set| &set.modules) {
            let path = store.blob_path(&module.sha256);
            contents.add(&module.sha256, module.size, From::File(path));
        }
        for (tree, packed) in trees.values().zip(&packed) {
            for file in &packed.files {
                let path = tree.root.join(&file.path);
                contents.add(&file.sha256, file.size, From::File(path));
            }
        }
        Ok(contents)
    }

    fn describe_set(
        &mut self,
        set: &ModuleSet,
        key: Option<&SecretKey>,
        store: &Store,
    ) -> Result<(), Failure> {
        let mut described = Described::from_set(set)?;
        let (mut signatures, mut attestations) = (Vec::new(), Vec::new());
        if let Some(evidence) = store.evidence(set) {
            // The signed bytes are included unchanged.
            if let Some(signed) = evidence.described(set)? {
                described = signed;
                signatures = evidence.signatures().to_vec();
                attestations = evidence.attestations().to_vec();
            }
        }
        self.add_memory(described.config.clone());
        let tag = tag(&self.index, set.key.tag(), &set.key.digest());
        self.describe(&described.manifest, ARTIFACT_TYPE, tag, signatures, key)?;
        self.attest(&described, &attestations)
    }

    /// Adds the attestations that a set has.
    fn attest(&mut self, set: &Described, attestations: &[Attestation]) -> Result<(), Failure> {
        let image = AttestationImage::with(None, &set.descriptor(), attestations)?;
        let Some(image) = image else { return Ok(()) };
        self.list(AttestationImage::descriptor(&image.manifest), attestation_tag(&set.digest()));
        self.add_memory(image.manifest);
        image.blobs.into_iter().for_each(|blob| self.add_memory(blob));
        Ok(())
    }

    fn describe_tree(&mut self, tree: &Packed, key: Option<&SecretKey>) -> Result<(), Failure> {
        let manifest = manifest_of(tree)?;
        self.add_memory(tree.manifest.clone());
        let tag = tag(&self.index, tag_of(tree), hex_of(&digest(&manifest)).unwrap_or_default());
        self.describe(&manifest, TREE_TYPE, tag, Vec::new(), key)
    }

    fn describe(
        &mut self,
        manifest: &[u8],
        artifact_type: &str,
        tag: String,
        mut signatures: Vec<Signature>,
        key: Option<&SecretKey>,
    ) -> Result<(), Failure> {
        let mut entry = Descriptor::for_bytes(MANIFEST_TYPE, manifest);
        entry.artifact_type = Some(artifact_type.to_owned());
        if let Some(key) = key {
            // A bundle has no name in a registry; verification ignores it.
            signatures.push(Signature::make(key, "bundle", &entry.digest)?);
        }
        let tag_of_signatures = signature_tag(&entry.digest);
        self.list(entry, tag);
        self.add_memory(manifest.to_vec());
        let Some(image) = SignatureImage::from_signatures(&signatures)? else { return Ok(()) };
        self.list(Descriptor::for_bytes(MANIFEST_TYPE, &image.manifest), tag_of_signatures);
        self.add_memory(image.manifest);
        image.blobs.into_iter().for_each(|blob| self.add_memory(blob));
        Ok(())
    }

    fn list(&mut self, mut entry: Descriptor, tag: String) {
        entry.annotations.insert(REF_NAME.to_owned(), tag);
        self.index.push(entry);
    }

    fn add_memory(&mut self, bytes: Vec<u8>) {
        let digest = digest(&bytes);
        let sha256 = hex_of(&digest).unwrap_or_default();
        self.add(sha256, bytes.len() as u64, From::Memory(bytes));
    }

    fn add(&mut self, sha256: &str, size: u64, from: From) {
        if self.named.insert(sha256.to_owned()) {
            self.blobs.push(Blob { sha256: sha256.to_owned(), size, from });
        }
    }

    /// Returns the bytes of index.json.
    ///
    /// # Errors
    /// Exit code 70; it can always be serialized.
    pub(super) fn index(&self) -> Result<Vec<u8>, Failure> {
        json(&Index { manifests: self.index.clone(), ..Index::default() })
    }

    /// Returns the blobs, in order.
    pub(super) fn blobs(&self) -> &[Blob] {
        &self.blobs
    }

    /// Returns the size of all blobs in bytes.
    pub fn size(&self) -> u64 {
        self.blobs.iter().map(|blob| blob.size).sum()
    }

    /// Returns the index's entries: a tag and `sha256:...` each.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.index.iter().map(|entry| {
            (entry.annotations.get(REF_NAME).map_or("", String::as_str), entry.digest.as_str())
        })
    }
}

/// Returns a tag that no other entry has.
fn tag(index: &[Descriptor], wanted: String, digest: &str) -> String {
    if index.iter().any(|entry| entry.annotations.get(REF_NAME) == Some(&wanted)) {
        return format!("{wanted}-{}", digest.get(..12).unwrap_or_default());
    }
    wanted
}

/// Returns the failure for a blob that differs from the store's record.
pub(super) fn changed(blob: &Blob, found: &str) -> Failure {
    let place = match &blob.from {
        From::Memory(_) => "memory".to_owned(),
        From::File(path) => path.display().to_string(),
    };
    let cause = format!("{place} differs from the store's record of it (its sha256 is {found})");
    Failure::new(FailureKind::Verification, cause)
        .remedy("`longshore store verify` names all that is damaged: remove it and fetch again")
}
