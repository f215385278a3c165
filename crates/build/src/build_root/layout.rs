//! An OCI image layout with a build root: its manifest for this machine, and its layers in the store.

use std::io::{self, Read, Write};
use std::path::Path;

use serde::Deserialize;

use crate::outputs::OutputDir;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::store::Store;
use longshore_modules::artifact::image::{Descriptor, MAX_JSON, digest, hex_of};
use longshore_modules::artifact::root_image::{RootImage, entry};

/// File that marks a layout.
const MARK: &str = "oci-layout";

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

/// A layout.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    dir: &'a OutputDir,
    place: &'a str,
}

impl<'a> Layout<'a> {
    /// Returns the layout in a directory; None where it holds something else.
    pub(super) fn open(dir: &'a OutputDir, place: &'a str) -> Option<Self> {
        dir.file(MARK).is_ok().then_some(Self { dir, place })
    }

    /// Returns the digest (`sha256:...`) of its only manifest or index, or of the one for this machine.
    pub(super) fn digest(&self) -> Result<String, Failure> {
        let bytes = self.json(Path::new("index.json"))?;
        let index: Index = serde_json::from_slice(&bytes)
            .map_err(|e| self.wrong("index.json is malformed").with_source(e))?;
        let found = match index.manifests.as_slice() {
            [only] => Some(only.digest.clone()),
            _ => entry(&bytes, std::env::consts::ARCH, self.place)?,
        };
        let legal = found.filter(|digest| hex_of(digest).is_some());
        legal.ok_or_else(|| self.wrong("index.json names no sha256 digest"))
    }

    /// Copies the layers of the image with this digest into the store; returns them, the lowest first. `freed`
    /// bytes of the store's disk are removed before they are unpacked.
    pub(super) fn import(
        &self,
        digest: &str,
        store: &Store,
        freed: u64,
    ) -> Result<Vec<Descriptor>, Failure> {
        let mut bytes = self.blob(digest)?;
        if let Some(of_machine) = entry(&bytes, std::env::consts::ARCH, self.place)? {
            bytes = self.blob(&of_machine)?;
        }
        let image = RootImage::parse(&bytes, self.place)?;
        let config = self.blob(&image.config.digest)?;
        image.check_platform(&config, std::env::consts::ARCH, self.place)?;
        image.check_space(store, freed)?;
        for layer in &image.layers {
            self.import_layer(layer, store)?;
        }
        Ok(image.layers)
    }

    fn import_layer(&self, layer: &Descriptor, store: &Store) -> Result<(), Failure> {
        let sha256 = self.hex(&layer.digest)?;
        if store.has_blob(sha256) {
            return Ok(());
        }
        let unread = |e: io::Error| self.wrong(&format!("the layer {sha256}")).with_source(e);
        let file = self.dir.file(path(sha256)).map_err(unread)?;
        let (mut from, mut to) = (file.take(layer.size.saturating_add(1)), store.blob_writer()?);
        let mut buffer = vec![0; 1 << 16];
        loop {
            let n = from.read(&mut buffer).map_err(unread)?;
            if n == 0 {
                break;
            }
            to.write_all(&buffer[..n]).map_err(|e| write_failure(store.root(), e))?;
        }
        if to.size() != layer.size {
            return Err(self.wrong(&format!("the layer {sha256} is of another size")));
        }
        to.commit(Some(sha256)).map(drop)
    }

    /// Reads a manifest or configuration, verified.
    fn blob(&self, wanted: &str) -> Result<Vec<u8>, Failure> {
        let bytes = self.json(&path(self.hex(wanted)?))?;
        if digest(&bytes) == wanted {
            return Ok(bytes);
        }
        Err(self.wrong(&format!("the blob {wanted} has another digest")))
    }

    fn hex<'d>(&self, digest: &'d str) -> Result<&'d str, Failure> {
        hex_of(digest).ok_or_else(|| self.wrong(&format!("{digest:?} is no sha256 digest")))
    }

    fn json(&self, path: &Path) -> Result<Vec<u8>, Failure> {
        let read = self.dir.read(path, MAX_JSON);
        read.map_err(|e| self.wrong(&format!("reading {}", path.display())).with_source(e))
    }

    fn wrong(&self, what: &str) -> Failure {
        let cause = format!("the image layout {}: {what}", self.place);
        Failure::new(FailureKind::Verification, cause)
            .remedy("write the layout again, for example with `skopeo copy`")
    }
}

fn path(sha256: &str) -> std::path::PathBuf {
    Path::new("blobs/sha256").join(sha256)
}
