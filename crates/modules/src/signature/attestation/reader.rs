//! Reading of a set's attestations from the images that hold them, within limits: whoever can write
//! to a registry, a layout or a bundle decides how many there are.

use std::collections::BTreeSet;

use super::{Attestation, ENVELOPE_TYPE, IN_TOTO, MAX_ENVELOPE, MOST};
use crate::artifact::image::{Descriptor, Manifest};
use crate::signature::foreign::shortened_failure;
use longshore_core::failure::Failure;

/// Maximum size of all attestations of a set that are read.
pub(crate) const MAX_TOTAL: u64 = 8 << 20;

/// Attestations of a set that could be read, and the fault of one that could not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadAttestations {
    /// The attestations, none of them verified.
    pub attestations: Vec<Attestation>,
    /// Fault of the last one that could not be read, and does not count.
    pub damaged: Option<String>,
}

/// Reader of one set's attestations: each image and each envelope once, at most 64 of each, and 8 MiB
/// of envelopes over all images.
#[derive(Debug)]
pub struct AttestationReader {
    seen: BTreeSet<String>,
    images: usize,
    envelopes: usize,
    bytes: u64,
    found: ReadAttestations,
}

impl Default for AttestationReader {
    fn default() -> Self {
        Self {
            seen: BTreeSet::new(),
            images: MOST,
            envelopes: MOST,
            bytes: MAX_TOTAL,
            found: ReadAttestations::default(),
        }
    }
}

impl AttestationReader {
    /// Reads all attestations in `images`, each by its descriptor.
    pub fn read_all<'d>(
        images: impl Iterator<Item = &'d Descriptor>,
        read: &dyn Fn(&Descriptor) -> Result<Vec<u8>, Failure>,
    ) -> ReadAttestations {
        let mut reader = Self::default();
        for image in images {
            if !reader.wants(&image.digest) {
                continue;
            }
            match read(image) {
                Ok(manifest) => {
                    for layer in reader.layers(&manifest) {
                        reader.add(read(&layer));
                    }
                }
                Err(failure) => reader.add_damaged(&failure),
            }
        }
        reader.found
    }

    /// True if the image with this digest or tag is to be read: it was not read before, and the
    /// limits leave something.
    pub fn wants(&mut self, image: &str) -> bool {
        if self.images == 0 || self.envelopes == 0 || !self.seen.insert(image.to_owned()) {
            return false;
        }
        self.images -= 1;
        true
    }

    /// Returns the envelopes in an image's manifest that are to be read, the oldest first; of many, or
    /// of large ones, the newest. Other layers, those that were read, and those that are too large,
    /// are skipped.
    pub fn layers(&mut self, manifest: &[u8]) -> Vec<Descriptor> {
        let layers =
            serde_json::from_slice::<Manifest>(manifest).map_or_else(|_| Vec::new(), |m| m.layers);
        let mut found = Vec::new();
        for layer in layers.into_iter().rev().filter(is_envelope) {
            if self.envelopes == 0 || self.bytes <= layer.size {
                break;
            }
            if self.seen.insert(layer.digest.clone()) {
                self.envelopes -= 1;
                self.bytes -= layer.size;
                found.push(layer);
            }
        }
        found.reverse();
        found
    }

    /// Adds an envelope that was read. One that could not be read does not count, and does not keep
    /// others from counting.
    pub fn add(&mut self, envelope: Result<Vec<u8>, Failure>) {
        match envelope.map(Attestation::from_bytes) {
            Ok(Some(attestation)) => self.found.attestations.push(attestation),
            Ok(None) => self.found.damaged = Some("its envelope is not text".into()),
            Err(failure) => self.add_damaged(&failure),
        }
    }

    /// Adds the fault of an image or an envelope that could not be read.
    pub fn add_damaged(&mut self, failure: &Failure) {
        self.found.damaged = Some(shortened_failure(failure));
    }

    /// Returns the attestations read so far.
    pub fn found(&self) -> &ReadAttestations {
        &self.found
    }
}

fn is_envelope(layer: &Descriptor) -> bool {
    let kind = &layer.media_type;
    let is_of_type = kind == ENVELOPE_TYPE || kind.starts_with(IN_TOTO) && kind.ends_with("+dsse");
    is_of_type && layer.size <= MAX_ENVELOPE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::image::IMAGE_CONFIG_TYPE;
    use longshore_core::failure::FailureKind;
    use serde_json::{Value, json};
    use std::cell::Cell;

    fn envelope(name: u64, size: u64) -> Value {
        json!({"mediaType": ENVELOPE_TYPE, "digest": format!("sha256:{name:064}"), "size": size})
    }

    fn image(layers: &[Value]) -> Vec<u8> {
        let config = json!({"mediaType": IMAGE_CONFIG_TYPE, "digest": "sha256:0", "size": 1});
        json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string().into_bytes()
    }

    #[test]
    fn of_many_layers_the_newest_are_read_and_strange_ones_are_skipped() {
        let mut layers: Vec<Value> = (1..=100).map(|n| envelope(n, n)).collect();
        layers.push(envelope(0, MAX_ENVELOPE + 1));
        layers.push(json!({"mediaType": "text/plain", "digest": "sha256:0", "size": 1}));
        let found = AttestationReader::default().layers(&image(&layers));
        assert_eq!((found.len(), found[0].size, found[63].size), (MOST, 37, 100));
        assert!(AttestationReader::default().layers(b"{}").is_empty());
        let large: Vec<Value> = (0..20).map(|n| envelope(n, MAX_ENVELOPE)).collect();
        let found = AttestationReader::default().layers(&image(&large));
        assert_eq!(found.len(), 7, "less than 8 MiB");
    }

    #[test]
    fn the_limits_are_over_all_images_and_each_is_read_once() {
        let reads = Cell::new(0);
        // Two of three images are one; each has an envelope of its own, and 40 that both have.
        let read = |of: &Descriptor| {
            reads.set(reads.get() + 1);
            let shared = |own| (1..=40).map(|n| envelope(n, 1)).chain([envelope(own, 1)]).collect();
            let layers: Vec<Value> = match of.digest.as_str() {
                "a" => shared(100),
                "b" => shared(200),
                _ => return Ok(b"{}".to_vec()),
            };
            Ok(image(&layers))
        };
        let named =
            |digest: &str| Descriptor { digest: digest.into(), ..Descriptor::for_bytes("", b"") };
        let images = [vec![named("a"); 10_000], vec![named("b")]].concat();
        let found = AttestationReader::read_all(images.iter(), &read);
        assert_eq!((found.attestations.len(), reads.get()), (42, 2 + 42));

        reads.set(0);
        let images: Vec<_> = (0..10_000).map(|n| named(&format!("c{n}"))).collect();
        AttestationReader::read_all(images.iter(), &read);
        assert_eq!(reads.get(), MOST);

        let mut reader = AttestationReader::default();
        for n in 0..20 {
            reader.layers(&image(&[envelope(n, MAX_ENVELOPE)]));
        }
        assert_eq!(reader.bytes, MAX_ENVELOPE);
    }

    #[test]
    fn a_damaged_one_is_named_and_does_not_keep_others_from_counting() {
        let mut reader = AttestationReader::default();
        reader.add(Ok(b"{}".to_vec()));
        reader.add(Ok(vec![0xff]));
        assert_eq!(reader.found().damaged.as_deref(), Some("its envelope is not text"));
        let failure = Failure::new(FailureKind::Verification, "x".repeat(1000));
        reader.add(Err(failure));
        reader.add(Ok(b"[]".to_vec()));
        let found = reader.found();
        assert_eq!(found.attestations.len(), 2);
        assert!(found.damaged.as_deref().is_some_and(|why| why.len() < 310), "{found:?}");
    }
}
