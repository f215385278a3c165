//! Image indexes: lists of manifests, of a layout, of a set's referrers, or one per architecture
//! under one tag.
//!
//! longshore pushes none of the last kind: the architecture is in its tags. Other tools may put its
//! sets into one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::image::{Descriptor, INDEX_TYPE};
use longshore_core::digest::is_sha256;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::machine::Machine;

/// An index, as the file `index.json` of a layout.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Version of its schema: 2.
    pub schema_version: u8,
    /// Its own media type.
    #[serde(default)]
    pub media_type: Option<String>,
    /// Its manifests.
    pub manifests: Vec<Descriptor>,
    /// All other fields, kept as they are.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

impl Default for Index {
    /// An index without any manifest.
    fn default() -> Self {
        Self {
            schema_version: 2,
            media_type: Some(INDEX_TYPE.to_owned()),
            manifests: Vec::new(),
            other: BTreeMap::new(),
        }
    }
}

#[derive(Deserialize)]
struct Platforms {
    manifests: Vec<IndexEntry>,
}

#[derive(Deserialize)]
struct IndexEntry {
    digest: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
}

/// Returns the digest (`sha256:...`) of an index's manifest for the machine `arch` (`uname -m`);
/// None if `bytes` are no index. `place` names it in messages.
///
/// # Errors
/// Exit code 13 where the index has no such entry.
pub fn entry_for(bytes: &[u8], arch: &str, place: &str) -> Result<Option<String>, Failure> {
    let Ok(index) = serde_json::from_slice::<Platforms>(bytes) else { return Ok(None) };
    // Go's name of an architecture, which image indexes have: Debian's is the same.
    let wanted = Machine::named(arch).map_or(arch, |machine| machine.debian);
    let architecture = |entry: &IndexEntry| entry.platform.as_ref().map(|p| p.architecture.clone());
    let digest = |entry: &IndexEntry| entry.digest.strip_prefix("sha256:").is_some_and(is_sha256);
    let fits =
        |entry: &&IndexEntry| digest(entry) && architecture(entry).as_deref() == Some(wanted);
    if let Some(entry) = index.manifests.iter().find(fits) {
        return Ok(Some(entry.digest.clone()));
    }
    let mut has: Vec<String> = index.manifests.iter().filter_map(architecture).collect();
    has.sort();
    has.dedup();
    let has = if has.is_empty() { "none at all".to_owned() } else { has.join(", ") };
    let what = format!("{place} is an index without an entry for {wanted}: it has {has}");
    Err(Failure::new(FailureKind::Verification, what)
        .remedy("push a set of modules that was built for this architecture"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;

    fn index(architectures: &[&str]) -> Vec<u8> {
        let entry = |architecture: &&str| {
            let digest = format!("sha256:{}", architecture.len().to_string().repeat(64));
            serde_json::json!({"digest": digest, "platform": {"architecture": architecture}})
        };
        let manifests: Vec<_> = architectures.iter().map(entry).collect();
        serde_json::json!({"schemaVersion": 2, "manifests": manifests}).to_string().into_bytes()
    }

    #[test]
    fn the_entry_for_this_machine_is_found() {
        let bytes = index(&["s390x", "amd64", "ppc64le"]);
        let found = entry_for(&bytes, "x86_64", "here").expect("an entry");
        assert_eq!(found, Some(format!("sha256:{}", "5".repeat(64))));
    }

    #[test]
    fn an_index_without_one_says_what_it_has() {
        for (has, said) in [(&["s390x", "arm64", "arm64"][..], "arm64, s390x"), (&[], "none")] {
            let failure = entry_for(&index(has), "x86_64", "here").expect_err("refused");
            assert_eq!(failure.code(), ExitCode::Verification);
            assert!(failure.to_string().contains(said), "{failure}");
        }
    }

    #[test]
    fn a_digest_that_is_none_is_no_entry() {
        let bytes =
            br#"{"manifests": [{"digest": "../x", "platform": {"architecture": "amd64"}}]}"#;
        entry_for(bytes, "x86_64", "here").expect_err("refused");
    }

    #[test]
    fn what_is_no_index_is_left_to_others() {
        for bytes in [&b""[..], b"{}", br#"{"manifests": 1}"#, br#"{"layers": []}"#] {
            assert_eq!(entry_for(bytes, "x86_64", "here").expect("no index"), None);
        }
    }
}
