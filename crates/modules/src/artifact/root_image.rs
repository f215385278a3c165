//! Images of a file system in a registry or image layout: their layers, for this machine.
//!
//! After the OCI image specification 1.1 ("image manifest", "image configuration", "layer"), and the forms of it
//! that Docker's tools write. Everything is as somebody pushed it, so kinds, digests and sizes are checked here,
//! before a layer is fetched.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::image::{Descriptor, Manifest, hex_of};
use super::index::entry_for;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::machine::Machine;
use longshore_core::space;
use longshore_core::store::Store;

/// Maximum number of layers: container runtimes mount at most 128.
const MOST_LAYERS: usize = 256;
/// Maximum size of all layers as they are fetched: images with a compiler have some hundred MiB.
const MOST_PACKED: u64 = 8 << 30;
/// Size that compressed files of a file system are assumed to unpack to, in their own sizes.
const UNPACKED: u64 = 2;
/// Media types of an image's configuration.
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
/// Media types of layers, without their compression.
const LAYERS: [&str; 2] =
    ["application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar"];
/// Compressions, as media types name them.
const COMPRESSIONS: [&str; 5] = ["", "+gzip", "+zstd", ".gzip", ".zstd"];

/// An image of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootImage {
    /// Its configuration.
    pub config: Descriptor,
    /// Its layers, the lowest first.
    pub layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// Returns the digest of the manifest for the machine `arch` (`uname -m`), where `bytes` are an image index; None
/// where they are no index.
///
/// # Errors
/// Exit code 13 where the index has none for that machine.
pub fn entry(bytes: &[u8], arch: &str, place: &str) -> Result<Option<String>, Failure> {
    entry_for(bytes, arch, place).map_err(|failure| failure.remedy(FOR_THIS_MACHINE))
}

const FOR_THIS_MACHINE: &str =
    "build the image for this machine's architecture, and name it by its digest";

impl RootImage {
    /// Parses the manifest of an image, from `place` (as messages call it).
    ///
    /// # Errors
    /// Exit code 13 where it is another kind of manifest, or its layers are of an unknown kind, too many or too
    /// large.
    pub fn parse(manifest: &[u8], place: &str) -> Result<Self, Failure> {
        let parsed: Manifest = serde_json::from_slice(manifest)
            .map_err(|e| wrong(place, "its manifest is none of an image").with_source(e))?;
        let kind = parsed.config.media_type.as_str();
        if !CONFIGS.contains(&kind) {
            let what =
                format!("it is no image of a file system, for its config is of type {kind:?}");
            return Err(wrong(place, &what));
        }
        let image = Self { config: parsed.config, layers: parsed.layers };
        image.check().map_err(|what| wrong(place, &what))?;
        Ok(image)
    }

    fn check(&self) -> Result<(), String> {
        if self.layers.is_empty() || self.layers.len() > MOST_LAYERS {
            return Err(format!(
                "it has {} layers, and 1 to {MOST_LAYERS} are read",
                self.layers.len()
            ));
        }
        for layer in &self.layers {
            if !is_layer(&layer.media_type) {
                return Err(format!("a layer is of the unknown type {:?}", layer.media_type));
            }
        }
        let mut all = self.layers.iter().chain([&self.config]);
        if let Some(bad) = all.find(|one| hex_of(&one.digest).is_none()) {
            return Err(format!("{:?} is no sha256 digest", bad.digest));
        }
        let size = self.layers.iter().try_fold(0u64, |sum, layer| sum.checked_add(layer.size));
        match size.filter(|size| *size <= MOST_PACKED) {
            Some(_) => Ok(()),
            None => Err(format!("its layers have more than {} GiB", MOST_PACKED >> 30)),
        }
    }

    /// Checks that the layers that the store lacks, and what all of them unpack to, fit into it, before a layer is
    /// written. `freed` bytes in it are removed before the first one is unpacked.
    ///
    /// # Errors
    /// Exit code 15 where they do not.
    pub fn check_space(&self, store: &Store, freed: u64) -> Result<(), Failure> {
        space::require(store.root(), self.space(|sha256| store.has_blob(sha256), freed))
    }

    /// Returns the bytes that are still to be written; a layer that comes twice lies there once.
    fn space(&self, has: impl Fn(&str) -> bool, freed: u64) -> u64 {
        let (mut seen, mut lacking, mut unpacked) = (BTreeSet::new(), 0u64, 0u64);
        for layer in self.layers.iter().filter(|layer| seen.insert(layer.digest.as_str())) {
            if !hex_of(&layer.digest).is_some_and(&has) {
                lacking = lacking.saturating_add(layer.size);
            }
            let is_compressed = !LAYERS.contains(&layer.media_type.as_str());
            unpacked = unpacked.saturating_add(unpacked_size(layer.size, is_compressed));
        }
        lacking.saturating_add(unpacked.saturating_sub(freed))
    }

    /// Checks that the image is for the machine `arch` (`uname -m`), by its configuration.
    ///
    /// # Errors
    /// Exit code 13 where the configuration is another one than the manifest's, or names another machine.
    pub fn check_platform(&self, config: &[u8], arch: &str, place: &str) -> Result<(), Failure> {
        if !self.config.describes(config) {
            return Err(wrong(place, "its configuration is not that of the manifest"));
        }
        let platform: Platform = serde_json::from_slice(config).map_err(|e| {
            wrong(place, "its configuration names no architecture and system").with_source(e)
        })?;
        let wanted = Machine::named(arch).map_or(arch, |machine| machine.debian);
        if platform.architecture == wanted && platform.os == "linux" {
            return Ok(());
        }
        let has = format!("{} {}", platform.os, platform.architecture);
        let what = format!("it is an image for {has:?}, and this machine is linux {wanted}");
        Err(wrong(place, &what).remedy(FOR_THIS_MACHINE))
    }
}

/// Returns the bytes that a tar file of `size` bytes is assumed to unpack to.
pub fn unpacked_size(size: u64, is_compressed: bool) -> u64 {
    if is_compressed { size.saturating_mul(UNPACKED) } else { size }
}

fn is_layer(media_type: &str) -> bool {
    let compression = LAYERS.iter().find_map(|kind| media_type.strip_prefix(kind));
    compression.is_some_and(|compression| COMPRESSIONS.contains(&compression))
}

fn wrong(place: &str, what: &str) -> Failure {
    Failure::new(FailureKind::Verification, format!("{place}: {what}"))
        .remedy("name an image that `docker build`, podman or buildah made, by its digest")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;

    const OCI: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

    fn manifest(config: &str, layer: &str, count: usize, size: u64) -> Value {
        let digest = format!("sha256:{}", "a".repeat(64));
        let layers: Vec<_> = (0..count)
            .map(|_| json!({"mediaType": layer, "digest": digest, "size": size}))
            .collect();
        let config = json!({"mediaType": config, "digest": digest, "size": 1});
        json!({"schemaVersion": 2, "config": config, "layers": layers})
    }

    fn parse(value: &Value) -> Result<RootImage, Failure> {
        RootImage::parse(value.to_string().as_bytes(), "here")
    }

    #[rstest]
    #[case::gzip(OCI)]
    #[case::plain("application/vnd.oci.image.layer.v1.tar")]
    #[case::zstd("application/vnd.oci.image.layer.v1.tar+zstd")]
    #[case::docker("application/vnd.docker.image.rootfs.diff.tar.gzip")]
    fn layers_of_every_tool_are_read(#[case] layer: &str) {
        let image = parse(&manifest(CONFIGS[0], layer, 2, 1 << 20)).expect("an image");
        assert_eq!(image.layers.len(), 2);
    }

    #[rstest]
    #[case::one(vec![u64::MAX / 2])]
    #[case::sum(vec![1 << 61, 1 << 61])]
    #[case::overflow(vec![u64::MAX, u64::MAX])]
    fn layers_that_do_not_fit_are_refused_before_they_are_fetched(#[case] sizes: Vec<u64>) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::at(dir.path(), Disk::default());
        let mut image = parse(&manifest(CONFIGS[0], OCI, sizes.len(), 1)).expect("an image");
        image.check_space(&store, 0).expect("fits");
        for ((layer, size), digit) in image.layers.iter_mut().zip(sizes).zip("ab".chars()) {
            layer.size = size;
            layer.digest = format!("sha256:{}", digit.to_string().repeat(64));
        }
        let failure = image.check_space(&store, 0).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert!(failure.to_string().contains("MiB free"), "{failure}");
    }

    #[rstest]
    #[case::nothing_stored(&[("a", OCI, 10), ("b", OCI, 100)], "", 0, 330)]
    #[case::one_stored(&[("a", OCI, 10), ("b", OCI, 100)], "b", 0, 230)]
    #[case::all_stored(&[("a", OCI, 10), ("b", OCI, 100)], "ab", 0, 220)]
    #[case::twice(&[("a", OCI, 10), ("a", OCI, 10)], "", 0, 30)]
    #[case::not_compressed(&[("a", LAYERS[0], 10), ("b", LAYERS[1], 100)], "a", 0, 210)]
    #[case::freed_before_the_unpacking(&[("a", OCI, 10)], "", 15, 15)]
    #[case::freed_after_the_copying(&[("a", OCI, 10)], "", 1000, 10)]
    #[case::overflow(&[("a", OCI, u64::MAX), ("b", OCI, u64::MAX)], "", 0, u64::MAX)]
    fn space_is_for_the_layers_that_lack_and_for_all_unpacked(
        #[case] layers: &[(&str, &str, u64)],
        #[case] stored: &str,
        #[case] freed: u64,
        #[case] wanted: u64,
    ) {
        let layer = |(digit, kind, size): &(&str, &str, u64)| Descriptor {
            size: *size,
            digest: format!("sha256:{}", digit.repeat(64)),
            ..Descriptor::for_bytes(kind, b"")
        };
        let config = Descriptor::for_bytes(CONFIGS[0], b"");
        let image = RootImage { config, layers: layers.iter().map(layer).collect() };
        assert_eq!(image.space(|sha256| stored.contains(&sha256[..1]), freed), wanted);
    }

    #[rstest]
    #[case::another_config(
        manifest("application/json", OCI, 1, 1),
        "is of type \"application/json\""
    )]
    #[case::no_layer(manifest(CONFIGS[0], OCI, 0, 1), "0 layers")]
    #[case::layer_bomb(manifest(CONFIGS[0], OCI, 300, 1), "300 layers")]
    #[case::large(manifest(CONFIGS[0], OCI, 2, 5 << 30), "more than 8 GiB")]
    #[case::overflow(manifest(CONFIGS[0], OCI, 2, u64::MAX), "more than 8 GiB")]
    #[case::encrypted(manifest(CONFIGS[0], &format!("{OCI}+encrypted"), 1, 1), "unknown type")]
    #[case::foreign(
        manifest(CONFIGS[0], "application/vnd.oci.image.layer.nondistributable.v1.tar", 1, 1),
        "unknown type"
    )]
    #[case::no_manifest(json!({"a": 1}), "its manifest is none of an image")]
    fn what_is_no_image_is_refused(#[case] value: Value, #[case] said: &str) {
        let failure = parse(&value).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.to_string().contains(said), "{failure}");
    }

    #[test]
    fn a_digest_that_is_none_is_refused() {
        let mut value = manifest(CONFIGS[0], OCI, 1, 1);
        value["layers"][0]["digest"] = "sha256:../../x".into();
        assert!(parse(&value).expect_err("refused").to_string().contains("no sha256 digest"));
    }

    #[rstest]
    #[case::this_one(r#"{"architecture":"amd64","os":"linux"}"#, None)]
    #[case::another(r#"{"architecture":"arm64","os":"linux"}"#, Some("for \"linux arm64\""))]
    #[case::another_system(
        r#"{"architecture":"amd64","os":"windows"}"#,
        Some("for \"windows amd64\"")
    )]
    #[case::none(r#"{"config":{}}"#, Some("names no architecture"))]
    fn the_machine_of_an_image_is_checked(#[case] config: &str, #[case] said: Option<&str>) {
        let config = config.as_bytes();
        let image =
            RootImage { config: Descriptor::for_bytes(CONFIGS[0], config), layers: Vec::new() };
        let checked = image.check_platform(config, "x86_64", "here");
        let text = checked.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert_eq!(checked.is_err(), said.is_some(), "{text}");
        assert!(said.is_none_or(|said| text.contains(said)), "{text}");
        let changed = image.check_platform(b"{}", "x86_64", "here").expect_err("another one");
        assert!(changed.to_string().contains("not that of the manifest"), "{changed}");
    }

    #[test]
    fn an_index_without_this_machine_says_so_and_what_to_do() {
        let bytes = br#"{"manifests": [{"digest": "x", "platform": {"architecture": "s390x"}}]}"#;
        let failure = entry(bytes, "x86_64", "here").expect_err("refused");
        assert!(failure.to_string().contains("it has s390x"), "{failure}");
        assert_eq!(failure.remedy_text(), Some(FOR_THIS_MACHINE));
        assert_eq!(entry(b"{}", "x86_64", "here").expect("no index"), None);
    }
}
