//! Signatures of core objects: the same evidence as of a set, down to their record.

use super::{Evidence, NotSigned, Trust, verify};
use crate::artifact::core_objects::{CoreRecord, DescribedCore};

impl Evidence {
    /// Verifies that core objects are signed as `trust` requires, and not denied; returns the name of the key that signed
    /// them, where one is required. Attestations are required of sets alone.
    ///
    /// # Errors
    /// The reason why they do not count.
    pub fn core_meets(
        &self,
        record: &CoreRecord,
        trust: &Trust,
    ) -> Result<Option<String>, NotSigned> {
        trust.check_denied(&self.digest())?;
        let (manifest, config) = self.signed();
        let signed = DescribedCore::assemble(manifest.to_vec(), config.to_vec(), "what was signed")
            .map_err(|failure| NotSigned::Other(failure.one_line()))?;
        if signed.record != *record {
            return Err(NotSigned::Other("it has another key, or other objects".into()));
        }
        if !trust.required {
            return Ok(None);
        }
        verify(&signed.digest(), &self.signatures, &trust.module_keys())
            .map(Some)
            .map_err(|why| why.beside_too_large(self.too_large))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::*;
    use crate::artifact::image::Described;
    use crate::signature::Signature;
    use crate::signature::key::SecretKey;
    use crate::testing::{core_record, set};

    /// Evidence of core objects with a signature of the manifest with this digest.
    fn evidence(record: &CoreRecord, key: &SecretKey, digest: Option<String>) -> Evidence {
        let described = DescribedCore::from_record(record).expect("describes");
        let digest = digest.unwrap_or_else(|| described.digest());
        let signature = Signature::make(key, "registry.example.com/a", &digest).expect("signs");
        let DescribedCore { manifest, config, .. } = described;
        Evidence::new(manifest, config, vec![signature]).expect("evidence")
    }

    fn other_key() -> CoreRecord {
        let mut record = core_record();
        record.key = "9".repeat(64);
        record
    }

    fn digest_of(record: &CoreRecord) -> String {
        DescribedCore::from_record(record).expect("describes").digest()
    }

    #[rstest]
    #[case::signed(None, Ok(()))]
    #[case::of_a_set(Some(Described::from_set(&set()).expect("describes").digest()), Err("it is for sha256:"))]
    #[case::of_another_key(Some(digest_of(&other_key())), Err("it is for sha256:"))]
    fn a_signature_counts_for_these_objects_alone(
        #[case] signs: Option<String>,
        #[case] expected: Result<(), &str>,
    ) {
        let key = SecretKey::generate();
        let found = evidence(&core_record(), &key, signs);
        let met = found.core_meets(&core_record(), &Trust::in_keys([key.public()]));
        match expected {
            Ok(()) => assert!(met.expect("counts").is_some()),
            Err(said) => {
                let why = met.expect_err("refused").to_string();
                assert!(why.contains(said), "{why}");
            }
        }
    }

    #[test]
    fn the_signed_objects_of_one_key_are_none_of_another() {
        let key = SecretKey::generate();
        let trust = Trust::in_keys([key.public()]);
        let found = evidence(&other_key(), &key, None);
        assert!(matches!(found.core_meets(&core_record(), &trust), Err(NotSigned::Other(_))));
        // Evidence of a set, with its valid signature, is none of core objects; and the other way round.
        let of_set = Described::from_set(&set()).expect("describes");
        let signature = Signature::make(&key, "a", &of_set.digest()).expect("signs");
        let of_set = Evidence::new(of_set.manifest, of_set.config, vec![signature]).expect("text");
        of_set.meets(&set(), &trust).expect("counts for the set");
        assert!(matches!(of_set.core_meets(&core_record(), &trust), Err(NotSigned::Other(_))));
        let of_core = evidence(&core_record(), &key, None);
        assert!(matches!(of_core.meets(&set(), &trust), Err(NotSigned::Other(_))));
    }

    #[rstest]
    #[case::by_others(true, false, Some("another key"))]
    #[case::not_required(false, false, None)]
    #[case::denied(false, true, Some("is denied (denied-sets)"))]
    #[case::denied_and_required(true, true, Some("is denied (denied-sets)"))]
    fn trust_is_that_of_sets(
        #[case] required: bool,
        #[case] denied: bool,
        #[case] expected: Option<&str>,
    ) {
        let found = evidence(&core_record(), &SecretKey::generate(), None);
        let mut trust = Trust::in_keys([SecretKey::generate().public()]);
        trust.required = required;
        if denied {
            trust.denied = BTreeSet::from([found.digest()]);
        }
        let why = found.core_meets(&core_record(), &trust).err().map(|why| why.to_string());
        assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
        assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()));
    }

    #[test]
    fn without_any_signature_it_is_unsigned() {
        let DescribedCore { manifest, config, record } =
            DescribedCore::from_record(&core_record()).expect("describes");
        let found = Evidence::new(manifest, config, Vec::new()).expect("text");
        let trust = Trust::in_keys([SecretKey::generate().public()]);
        assert_eq!(found.core_meets(&record, &trust), Err(NotSigned::Unsigned));
    }
}
