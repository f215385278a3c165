//! Core objects of a source tree, the parts of NVIDIA's modules that depend on no kernel, as an OCI artifact: its
//! record, manifest and layers.
//!
//! Its types differ from those of a set in manifest and config: no manifest is both, so that a signature of one never
//! counts for the other. The record names the key, so that none counts for another key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::InputPackage;
use super::image::{Descriptor, MANIFEST_TYPE, Manifest, TITLE, digest, json};
use longshore_core::digest::is_sha256;
use longshore_core::failure::{Failure, FailureKind};

/// `artifactType` of the manifest.
pub const CORE_ARTIFACT_TYPE: &str = "application/vnd.longshore.core.v1";
/// Media type of the config blob: a [`CoreRecord`] as JSON.
pub(crate) const CORE_CONFIG_TYPE: &str = "application/vnd.longshore.core.config.v1+json";
/// Media type of a layer: one object, not compressed.
pub(crate) const CORE_OBJECT_TYPE: &str = "application/vnd.longshore.core.object.v1";
/// Paths of the objects among the kernel's sources, in the order of the layers.
pub const CORE_PATHS: [&str; 2] =
    ["nvidia-modeset/nv-modeset-kernel.o_binary", "nvidia/nv-kernel.o_binary"];
/// Maximum size of an object in bytes; nv-kernel.o has 60 MB.
pub const MAX_CORE_OBJECT: u64 = 512 << 20;
/// Maximum size of the config in bytes; one of 70 packages has 12 kB.
pub(crate) const MAX_CORE_CONFIG: u64 = 1 << 20;
/// Prefix of the artifact's tag.
const TAG: &str = "core-";
/// Version of the record's format.
const FORMAT: u32 = 1;
/// Maximum length of a text of the record: a compiler's version line, a package's name.
const MAX_TEXT: usize = 512;
/// Maximum number of packages in a record.
const MOST_PACKAGES: usize = 1000;

/// One object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreObject {
    /// sha256 (hex).
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// Request for core objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreQuery {
    /// Digest (hex) of everything that decides the objects.
    pub key: String,
    /// Driver version.
    pub version: String,
    /// sha256 (hex) of the tree.
    pub tree: String,
}

impl CoreQuery {
    /// Returns the tag of the artifact.
    pub fn tag(&self) -> String {
        format!("{TAG}{}", self.key)
    }
}

/// True if a tag is that of core objects: `core-` and the key.
pub fn is_core_tag(tag: &str) -> bool {
    tag.strip_prefix(TAG).is_some_and(is_sha256)
}

/// Core objects of one tree by one compiler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreRecord {
    format: u32,
    /// Digest (hex) of everything that decides the objects.
    pub key: String,
    /// Driver version.
    pub version: String,
    /// sha256 (hex) of the tree.
    pub tree: String,
    /// First line of the compiler's `--version`.
    pub compiler: String,
    /// The objects, by their paths among the kernel's sources ([`CORE_PATHS`]).
    pub objects: BTreeMap<String, CoreObject>,
    /// Packages of the root that compiled them; none where the root was given.
    pub packages: Vec<InputPackage>,
}

impl CoreRecord {
    /// Returns the record of objects that were compiled for `asked`.
    pub fn new(
        asked: CoreQuery,
        compiler: &str,
        objects: BTreeMap<String, CoreObject>,
        packages: Vec<InputPackage>,
    ) -> Self {
        let CoreQuery { key, version, tree } = asked;
        Self {
            format: FORMAT,
            key,
            version,
            tree,
            compiler: compiler.to_owned(),
            objects,
            packages,
        }
    }

    /// Returns the request that it answers.
    pub fn query(&self) -> CoreQuery {
        let [key, version, tree] = [&self.key, &self.version, &self.tree].map(Clone::clone);
        CoreQuery { key, version, tree }
    }

    /// Checks that it is what was asked for.
    ///
    /// # Errors
    /// A text that names the difference.
    pub fn check_asked(&self, asked: &CoreQuery) -> Result<(), String> {
        let of = self.query();
        let pairs = [
            ("key", of.key, &asked.key),
            ("source tree", of.tree, &asked.tree),
            ("driver version", of.version, &asked.version),
        ];
        match pairs.into_iter().find(|(_, found, wanted)| found != *wanted) {
            Some((what, found, wanted)) => Err(format!("its {what} is {found}, not {wanted}")),
            None => Ok(()),
        }
    }

    /// Checks the bounds of a record: others may have written it.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("its format is {}, and {FORMAT} is known", self.format));
        }
        if !is_sha256(&self.key) || !is_sha256(&self.tree) {
            return Err("its key or source tree is no sha256".into());
        }
        if !is_version(&self.version) {
            return Err("its driver version is none".into());
        }
        if self.compiler.len() > MAX_TEXT || self.compiler.chars().any(char::is_control) {
            return Err("its compiler is no line of text".into());
        }
        if !self.objects.keys().eq(CORE_PATHS.iter()) {
            return Err(format!("its objects are not exactly {}", CORE_PATHS.join(" and ")));
        }
        if let Some((path, _)) = self.objects.iter().find(|(_, object)| !object.is_bounded()) {
            return Err(format!("{path} has no sha256, or not 1 to {MAX_CORE_OBJECT} bytes"));
        }
        let is_package = |package: &InputPackage| {
            let InputPackage { name, version, arch, sha256 } = package;
            [name, version, arch].into_iter().all(|text| is_word(text)) && is_sha256(sha256)
        };
        if self.packages.len() > MOST_PACKAGES || !self.packages.iter().all(is_package) {
            return Err("its packages are none, or too many".into());
        }
        Ok(())
    }
}

impl CoreObject {
    fn is_bounded(&self) -> bool {
        is_sha256(&self.sha256) && (1..=MAX_CORE_OBJECT).contains(&self.size)
    }
}

/// True for two numbers or more with dots between: 580.142 is a version, too.
fn is_version(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    is_word(text) && text.contains('.') && text.split('.').all(is_number)
}

/// True for printable ASCII without spaces: names, versions and architectures of packages.
fn is_word(text: &str) -> bool {
    (1..=MAX_TEXT).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Core objects with the bytes that describe them, as they are stored and signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedCore {
    /// The manifest.
    pub manifest: Vec<u8>,
    /// The config.
    pub config: Vec<u8>,
    /// The record in it.
    pub record: CoreRecord,
}

impl DescribedCore {
    /// Describes core objects; the same record always gives the same bytes.
    ///
    /// # Errors
    /// Exit code 70; a record always serializes.
    pub fn from_record(record: &CoreRecord) -> Result<Self, Failure> {
        let config = json(record)?;
        let layers = record.objects.iter().map(|(path, object)| Descriptor {
            media_type: CORE_OBJECT_TYPE.to_owned(),
            digest: format!("sha256:{}", object.sha256),
            size: object.size,
            artifact_type: None,
            annotations: BTreeMap::from([(TITLE.to_owned(), path.clone())]),
            other: BTreeMap::new(),
        });
        let described = Descriptor::for_bytes(CORE_CONFIG_TYPE, &config);
        let mut manifest = Manifest::new(Some(CORE_ARTIFACT_TYPE), described, layers.collect());
        let version = "org.opencontainers.image.version".to_owned();
        manifest.annotations.insert(version, record.version.clone());
        Ok(Self { manifest: json(&manifest)?, config, record: record.clone() })
    }

    /// `sha256:...` of the manifest.
    pub fn digest(&self) -> String {
        digest(&self.manifest)
    }

    /// Parses a manifest and the config that it names, from `place` (as messages call it).
    ///
    /// # Errors
    /// Exit code 13 where they are no core objects, damaged or do not match.
    pub fn assemble(manifest: Vec<u8>, config: Vec<u8>, place: &str) -> Result<Self, Failure> {
        let parsed = parse_core_manifest(&manifest, place)?;
        if !parsed.config.describes(&config) {
            return Err(wrong(place, "their record does not match the manifest"));
        }
        let record: CoreRecord = serde_json::from_slice(&config)
            .map_err(|e| wrong(place, "their record is damaged").with_source(e))?;
        record.check().map_err(|why| wrong(place, &why))?;
        let layers = parsed.layers.iter().map(|layer| (layer.digest.clone(), layer.size));
        let objects = record.objects.values();
        if !layers.eq(objects.map(|one| (format!("sha256:{}", one.sha256), one.size))) {
            return Err(wrong(place, "the manifest's layers are not the objects of their record"));
        }
        Ok(Self { manifest, config, record })
    }
}

/// Parses the manifest of core objects, with both types; nothing that it names is read.
///
/// # Errors
/// Exit code 13 where it is of another kind, or its config too large.
pub(crate) fn parse_core_manifest(bytes: &[u8], place: &str) -> Result<Manifest, Failure> {
    let manifest: Manifest = serde_json::from_slice(bytes)
        .map_err(|e| wrong(place, "it is no manifest of core objects").with_source(e))?;
    let is_core = manifest.artifact_type.as_deref() == Some(CORE_ARTIFACT_TYPE)
        && manifest.media_type.as_deref() == Some(MANIFEST_TYPE)
        && manifest.config.media_type == CORE_CONFIG_TYPE
        && manifest.layers.iter().all(|layer| layer.media_type == CORE_OBJECT_TYPE);
    if !is_core {
        return Err(wrong(place, "its manifest is of another kind than core objects"));
    }
    if manifest.config.size > MAX_CORE_CONFIG {
        return Err(wrong(place, "their record is too large"));
    }
    Ok(manifest)
}

fn wrong(place: &str, what: &str) -> Failure {
    Failure::new(FailureKind::Verification, format!("{place}: {what}"))
        .remedy("remove the tag: the next push of a set that was linked from them pushes them, too")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::image::{ARTIFACT_TYPE, CONFIG_TYPE, Described, parse_manifest};
    use crate::testing::core_record;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[test]
    fn what_is_described_is_read_back() {
        let described = DescribedCore::from_record(&core_record()).expect("describes");
        let DescribedCore { manifest, config, .. } = described.clone();
        assert_eq!(DescribedCore::assemble(manifest, config, "a").expect("reads"), described);
    }

    #[rstest]
    #[case(&core_record().query().tag(), true)]
    #[case("core-580.142", false)]
    #[case("core-", false)]
    #[case("535.261.03-open-6.1.0-50-amd64-x86_64", false)]
    fn tags(#[case] tag: &str, #[case] expected: bool) {
        assert_eq!(is_core_tag(tag), expected);
    }

    #[rstest]
    #[case::same(|_: &mut CoreQuery| (), None)]
    #[case::key(|asked: &mut CoreQuery| asked.key = "9".repeat(64), Some("its key is"))]
    #[case::tree(|asked: &mut CoreQuery| asked.tree = "9".repeat(64), Some("its source tree is"))]
    #[case::version(|asked: &mut CoreQuery| asked.version = "580.1".into(), Some("its driver version is"))]
    fn another_is_told_by_its_difference(
        #[case] change: fn(&mut CoreQuery),
        #[case] expected: Option<&str>,
    ) {
        let mut asked = core_record().query();
        change(&mut asked);
        let why = core_record().check_asked(&asked).err();
        assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
        assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()));
    }

    /// Changes of a record, with the layers that belong to it.
    #[rstest]
    #[case::format(|r: &mut Value| r["format"] = json!(2), "format is 2")]
    #[case::key(|r: &mut Value| r["key"] = json!("../x"), "no sha256")]
    #[case::version(|r: &mut Value| r["version"] = json!("580"), "driver version")]
    #[case::version_of_a_path(|r: &mut Value| r["version"] = json!("580.1/../2"), "driver version")]
    #[case::compiler(|r: &mut Value| r["compiler"] = json!("gcc\u{1b}[2J"), "no line of text")]
    #[case::missing(|r: &mut Value| drop(r["objects"].as_object_mut().map(|o| o.remove(CORE_PATHS[0]))), "not exactly")]
    #[case::further(|r: &mut Value| r["objects"]["nvidia/z"] = r["objects"][CORE_PATHS[0]].clone(), "not exactly")]
    #[case::above(|r: &mut Value| r["objects"] = json!({"../a": r["objects"][CORE_PATHS[0]], CORE_PATHS[1]: r["objects"][CORE_PATHS[1]]}), "not exactly")]
    #[case::digest(|r: &mut Value| r["objects"][CORE_PATHS[0]]["sha256"] = json!("../../a"), "no sha256")]
    #[case::empty(|r: &mut Value| r["objects"][CORE_PATHS[0]]["size"] = json!(0), "bytes")]
    #[case::oversized(|r: &mut Value| r["objects"][CORE_PATHS[1]]["size"] = json!(MAX_CORE_OBJECT + 1), "bytes")]
    #[case::package(|r: &mut Value| r["packages"][0]["name"] = json!("gcc 12"), "packages")]
    #[case::many_packages(|r: &mut Value| r["packages"] = json!(vec![r["packages"][0].clone(); 1001]), "packages")]
    #[case::unknown_field(|r: &mut Value| r["more"] = json!(1), "damaged")]
    fn a_hostile_record_is_refused(#[case] change: fn(&mut Value), #[case] expected: &str) {
        let mut record = serde_json::to_value(core_record()).expect("JSON");
        change(&mut record);
        let config = record.to_string().into_bytes();
        let own = DescribedCore::from_record(&core_record()).expect("describes");
        let mut manifest: Value = serde_json::from_slice(&own.manifest).expect("JSON");
        manifest["config"] = json!(Descriptor::for_bytes(CORE_CONFIG_TYPE, &config));
        let objects = record["objects"].as_object().expect("objects").values();
        let layers = objects.map(|o| {
            json!({"mediaType": CORE_OBJECT_TYPE, "digest": format!("sha256:{}", o["sha256"].as_str().unwrap_or_default()), "size": o["size"]})
        });
        manifest["layers"] = layers.collect();
        let refused = DescribedCore::assemble(manifest.to_string().into_bytes(), config, "a");
        let said = refused.expect_err("refused");
        assert_eq!(said.kind(), FailureKind::Verification);
        assert!(said.one_line().contains(expected), "{}", said.one_line());
    }

    #[rstest]
    #[case::artifact(|m: &mut Value| m["artifactType"] = json!(ARTIFACT_TYPE), "another kind")]
    #[case::no_artifact(|m: &mut Value| drop(m.as_object_mut().map(|m| m.remove("artifactType"))), "another kind")]
    #[case::config(|m: &mut Value| m["config"]["mediaType"] = json!(CONFIG_TYPE), "another kind")]
    #[case::layer(|m: &mut Value| m["layers"][1]["mediaType"] = json!("text/plain"), "another kind")]
    #[case::config_size(|m: &mut Value| m["config"]["size"] = json!(MAX_CORE_CONFIG + 1), "too large")]
    #[case::config_digest(|m: &mut Value| m["config"]["digest"] = json!(digest(b"other")), "does not match")]
    #[case::layer_digest(|m: &mut Value| m["layers"][0]["digest"] = json!(digest(b"other")), "layers are not")]
    #[case::layer_size(|m: &mut Value| m["layers"][0]["size"] = json!(9), "layers are not")]
    #[case::layer_missing(|m: &mut Value| drop(m["layers"].as_array_mut().map(Vec::pop)), "layers are not")]
    #[case::layers_swapped(|m: &mut Value| m["layers"].as_array_mut().expect("layers").swap(0, 1), "layers are not")]
    #[case::no_manifest(|m: &mut Value| *m = json!({"manifests": []}), "no manifest")]
    fn a_hostile_manifest_is_refused(#[case] change: fn(&mut Value), #[case] expected: &str) {
        let own = DescribedCore::from_record(&core_record()).expect("describes");
        let mut manifest: Value = serde_json::from_slice(&own.manifest).expect("JSON");
        change(&mut manifest);
        let refused = DescribedCore::assemble(manifest.to_string().into_bytes(), own.config, "a");
        let said = refused.expect_err("refused").one_line();
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn no_manifest_is_both_a_set_and_core_objects() {
        let set = Described::from_set(&crate::testing::set()).expect("describes");
        let core = DescribedCore::from_record(&core_record()).expect("describes");
        parse_core_manifest(&set.manifest, "a").expect_err("a set");
        assert_eq!(parse_manifest(&core.manifest, "a").expect("parses"), None);
        for artifact in [ARTIFACT_TYPE, CORE_ARTIFACT_TYPE] {
            for config in [CONFIG_TYPE, CORE_CONFIG_TYPE] {
                let mut mixed: Value = serde_json::from_slice(&core.manifest).expect("JSON");
                mixed["artifactType"] = json!(artifact);
                mixed["config"]["mediaType"] = json!(config);
                let mixed = mixed.to_string().into_bytes();
                let is_set = parse_manifest(&mixed, "a").expect("parses").is_some();
                let is_core = parse_core_manifest(&mixed, "a").is_ok();
                assert!(is_set != is_core, "{artifact} {config}");
            }
        }
    }
}
