//! Pulling of an image's layers into the store.

use futures_util::{TryStreamExt, stream};

use super::content::{missing, small_blob};
use super::manifests::manifest;
use super::pull::{PARALLEL, fetch_blob};
use super::session::Session;
use crate::artifact::image::{Descriptor, hex_of};
use crate::artifact::root_image::{RootImage, entry};
use longshore_core::failure::Failure;
use longshore_core::progress::{Progress, Unit};
use longshore_core::store::Store;
use longshore_fetch::http::WriterGroup;

/// Pulls the layers of the image with the manifest or index `digest`, for this machine, from one repository.
pub(super) async fn image_from(
    session: &Session,
    digest: &str,
    store: &Store,
    progress: &dyn Progress,
) -> Result<Vec<Descriptor>, Failure> {
    let image = describe(session, digest).await?;
    image.check_space(store, 0)?;
    let what = format!("layers of {}", session.repository);
    let total = image.layers.iter().map(|layer| layer.size).sum();
    let task = progress.begin(&what, Some(total), Unit::Bytes);
    let writers = WriterGroup::default();
    let alive = writers.alive();
    let bring = |layer: &Descriptor| {
        let (layer, task) = (layer.clone(), task.as_ref());
        async move {
            let sha256 = hex_of(&layer.digest).unwrap_or_default();
            if store.has_blob(sha256) {
                task.advance(layer.size);
                return Ok(());
            }
            fetch_blob(session, sha256, layer.size, store, task, alive).await
        }
    };
    let layers = stream::iter(image.layers.iter().map(Ok));
    let fetched = layers.try_for_each_concurrent(PARALLEL, bring).await;
    // After a failure the other downloads were dropped; none may still write.
    writers.all_ended().await;
    fetched.map(|()| image.layers)
}

/// Fetches the manifest for this machine, and checks it with its configuration.
async fn describe(session: &Session, digest: &str) -> Result<RootImage, Failure> {
    let (arch, place) = (std::env::consts::ARCH, format!("{}@{digest}", session.repository));
    let absent = |digest: &str| missing(session, digest).remedy(ABSENT);
    let found = manifest(session, digest).await?;
    let mut bytes = found.ok_or_else(|| absent(digest))?;
    if let Some(entry) = entry(&bytes, arch, &place)? {
        bytes = manifest(session, &entry).await?.ok_or_else(|| absent(&entry))?;
    }
    let image = RootImage::parse(&bytes, &place)?;
    let config = small_blob(session, &image.config).await?;
    image.check_platform(&config, arch, &place)?;
    Ok(image)
}

const ABSENT: &str = "push the image again, or correct its digest; a mirror may lack it";
