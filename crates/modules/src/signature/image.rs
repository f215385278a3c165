//! Signatures of a manifest as an image, and their reading from such images within limits: whoever can write to a
//! registry, a layout or a bundle decides how many there are, and how large.

use super::foreign::is_json_text;
use super::{MOST, Signature, payload, signature_tag};
use crate::artifact::image::{Descriptor, Manifest, json};
use longshore_core::failure::{Failure, FailureKind};

/// Media type of a payload.
const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Media type of the config beside them; cosign stores signatures as an image.
pub(super) const IMAGE_CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
/// The annotation with the signature.
pub(super) const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Maximum size of a payload. cosign's have 250 bytes, and the annotations of `cosign sign -a`.
pub const MAX_PAYLOAD: u64 = 64 << 10;
/// Maximum length of a signature in base64. One of P-256 has 96 characters, one of RSA with 8192 bits 1368.
pub(super) const MAX_SIGNATURE: usize = 2 << 10;

/// Signatures as an image, stored under [`signature_tag`].
#[derive(Debug, Clone)]
pub struct SignatureImage {
    /// The manifest.
    pub manifest: Vec<u8>,
    /// Config and payloads.
    pub blobs: Vec<Vec<u8>>,
}

impl SignatureImage {
    /// Returns an image of these signatures; None where there are none.
    ///
    /// # Errors
    /// As [`SignatureImage::with`].
    pub fn from_signatures(signatures: &[Signature]) -> Result<Option<Self>, Failure> {
        let mut whole: Option<Self> = None;
        for signature in signatures {
            let existing = whole.as_ref().map(|image| image.manifest.as_slice());
            let Some(next) = Self::with(existing, signature)? else { continue };
            let payloads = whole.into_iter().flat_map(|image| image.blobs.into_iter().skip(1));
            let mut blobs: Vec<_> = next.blobs;
            blobs.splice(1..1, payloads);
            whole = Some(Self { manifest: next.manifest, blobs });
        }
        Ok(whole)
    }

    /// Returns the image whose manifest is `existing` with `signature` added; None where it has it
    /// already.
    ///
    /// # Errors
    /// Exit code 13 where `existing` is no image with layers of signatures alone: it is not replaced.
    pub fn with(existing: Option<&[u8]>, signature: &Signature) -> Result<Option<Self>, Failure> {
        let mut layers = match existing {
            Some(bytes) => signature_layers(bytes).ok_or_else(|| {
                let tag = payload::digest_in(&signature.payload).map(|of| signature_tag(&of));
                let tag = tag.unwrap_or_else(|_| "of the signatures".to_owned());
                let cause = format!("the tag {tag} has no image of signatures");
                Failure::new(FailureKind::Verification, cause).remedy("remove that tag")
            })?,
            None => Vec::new(),
        };
        let mut layer = Descriptor::for_bytes(PAYLOAD_TYPE, signature.payload.as_bytes());
        layer.annotations.insert(SIGNATURE.to_owned(), signature.signature.clone());
        if layers.contains(&layer) {
            return Ok(None);
        }
        layers.push(layer);
        let config = image_config(&layers)?;
        let manifest =
            Manifest::new(None, Descriptor::for_bytes(IMAGE_CONFIG_TYPE, &config), layers);
        let payload = signature.payload.clone().into_bytes();
        Ok(Some(Self { manifest: json(&manifest)?, blobs: vec![config, payload] }))
    }
}

/// Returns the layers of an image of signatures; None where it is something else.
fn signature_layers(manifest: &[u8]) -> Option<Vec<Descriptor>> {
    let layers = serde_json::from_slice::<Manifest>(manifest).ok()?.layers;
    layers.iter().all(|layer| layer.media_type == PAYLOAD_TYPE).then_some(layers)
}

/// Returns an image's config that lists only its layers, as cosign's does.
pub(super) fn image_config(layers: &[Descriptor]) -> Result<Vec<u8>, Failure> {
    let ids: Vec<&str> = layers.iter().map(|l| l.digest.as_str()).collect();
    let history: Vec<_> =
        layers.iter().map(|_| serde_json::json!({"created": "0001-01-01T00:00:00Z"})).collect();
    json(&serde_json::json!({
        "architecture": "",
        "created": "0001-01-01T00:00:00Z",
        "history": history,
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": ids},
        "config": {},
    }))
}

/// A layer of an image of signatures.
#[derive(Debug, Clone)]
pub struct SignatureLayer {
    /// `sha256:...` of the payload.
    pub digest: String,
    /// Bytes of the payload, at most [`MAX_PAYLOAD`].
    pub size: u64,
    signature: String,
}

/// Signatures of a manifest that were read, none of them verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadSignatures {
    /// The signatures.
    pub signatures: Vec<Signature>,
    /// Number of those that were not read, because payload or signature is too large.
    pub too_large: usize,
}

/// Reader of one manifest's signatures: at most 64 over all images that hold them, of 64 KiB at most each.
#[derive(Debug)]
pub struct SignatureReader {
    left: usize,
    found: ReadSignatures,
}

impl From<Vec<Signature>> for ReadSignatures {
    fn from(signatures: Vec<Signature>) -> Self {
        Self { signatures, too_large: 0 }
    }
}

impl Default for SignatureReader {
    fn default() -> Self {
        Self { left: MOST, found: ReadSignatures::default() }
    }
}

/// Reader of a blob by its descriptor, of so many bytes at most.
type ReadBlob<'r> = dyn Fn(&Descriptor, u64) -> Result<Vec<u8>, Failure> + 'r;

impl SignatureReader {
    /// Reads all signatures in `images`, each by its descriptor.
    ///
    /// # Errors
    /// As `read`, which gets a limit of bytes beside the descriptor.
    pub fn read_all<'d>(
        images: impl Iterator<Item = &'d Descriptor>,
        max_image: u64,
        read: &ReadBlob<'_>,
    ) -> Result<ReadSignatures, Failure> {
        let mut reader = Self::default();
        for image in images {
            if reader.left == 0 {
                break;
            }
            for layer in reader.layers(&read(image, max_image)?) {
                let payload = read(&layer.descriptor(), MAX_PAYLOAD)?;
                reader.add(layer, payload);
            }
        }
        Ok(reader.found)
    }

    /// Returns the signatures in an image's manifest that are to be read. Other layers than cosign's are skipped;
    /// those that are too large are counted.
    pub fn layers(&mut self, manifest: &[u8]) -> Vec<SignatureLayer> {
        let layers =
            serde_json::from_slice::<Manifest>(manifest).map_or_else(|_| Vec::new(), |m| m.layers);
        let mut found = Vec::new();
        for mut layer in layers.into_iter().filter(|layer| layer.media_type == PAYLOAD_TYPE) {
            if self.left == 0 {
                break;
            }
            let Some(signature) = layer.annotations.remove(SIGNATURE) else { continue };
            self.left -= 1;
            if layer.size > MAX_PAYLOAD || signature.len() > MAX_SIGNATURE {
                self.found.too_large += 1;
                continue;
            }
            found.push(SignatureLayer { digest: layer.digest, size: layer.size, signature });
        }
        found
    }

    /// Adds a signature whose payload was read. A payload that is no JSON text cannot count, and is left out.
    pub fn add(&mut self, layer: SignatureLayer, payload: Vec<u8>) {
        let text = String::from_utf8(payload).ok();
        let text = text.filter(|text| is_json_text(text) && is_json_text(&layer.signature));
        let signature = layer.signature;
        self.found.signatures.extend(text.map(|payload| Signature { payload, signature }));
    }

    /// Returns the signatures read so far.
    pub fn into_found(self) -> ReadSignatures {
        self.found
    }
}

impl SignatureLayer {
    /// Returns the descriptor of the payload.
    pub fn descriptor(&self) -> Descriptor {
        let mut payload = Descriptor::for_bytes(PAYLOAD_TYPE, b"");
        (payload.digest, payload.size) = (self.digest.clone(), self.size);
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn layer(size: u64, signature: &str) -> Value {
        let annotations = json!({SIGNATURE: signature});
        json!({"mediaType": PAYLOAD_TYPE, "digest": "sha256:0", "size": size, "annotations": annotations})
    }

    fn image(layers: &[Value]) -> Vec<u8> {
        let config = json!({"mediaType": IMAGE_CONFIG_TYPE, "digest": "sha256:0", "size": 1});
        json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string().into_bytes()
    }

    #[test]
    fn large_signatures_are_counted_and_not_read() {
        let long = "a".repeat(MAX_SIGNATURE + 1);
        let layers = [
            layer(250, "a"),
            layer(MAX_PAYLOAD, "b"),
            layer(MAX_PAYLOAD + 1, "c"),
            layer(4 << 20, "d"),
            layer(250, &long),
            json!({"mediaType": PAYLOAD_TYPE, "digest": "sha256:0", "size": 1}),
            json!({"mediaType": "text/plain", "digest": "sha256:0", "size": 1}),
        ];
        let mut reader = SignatureReader::default();
        let found = reader.layers(&image(&layers));
        assert_eq!(found.iter().map(|l| l.size).collect::<Vec<_>>(), [250, MAX_PAYLOAD]);
        assert_eq!(reader.into_found().too_large, 3);
        assert!(SignatureReader::default().layers(b"{}").is_empty());
    }

    #[test]
    fn the_limit_is_over_all_images() {
        let many = image(&vec![layer(1, "a"); 40]);
        let read = |of: &Descriptor, _: u64| {
            Ok(if of.digest == "image" { many.clone() } else { b"{}".to_vec() })
        };
        let mut named = Descriptor::for_bytes("", b"");
        named.digest = "image".into();
        let images = vec![named; 64];
        let found = SignatureReader::read_all(images.iter(), 1, &read).expect("reads");
        assert_eq!(found.signatures.len(), MOST);
    }

    #[test]
    fn a_payload_that_is_no_json_text_is_left_out() {
        let mut reader = SignatureReader::default();
        for payload in [&b"{\n\t}"[..], b"{\0}", b"\x1b[m", &[0xff]] {
            for layer in reader.layers(&image(&[layer(1, "a")])) {
                reader.add(layer, payload.to_vec());
            }
        }
        let found = reader.into_found().signatures;
        assert_eq!(found.iter().map(|s| s.payload.as_str()).collect::<Vec<_>>(), ["{\n\t}"]);
    }
}
