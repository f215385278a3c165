//! Small files of an artifact, under the titles that oras and other tools give its layers.

use std::collections::BTreeMap;

use super::content::find_small_blob;
use super::manifests::manifest;
use super::session::Session;
use super::{Registry, nobody};
use crate::artifact::image::{Manifest, hex_of};
use longshore_core::failure::{Failure, FailureKind};

/// Annotation of a layer with the name of its file, by the OCI image specification.
const TITLE: &str = "org.opencontainers.image.title";

/// Maximum number of files of an artifact.
const MOST_FILES: usize = 16;

/// Files by their titles.
pub type Files = BTreeMap<String, Vec<u8>>;

impl Registry {
    /// Fetches the files of an artifact by tag or digest (`sha256:...`), each of at most `most` bytes, and returns what
    /// `judge` makes of them, from the first repository whose files it takes. Every digest is verified; layers without a
    /// title are left out.
    ///
    /// # Errors
    /// Exit code 12 where no repository has it, or access is denied; 13 where it is no artifact of files, or one is too
    /// large or damaged; and those of `judge`.
    pub async fn files<T>(
        &self,
        reference: &str,
        most: u64,
        judge: impl Fn(Files) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut failed = None;
        for session in &self.sessions {
            match files_from(session, reference, most).await.and_then(&judge) {
                Ok(judged) => return Ok(judged),
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        Err(failed.unwrap_or_else(|| nobody(self.name())))
    }
}

async fn files_from(session: &Session, reference: &str, most: u64) -> Result<Files, Failure> {
    let separator = if hex_of(reference).is_some() { '@' } else { ':' };
    let place = format!("{}{separator}{reference}", session.repository);
    let wrong = |what: &str| {
        Failure::new(FailureKind::Verification, format!("{place}: {what}")).remedy(
            "push the artifact again; a mirror or proxy in between may serve something else",
        )
    };
    let absent = |what: &str| {
        Failure::new(FailureKind::Download, format!("{} has no {what}", session.repository))
            .remedy("push the artifact there, or correct its tag or digest")
    };
    let bytes = manifest(session, reference).await?.ok_or_else(|| absent(reference))?;
    let parsed: Manifest = serde_json::from_slice(&bytes).map_err(|error| {
        wrong("it is no artifact of files: its manifest is of another kind").with_source(error)
    })?;
    let titled: Vec<_> = parsed
        .layers
        .iter()
        .filter_map(|layer| Some((layer.annotations.get(TITLE)?, layer)))
        .collect();
    if titled.len() > MOST_FILES {
        return Err(wrong(&format!("it has {} files, more than {MOST_FILES}", titled.len())));
    }
    let mut files = Files::new();
    for (title, layer) in titled {
        if layer.size > most {
            let size = layer.size;
            return Err(wrong(&format!("{title:?} has {size} bytes, more than {most}")));
        }
        let file = find_small_blob(session, layer).await?.ok_or_else(|| absent(&layer.digest))?;
        if files.insert(title.clone(), file).is_some() {
            return Err(wrong(&format!("it has two files {title:?}")));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::stand_in::StandIn;
    use super::super::{Registry, RegistrySource};
    use super::*;
    use crate::artifact::image::digest;
    use longshore_core::failure::ExitCode;
    use longshore_fetch::http::Policy;

    const TABLE: &str = "format = 1\n";

    fn layer(title: Option<&str>, bytes: &str) -> Value {
        let (digest, size) = (digest(bytes.as_bytes()), bytes.len());
        let mut layer = json!({"mediaType": "text/plain", "digest": digest, "size": size});
        if let Some(title) = title {
            layer["annotations"] = json!({ TITLE: title });
        }
        layer
    }

    fn artifact(layers: &[Value]) -> Value {
        let config = layer(None, "{}");
        json!({"schemaVersion": 2, "config": config, "layers": layers})
    }

    /// A repository with a mirror.
    struct Scene {
        own: StandIn,
        mirror: StandIn,
    }

    impl Scene {
        /// Puts a manifest and the blobs of the tests into one of the two.
        fn with(is_own: bool, manifest: &Value) -> Self {
            let scene = Self { own: StandIn::start(), mirror: StandIn::start() };
            let to = if is_own { &scene.own } else { &scene.mirror };
            to.put_manifest("stable", manifest.to_string().as_bytes());
            for blob in [TABLE, "signature", "other"] {
                to.put_blob(blob.as_bytes());
            }
            scene
        }

        async fn files(&self) -> Result<Files, Failure> {
            self.judged(Ok).await
        }

        async fn judged<T>(
            &self,
            judge: impl Fn(Files) -> Result<T, Failure>,
        ) -> Result<T, Failure> {
            let (reference, mirrors) = (self.own.repository(), vec![self.mirror.repository()]);
            let source = RegistrySource { reference, mirrors };
            let policy = Policy { attempts: 1, ..Policy::default() };
            let registry = Registry::open_with(policy, &source, Path::new("/"), &|_| None)?;
            registry.files("stable", 16, judge).await
        }
    }

    #[rstest]
    #[case::of_the_repository(true)]
    #[case::of_its_mirror(false)]
    #[tokio::test]
    async fn files_have_the_titles_of_their_layers(#[case] is_own: bool) {
        let layers = [
            layer(Some("support.toml"), TABLE),
            layer(None, "other"),
            layer(Some("support.toml.sig"), "signature"),
        ];
        let files = Scene::with(is_own, &artifact(&layers)).files().await.expect("files");
        let named: Vec<_> = files.iter().map(|(title, bytes)| (&**title, &**bytes)).collect();
        let signature = &b"signature"[..];
        assert_eq!(named, [("support.toml", TABLE.as_bytes()), ("support.toml.sig", signature)]);
    }

    #[rstest]
    #[case::an_index(json!({"schemaVersion": 2, "manifests": []}), "is no artifact of files")]
    #[case::no_json(json!("text"), "is no artifact of files")]
    #[case::too_large(
        artifact(&[layer(Some("a"), "more than sixteen bytes")]),
        "\"a\" has 23 bytes, more than 16"
    )]
    #[case::two_of_a_name(
        artifact(&[layer(Some("a"), TABLE), layer(Some("a"), "other")]),
        "it has two files \"a\""
    )]
    #[case::many(
        artifact(&vec![layer(Some("a"), TABLE); MOST_FILES + 1]),
        "it has 17 files, more than 16"
    )]
    #[tokio::test]
    async fn no_artifact_of_files(#[case] manifest: Value, #[case] said: &str) {
        let failure = Scene::with(true, &manifest).files().await.expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification, "{failure}");
        assert!(failure.to_string().contains(said), "{failure}");
        assert!(failure.to_string().contains("/a:stable: "), "{failure}");
    }

    #[tokio::test]
    async fn other_bytes_are_refused_and_absent_ones_are_named() {
        let scene = Scene::with(true, &artifact(&[layer(Some("a"), TABLE)]));
        let path = format!("blobs/{}", digest(TABLE.as_bytes()));
        scene.own.replace(&path, Some(b"format = 2\n"));
        let failure = scene.files().await.expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification, "{failure}");
        scene.own.replace(&path, None);
        let failure = scene.files().await.expect_err("absent");
        assert_eq!(failure.code(), ExitCode::Download, "{failure}");
        scene.own.remove("manifests/stable");
        let failure = scene.files().await.expect_err("absent");
        assert!(failure.to_string().contains("has no stable"), "{failure}");
    }

    #[tokio::test]
    async fn files_that_are_refused_do_not_end_the_search() {
        let scene = Scene::with(true, &artifact(&[layer(Some("a"), "other")]));
        let newer = artifact(&[layer(Some("a"), TABLE)]).to_string();
        scene.mirror.put_manifest("stable", newer.as_bytes());
        scene.mirror.put_blob(TABLE.as_bytes());
        let table = |files: Files| {
            let found = files.into_values().find(|file| file == TABLE.as_bytes());
            found.ok_or_else(|| Failure::new(FailureKind::Verification, "no table"))
        };
        assert_eq!(scene.judged(table).await.expect("the mirror's"), TABLE.as_bytes());
        scene.mirror.remove("manifests/stable");
        let failure = scene.judged(table).await.expect_err("refused");
        assert_eq!(failure.to_string(), "no table");
    }
}
