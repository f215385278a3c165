//! Build claims in a registry: the manifest under one tag names the builder in an annotation.
//!
//! Registries have no compare-and-swap, and many do not allow deletion. One tag for each piece of
//! work is overwritten again and again, so that claims do not accumulate; deletion is by digest,
//! which never removes a claim that another agent has written meanwhile.

use std::collections::BTreeMap;

use reqwest::{Method, StatusCode};
use tokio::sync::OnceCell;

use crate::build_lease::{Claim, LeaseBackend, StoredClaim};
use longshore_core::failure::Failure;
use longshore_modules::artifact::image::{Descriptor, MANIFEST_TYPE, Manifest, digest, json};
use longshore_modules::registry::Registry;
use longshore_modules::registry::call::Call;
use longshore_modules::registry::manifests::{manifest, overwrite_manifest};
use longshore_modules::registry::push::ensure_blob;
use longshore_modules::registry::session::Session;

/// `artifactType` of a claim's manifest.
pub const CLAIM_TYPE: &str = "application/vnd.longshore.claim.v1";
/// Media type of an empty config (OCI image specification 1.1, "guidance for an empty descriptor").
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
const EMPTY: &[u8] = b"{}";
/// The annotation with the claim, as JSON.
const ANNOTATION: &str = "longshore.claim";

/// The claim under one tag of a registry.
pub struct ClaimTag {
    registry: Registry,
    tag: String,
    /// Set once the registry has the blob that every claim's manifest names.
    ready: OnceCell<()>,
}

impl ClaimTag {
    /// Returns the claim under `tag`; the registry must have been opened for pushing.
    pub fn new(registry: Registry, tag: String) -> Self {
        Self { registry, tag, ready: OnceCell::new() }
    }

    fn session(&self) -> Result<&Session, Failure> {
        self.registry.only()
    }
}

impl LeaseBackend for ClaimTag {
    const COMPARES: bool = false;

    async fn prepare(&self) -> Result<(), Failure> {
        let prepare = async || ensure_blob(self.session()?, EMPTY).await.map(drop);
        self.ready.get_or_try_init(prepare).await.map(drop)
    }

    async fn read(&self) -> Result<Option<StoredClaim>, Failure> {
        let Some(bytes) = manifest(self.session()?, &self.tag).await? else { return Ok(None) };
        let Some(claim) = parse(&bytes) else {
            let place = format!("{}:{}", self.registry.name(), self.tag);
            tracing::warn!("{place} is not a valid claim, overwriting it");
            return Ok(None);
        };
        Ok(Some(StoredClaim { mark: digest(&bytes), claim }))
    }

    async fn write(&self, claim: &Claim, _: Option<&str>) -> Result<Option<String>, Failure> {
        let session = self.session()?;
        let bytes = render(claim)?;
        overwrite_manifest(session, &self.tag, &bytes).await?;
        Ok(Some(digest(&bytes)))
    }

    async fn withdraw(&self, mark: &str) -> Result<bool, Failure> {
        let session = self.session()?;
        let call = Call::new(Method::DELETE, session.url(&format!("manifests/{mark}"))?);
        match session.exchange(&call).await {
            Ok(answer) => {
                let gone = answer.status == StatusCode::NOT_FOUND;
                Ok(answer.status.is_success() || gone)
            }
            // A user with write access may lack delete access.
            Err(failure) => {
                tracing::debug!("cannot delete claims: {}", failure.one_line());
                Ok(false)
            }
        }
    }
}

fn render(claim: &Claim) -> Result<Vec<u8>, Failure> {
    let text = String::from_utf8_lossy(&json(claim)?).into_owned();
    let empty = Descriptor::for_bytes(EMPTY_TYPE, EMPTY);
    json(&Manifest {
        schema_version: 2,
        media_type: Some(MANIFEST_TYPE.to_owned()),
        artifact_type: Some(CLAIM_TYPE.to_owned()),
        config: empty.clone(),
        layers: vec![empty],
        subject: None,
        annotations: BTreeMap::from([(ANNOTATION.to_owned(), text)]),
    })
}

fn parse(bytes: &[u8]) -> Option<Claim> {
    let manifest: Manifest = serde_json::from_slice(bytes).ok()?;
    serde_json::from_str(manifest.annotations.get(ANNOTATION)?).ok()
}
