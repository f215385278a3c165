//! Blobs by their digests, in a registry that has them, lacks them, denies them, or serves other bytes.

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rstest::rstest;

use super::*;
use crate::artifact::image::digest;
use crate::registry::RegistrySource;
use crate::registry::stand_in::StandIn;
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_core::progress::{Progress, Silent, Unit};
use longshore_fetch::http::{Policy, ReadOnce};

const FILE: &[u8] = b"the bytes of a file";

/// Ways to fetch a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Head,
    Stream,
    Store,
}

/// A repository with a mirror, and a store.
struct Scene {
    dir: tempfile::TempDir,
    own: StandIn,
    mirror: StandIn,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        Self { dir, own: StandIn::start(), mirror: StandIn::start() }
    }

    fn store(&self) -> Store {
        Store::open(self.dir.path(), Disk::default()).expect("store")
    }

    /// Fetches the file, or its first four bytes.
    async fn fetch(&self, way: Way) -> Result<Vec<u8>, Failure> {
        let (reference, mirrors) = (self.own.repository(), vec![self.mirror.repository()]);
        let source = RegistrySource { reference, mirrors };
        let policy = Policy { attempts: 1, ..Policy::default() };
        let registry = Registry::open_with(policy, &source, Path::new("/"), &|_| None)?;
        let task = Silent.begin("", None, Unit::Bytes);
        let (sha256, store) = (sha256(), self.store());
        match way {
            Way::Head => registry.blob_head(&sha256, 4).await,
            Way::Store => {
                registry.pull_blob(&sha256, &store, task.as_ref()).await?;
                store.read_blob(&sha256)
            }
            Way::Stream => {
                let read = Arc::new(Mutex::new(Vec::new()));
                let kept = Arc::clone(&read);
                let reader: Reader = Arc::new(move || {
                    let kept = Arc::clone(&kept);
                    let once: ReadOnce = Box::new(move |from: &mut dyn Read| {
                        let mut bytes = Vec::new();
                        from.read_to_end(&mut bytes).expect("read");
                        *kept.lock().expect("unpoisoned") = bytes;
                        Ok(())
                    });
                    once
                });
                registry.stream_blob(&sha256, 1 << 20, &reader, task.as_ref()).await?;
                Ok(read.lock().expect("unpoisoned").clone())
            }
        }
    }
}

fn sha256() -> String {
    digest(FILE).trim_start_matches("sha256:").to_owned()
}

fn path() -> String {
    format!("blobs/{}", digest(FILE))
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_blob_is_fetched_from_the_mirror_or_else_from_the_repository(
    #[values(Way::Head, Way::Stream, Way::Store)] way: Way,
    #[values(true, false)] mirrored: bool,
) {
    let scene = Scene::new();
    scene.own.put_blob(FILE);
    if mirrored {
        scene.mirror.put_blob(FILE);
    }
    let wanted = if way == Way::Head { &FILE[..4] } else { FILE };
    assert_eq!(scene.fetch(way).await.expect("fetched"), wanted);
    assert_eq!(scene.mirror.requests(), [format!("GET {}", path())]);
    assert_eq!(scene.own.requests().len(), usize::from(!mirrored));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_absent_blob_is_named_by_repository_and_digest(
    #[values(Way::Head, Way::Stream, Way::Store)] way: Way,
) {
    let scene = Scene::new();
    let failure = scene.fetch(way).await.expect_err("absent");
    assert_eq!(failure.code(), ExitCode::Download);
    let wanted = format!("{} has no blob {}", scene.own.repository(), digest(FILE));
    assert_eq!(failure.to_string(), wanted);
    assert!(failure.remedy_or_default().contains("oras push"), "{}", failure.report());
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_blob_has_the_remedy_of_a_login(
    #[values(Way::Head, Way::Stream, Way::Store)] way: Way,
) {
    let scene = Scene::new();
    scene.own.put_blob(FILE);
    scene.own.deny(&path());
    let failure = scene.fetch(way).await.expect_err("denied");
    assert_eq!(failure.code(), ExitCode::Download);
    let report = failure.report();
    for said in ["does not grant access", "DOCKER_CONFIG"] {
        assert!(report.contains(said), "{report}");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_are_refused_and_not_kept(#[values(Way::Stream, Way::Store)] way: Way) {
    let scene = Scene::new();
    scene.own.put_blob(FILE);
    scene.own.replace(&path(), Some(b"other bytes"));
    let failure = scene.fetch(way).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(!scene.store().has_blob(&sha256()));
    // The repository's wrong bytes count more than the mirror's lack.
    assert_eq!(scene.mirror.requests().len(), 1);
}
