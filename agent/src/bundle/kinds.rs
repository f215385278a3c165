//! The manifest of a user-mode tree; that of a set of modules is in `artifact::image`.

use std::collections::BTreeMap;

use longshore_core::failure::{Failure, FailureKind};
use longshore_modules::artifact::image::{Descriptor, MANIFEST_TYPE, Manifest, TITLE, json};
use longshore_modules::artifact::legal;
use longshore_sources::userspace::packed::Packed;

/// `artifactType` of a tree's manifest.
pub(super) const TREE_TYPE: &str = "application/vnd.longshore.userspace.v1";
/// Media type of its config: the tree's manifest.json.
pub(super) const TREE_CONFIG_TYPE: &str = "application/vnd.longshore.userspace.config.v1+json";
/// Media type of its layers: one file each, not compressed.
const FILE_TYPE: &str = "application/vnd.longshore.userspace.file.v1";

/// Builds the manifest of a tree.
///
/// # Errors
/// Exit code 70; a manifest can always be serialized.
pub(super) fn manifest_of(tree: &Packed) -> Result<Vec<u8>, Failure> {
    let layers = tree.files.iter().map(|file| Descriptor {
        media_type: FILE_TYPE.to_owned(),
        digest: format!("sha256:{}", file.sha256),
        size: file.size,
        artifact_type: None,
        annotations: BTreeMap::from([(TITLE.to_owned(), file.path.display().to_string())]),
        other: BTreeMap::new(),
    });
    let annotations = [
        ("org.opencontainers.image.version", &tree.driver_version),
        ("longshore.arch", &tree.arch),
    ];
    json(&Manifest {
        schema_version: 2,
        media_type: Some(MANIFEST_TYPE.to_owned()),
        artifact_type: Some(TREE_TYPE.to_owned()),
        config: Descriptor::for_bytes(TREE_CONFIG_TYPE, &tree.manifest),
        layers: layers.collect(),
        subject: None,
        annotations: annotations.map(|(name, value)| (name.to_owned(), value.clone())).into(),
    })
}

/// Returns a tree's tag in a bundle.
pub(super) fn tag_of(tree: &Packed) -> String {
    legal(&format!("userspace-{}-{}", tree.driver_version, tree.arch))
}

/// True if a manifest is a tree's.
pub(super) fn is_tree(manifest: &Manifest) -> bool {
    manifest.artifact_type.as_deref() == Some(TREE_TYPE)
        || manifest.config.media_type == TREE_CONFIG_TYPE
}

/// Reads the tree that `manifest` and its config describe; its layers must be exactly the files.
///
/// # Errors
/// Exit code 13 where they are not.
pub(super) fn parse_tree(
    manifest: &Manifest,
    config: Vec<u8>,
    place: &str,
) -> Result<Packed, Failure> {
    let wrong = |what: &str| Failure::new(FailureKind::Verification, format!("{place}: {what}"));
    if !manifest.config.describes(&config) {
        return Err(wrong("a user-mode tree's description is not what its manifest names"));
    }
    let tree = Packed::parse(config, place)?;
    let layers = manifest.layers.iter().map(|l| (l.digest.clone(), l.size));
    let files = tree.files.iter().map(|f| (format!("sha256:{}", f.sha256), f.size));
    if !layers.eq(files) {
        return Err(wrong("a manifest's layers are not the files of its user-mode tree"));
    }
    Ok(tree)
}
