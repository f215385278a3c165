//! Images of a file system in a registry or image layout: their layers, for this machine.
//!
//! After the OCI image specification 1.1 ("image manifest", "image configuration", "layer"), and the forms of it
//! that Docker's tools write. Everything is as somebody pushed it, so kinds, digests and sizes are checked here,
//! before a layer is fetched.

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
/// Size of an image's layers and of what they unpack to, in sizes of its layers.
const WITH_UNPACKED: u64 = 3;
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

    /// Checks that the layers and what they unpack to fit into the store, before a layer is written.
    ///
    /// # Errors
    /// Exit code 15 where they do not.
    pub fn check_space(&self, store: &Store) -> Result<(), Failure> {
        let sizes = self.layers.iter().map(|layer| layer.size);
        let size = sizes.fold(0, u64::saturating_add);
        space::require(store.root(), size.saturating_mul(WITH_UNPACKED))
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
        image.check_space(&store).expect("fits");
        for (layer, size) in image.layers.iter_mut().zip(sizes) {
            layer.size = size;
        }
        let failure = image.check_space(&store).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert!(failure.to_string().contains("MiB free"), "{failure}");
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
        let image = RootImage { config: Descriptor::of(CONFIGS[0], config), layers: Vec::new() };
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
