//! Import of a bundle into the store: everything is verified before anything is recorded.

use std::collections::BTreeMap;
use std::io::Read;

use super::kinds::{is_tree, parse_tree};
use super::staging::Staging;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::Task;
use longshore_core::store::Store;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::{
    Described, Descriptor, MANIFEST_TYPE, MAX_JSON, Manifest, parse_manifest,
};
use longshore_modules::layout::{
    INDEX_TYPE, Index, MAX_MODULE, SAVED_ATTESTATIONS, SAVED_SIGNATURES, beside,
};
use longshore_modules::sets::SetStore;
use longshore_modules::signature::attestation::{
    self, AttestationReader, ReadAttestations, attestation_tag,
};
use longshore_modules::signature::{
    self, Evidence, ReadSignatures, SignatureReader, Trust, refusal, signature_tag,
};
use longshore_sources::userspace::AvailableUserspace;
use longshore_sources::userspace::packed::Packed;

/// Maximum number of entries in an index: two for each set and tree.
const MOST_ENTRIES: usize = 10_000;

/// Result of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The imported sets of modules.
    pub sets: Vec<ModuleSet>,
    /// The imported user-mode trees.
    pub trees: Vec<AvailableUserspace>,
}

/// Reads a bundle from its first byte to its last and imports its contents into the store. `name`
/// is its name in messages. Every set and every tree must be signed according to each of `trusts`
/// that requires it.
///
/// # Errors
/// Exit code 13 where it is cut off, damaged, no bundle, or not signed as it must be, 10 where it is
/// for another kind of machine, 15 where the store is full or cannot be written. Nothing is recorded
/// then.
pub fn import(
    from: &mut dyn Read,
    name: &str,
    store: &Store,
    trusts: &[Trust],
    task: &dyn Task,
) -> Result<Imported, Failure> {
    let staging = Staging::read(from, name, store, task)?;
    let bundle = Bundle::read(&staging)?;
    bundle.check_signatures(trusts)?;
    bundle.check_attestations(trusts)?;
    bundle.check_modules()?;
    bundle.record(store, trusts)
}

/// Contents of a bundle, by its index and manifests.
struct Bundle<'a> {
    staging: &'a Staging,
    sets: Vec<Signed<Described>>,
    trees: Vec<Signed<Packed>>,
}

/// A set or a tree with the signatures beside it.
struct Signed<T> {
    digest: String,
    what: T,
    /// Images of its signatures.
    signed_in: Vec<Descriptor>,
    /// Images of its attestations; none of a tree's.
    attested_in: Vec<Descriptor>,
}

impl<'a> Bundle<'a> {
    fn read(staging: &'a Staging) -> Result<Self, Failure> {
        let layout: BTreeMap<String, serde_json::Value> = staging.small("oci-layout")?;
        let version = layout.get("imageLayoutVersion").and_then(|v| v.as_str());
        if version != Some("1.0.0") {
            return Err(staging.wrong(format!("its layout has the version {version:?}")));
        }
        let index: Index = staging.small("index.json")?;
        if index.schema_version != 2 || index.media_type.is_some_and(|kind| kind != INDEX_TYPE) {
            return Err(staging.wrong("its index is of another kind".into()));
        }
        if index.manifests.len() > MOST_ENTRIES {
            return Err(staging.wrong(format!("its index names more than {MOST_ENTRIES}")));
        }
        let mut bundle = Self { staging, sets: Vec::new(), trees: Vec::new() };
        for entry in &index.manifests {
            bundle.add(entry, &index.manifests)?;
        }
        if bundle.sets.is_empty() && bundle.trees.is_empty() {
            let cause = "it holds neither modules nor a user-mode tree that longshore knows";
            return Err(staging.wrong(cause.into()));
        }
        Ok(bundle)
    }

    /// Adds the set or tree of `entry`; images of other kinds are skipped, as in layouts.
    fn add(&mut self, entry: &Descriptor, index: &[Descriptor]) -> Result<(), Failure> {
        let staging = self.staging;
        if entry.media_type != MANIFEST_TYPE {
            return Ok(());
        }
        let bytes = staging.bytes(entry)?;
        let Some((manifest, tree)) = kind_of(&bytes, staging.name())? else { return Ok(()) };
        let config = staging.bytes(&manifest.config)?;
        let images = beside(index, &signature_tag(&entry.digest), SAVED_SIGNATURES);
        let signed_in = images.into_iter().cloned().collect();
        for layer in &manifest.layers {
            staging.has(&layer.digest, layer.size)?;
        }
        let digest = entry.digest.clone();
        if tree {
            let what = parse_tree(&manifest, config, staging.name())?;
            self.trees.push(Signed { digest, what, signed_in, attested_in: Vec::new() });
        } else {
            let what = Described::assemble(bytes, config, staging.name())?;
            let images = beside(index, &attestation_tag(&digest), SAVED_ATTESTATIONS);
            let attested_in = images.into_iter().cloned().collect();
            self.sets.push(Signed { digest, what, signed_in, attested_in });
        }
        Ok(())
    }

    /// Reads the signatures beside a manifest: under cosign's tag, or as `cosign save` marks them. They are not
    /// kept: all of a bundle's may be many.
    fn signatures<T>(&self, of: &Signed<T>) -> Result<ReadSignatures, Failure> {
        SignatureReader::read_all(of.signed_in.iter(), MAX_JSON, &|of, most| {
            self.staging.bounded(&of.digest, of.size, most)
        })
    }

    /// Reads the attestations of a set, found as its signatures are. They are not kept: all of a
    /// bundle's may be many.
    fn attestations(&self, set: &Signed<Described>) -> ReadAttestations {
        AttestationReader::read_all(set.attested_in.iter(), &|of| self.staging.bytes(of))
    }

    fn check_signatures(&self, trusts: &[Trust]) -> Result<(), Failure> {
        for set in &self.sets {
            trusts.iter().try_for_each(|trust| trust.check_denied(&set.digest)).map_err(|why| {
                refusal(&format!("{} in {}", set.digest, self.staging.name()), &why)
            })?;
        }
        let check = |digest: &str, read: ReadSignatures| -> Result<(), Failure> {
            for trust in trusts.iter().filter(|trust| trust.required) {
                signature::verify(digest, &read.signatures, &trust.module_keys()).map_err(
                    |why| {
                        let why = why.beside_too_large(read.too_large);
                        refusal(&format!("{digest} in {}", self.staging.name()), &why)
                    },
                )?;
            }
            Ok(())
        };
        self.sets.iter().try_for_each(|set| check(&set.digest, self.signatures(set)?))?;
        self.trees.iter().try_for_each(|tree| check(&tree.digest, self.signatures(tree)?))
    }

    /// Checks the attestations of every set that a trust requires; reads none otherwise.
    fn check_attestations(&self, trusts: &[Trust]) -> Result<(), Failure> {
        let required = trusts.iter().filter(|trust| trust.required);
        let required: Vec<_> =
            required.flat_map(|trust| trust.attestations.iter().map(move |k| (trust, k))).collect();
        if required.is_empty() {
            return Ok(());
        }
        for set in &self.sets {
            let ReadAttestations { attestations, damaged } = self.attestations(set);
            for (trust, kind) in &required {
                let verified = attestation::verify(&set.digest, &attestations, kind, trust);
                verified.map_err(|why| {
                    let place = format!("{} in {}", set.digest, self.staging.name());
                    refusal(&place, &why.beside(damaged.as_deref()).into())
                })?;
            }
        }
        Ok(())
    }

    /// Compares every module with its record in its set.
    fn check_modules(&self) -> Result<(), Failure> {
        for set in self.sets.iter().map(|set| &set.what.set) {
            for module in &set.modules {
                let digest = format!("sha256:{}", module.sha256);
                let image = self.staging.bounded(&digest, module.size, MAX_MODULE)?;
                module.check_image(&image, &set.key).or_fail(FailureKind::Verification, || {
                    format!("the bundle {}: {}", self.staging.name(), module.file)
                })?;
            }
        }
        Ok(())
    }

    /// Records trees and modules first, sets last: every recorded set is complete.
    fn record(self, store: &Store, trusts: &[Trust]) -> Result<Imported, Failure> {
        let required = trusts.iter().filter(|trust| trust.required);
        let keys: Vec<_> = required.flat_map(|trust| trust.keys()).collect();
        let mut trees = Vec::new();
        // Another machine's tree is refused before anything is moved into place.
        for Signed { what: tree, .. } in &self.trees {
            tree.check_machine()?;
        }
        for Signed { what: tree, .. } in &self.trees {
            trees.push(match tree.there(store)? {
                Some(there) => there,
                None => tree.unpack(store, &|sha256| self.staging.path(sha256))?,
            });
        }
        let mut sets = Vec::new();
        for set in &self.sets {
            let what = &set.what;
            for module in &what.set.modules {
                if store.open_blob(&module.sha256).is_err() {
                    store.adopt_blob(&self.staging.path(&module.sha256), &module.sha256)?;
                }
            }
            let signatures = self.signatures(set)?;
            if !signatures.signatures.is_empty() {
                let (manifest, config) = (what.manifest.clone(), what.config.clone());
                let evidence = Evidence::new(manifest, config, signatures)?
                    .with_attestations(self.attestations(set));
                // Where nothing is required, a later configuration may know the keys.
                let kept = if keys.is_empty() { evidence } else { evidence.keeping(&keys) };
                store.put_evidence(&what.set, &kept)?;
            }
            store.put_set(&what.set)?;
            sets.push(what.set.clone());
        }
        Ok(Imported { sets, trees })
    }
}

/// Returns the manifest, and true for a tree's; None where it is neither a tree's nor a set's.
fn kind_of(bytes: &[u8], name: &str) -> Result<Option<(Manifest, bool)>, Failure> {
    let tree = serde_json::from_slice::<Manifest>(bytes).ok().filter(is_tree);
    if let Some(manifest) = tree {
        return Ok(Some((manifest, true)));
    }
    Ok(parse_manifest(bytes, name)?.map(|manifest| (manifest, false)))
}
