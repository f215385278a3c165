use super::*;
use crate::artifact::image::Described;
use crate::signature::{Evidence, NotSigned, Signature, Trust, TrustEntry};
use crate::testing::{predicate as good, set};
use rstest::rstest;
use serde_json::{Value, json};

struct Scene {
    key: SecretKey,
    described: Described,
}

fn kind(text: &str) -> PredicateType {
    text.parse().expect("a type")
}

impl Scene {
    fn new() -> Self {
        Self {
            key: SecretKey::generate(),
            described: Described::from_set(&set()).expect("describes"),
        }
    }

    fn attest_of(&self, digest: &str, name: &str, predicate: Value) -> Attestation {
        Attestation::make(&self.key, "registry.example.com/a", digest, &kind(name), predicate)
            .expect("attests")
    }

    fn attest(&self, name: &str) -> Attestation {
        self.attest_of(&self.described.digest(), name, good(name))
    }

    /// Judges the signed set with these attestations, of which two types are required.
    fn judge(&self, attestations: Vec<Attestation>) -> Result<String, NotSigned> {
        let Described { manifest, config, set } = self.described.clone();
        let signature = Signature::make(&self.key, "a", &self.described.digest()).expect("signs");
        let evidence = Evidence::new(manifest, config, vec![signature]).expect("text");
        let evidence = evidence.with_attestations(ReadAttestations { attestations, damaged: None });
        // As it is kept in the store.
        let stored = serde_json::to_vec(&evidence).expect("JSON");
        let evidence: Evidence = serde_json::from_slice(&stored).expect("reads");
        let trust = Trust::in_keys([SecretKey::generate().public(), self.key.public()]);
        evidence.meets(&set, &trust.requiring(vec![kind("provenance"), kind("test-result")]))
    }
}

#[test]
fn a_set_with_every_required_attestation_counts_whatever_else_it_has() {
    let scene = Scene::new();
    let all = ["spdx", "test-result", "https://example.com/a", "provenance"];
    let mut attestations: Vec<_> = all.iter().map(|name| scene.attest(name)).collect();
    attestations.insert(1, Attestation("{".into()));
    scene.judge(attestations).expect("counts");
}

#[rstest]
#[case::none(|_: &Scene| vec![], "no attestation, and one of the type provenance")]
#[case::one_type(|s: &Scene| vec![s.attest("provenance")], "of the type test-result")]
#[case::of_another_key(
    |s: &Scene| vec![s.attest("provenance"), Scene { key: SecretKey::generate(), ..Scene::new() }.attest("test-result")],
    "another key"
)]
#[case::of_another_set(
    |s: &Scene| vec![s.attest("provenance"), s.attest_of(&format!("sha256:{}", "0".repeat(64)), "test-result", good("test-result"))],
    "it is for [\"000"
)]
#[case::no_envelope(
    |s: &Scene| vec![s.attest("provenance"), Attestation("not JSON".into())],
    "its envelope cannot be read"
)]
#[case::the_nearest_is_named(
    |s: &Scene| vec![s.attest("provenance"), Scene::new().attest("test-result"), s.attest("spdx")],
    "none of its 3 attestations is one of the type test-result by a configured key: it was made with another key"
)]
fn a_set_that_lacks_one_is_refused(
    #[case] make: fn(&Scene) -> Vec<Attestation>,
    #[case] expected: &str,
) {
    let scene = Scene::new();
    let why = scene.judge(make(&scene)).expect_err("refused");
    assert!(matches!(why, NotSigned::Unattested(_)), "{why}");
    assert!(why.to_string().contains(expected), "{why}");
}

#[test]
fn evidence_without_attestations_is_written_as_before_there_were_any() {
    let Described { manifest, config, .. } = Scene::new().described;
    let evidence = Evidence::new(manifest, config, Vec::new()).expect("text");
    let text = serde_json::to_string(&evidence).expect("JSON");
    assert!(!text.contains("attestations"), "{text}");
}

#[rstest]
#[case::tests_that_failed("test-result", json!({"result": "FAILED"}))]
#[case::no_object("https://example.com/a", json!("text"))]
#[case::too_large("https://example.com/a", json!({"a": "x".repeat(1 << 20)}))]
fn a_predicate_that_no_agent_would_accept_is_not_signed(#[case] name: &str, #[case] what: Value) {
    let scene = Scene::new();
    let digest = scene.described.digest();
    let made = Attestation::make(&scene.key, "a", &digest, &kind(name), what);
    let failure = made.expect_err("refused");
    assert_eq!(failure.code(), longshore_core::failure::ExitCode::Usage, "{}", failure.report());
    assert!(failure.remedy_text().is_some());
}

#[test]
fn all_attestations_are_added_by_one_manifest_that_refers_to_the_set() {
    let scene = Scene::new();
    let subject = scene.described.descriptor();
    let (one, other) = (scene.attest("provenance"), scene.attest("spdx"));
    let image = AttestationImage::with(None, &subject, std::slice::from_ref(&one)).expect("makes");
    let image = image.expect("an image");
    let both = AttestationImage::with(Some(&image.manifest), &subject, &[one, other.clone()]);
    let both = both.expect("makes").expect("an image");
    assert_eq!(both.blobs.len(), 2, "the config, and the one that was missing");
    let manifest: Value = serde_json::from_slice(&both.manifest).expect("JSON");
    assert_eq!(manifest["subject"]["digest"], scene.described.digest());
    assert_eq!(manifest["artifactType"], ATTESTATIONS_TYPE);
    let types: Vec<_> =
        (0..2).map(|i| &manifest["layers"][i]["annotations"]["predicateType"]).collect();
    assert_eq!(types, ["https://slsa.dev/provenance/v1", "https://spdx.dev/Document"]);
    let again = AttestationImage::with(Some(&both.manifest), &subject, &[other]).expect("makes");
    assert!(again.is_none(), "it has it already");
}

#[test]
fn an_image_without_attestations_is_not_replaced() {
    let scene = Scene::new();
    let (subject, attestations) = (scene.described.descriptor(), [scene.attest("provenance")]);
    for existing in [b"[]".as_slice(), scene.described.manifest.as_slice()] {
        let made = AttestationImage::with(Some(existing), &subject, &attestations);
        let Err(failure) = made else { panic!("replaced") };
        assert_eq!(failure.code(), longshore_core::failure::ExitCode::Verification);
        assert!(failure.report().contains("remove that tag"), "{}", failure.report());
    }
}

#[test]
fn the_fault_of_one_that_cannot_be_read_is_named() {
    let kind = kind("provenance");
    let beside = |why: NotAttested| why.beside(Some("cut off")).to_string();
    assert!(beside(NotAttested::Without(kind.clone())).ends_with("is required: cut off"));
    let wrong = NotAttested::Wrong { kind: kind.clone(), count: 1, why: "another key".into() };
    assert!(beside(wrong).ends_with("another key; another cannot be read: cut off"));
    assert_eq!(NotAttested::Without(kind.clone()).beside(None), NotAttested::Without(kind));
}

#[test]
fn a_statement_is_not_parsed_before_its_signature_is_verified() {
    let (scene, other) = (Scene::new(), Scene::new());
    let failed = |of: &Scene| {
        let digest = scene.described.digest();
        let made = other.attest_of(&digest, "test-result", good("test-result"));
        let trust = Trust::in_keys([of.key.public()]);
        made.judge(&digest, &kind("provenance"), &trust).expect_err("refused").0
    };
    // The type of the statement is looked at only where one of the keys signed it.
    assert_eq!((failed(&scene), failed(&other)), (Fault::NotVerified, Fault::OtherType));
}

/// Trust in one key for modules, and in `entries` of key, roles and builder.
fn with_roles(scene: &Scene, entries: &[(&SecretKey, &str, Option<&str>)]) -> Trust {
    let dir = tempfile::tempdir().expect("dir");
    let write = |number: usize, key: &SecretKey| {
        let path = dir.path().join(format!("{number}.pub"));
        std::fs::write(&path, key.public_pem().expect("pem")).expect("writes");
        path
    };
    let entry = |(number, (key, roles, builder)): (usize, &(&SecretKey, &str, Option<&str>))| {
        let builder = builder.map(|uri| format!("={uri}")).unwrap_or_default();
        let text = format!("{roles}={}{builder}", write(number, key).display());
        text.parse::<TrustEntry>().expect("an entry")
    };
    let entries: Vec<_> = entries.iter().enumerate().map(entry).collect();
    Trust::read(true, &[write(99, &scene.key)], &entries).expect("reads")
}

const BUILDER: Option<&str> = Some("https://example.com/builder");
const OTHER: Option<&str> = Some("https://example.com/other");

#[rstest]
#[case::with_the_role(&[("provenance", None)], None)]
#[case::of_its_builder(&[("provenance", BUILDER)], None)]
#[case::of_one_of_two_builders(&[("provenance", OTHER), ("provenance", BUILDER)], None)]
#[case::without_the_role(&[("test-result+spdx", None)], Some("which has not the role provenance"))]
#[case::for_modules_alone(&[("modules", None)], Some("which has not the role provenance"))]
#[case::of_another_builder(
    &[("provenance", OTHER)],
    Some("its builder is \"https://example.com/builder\"")
)]
#[case::another_key_alone(&[], Some("it was made with another key"))]
fn an_attestation_counts_by_a_key_with_its_role(
    #[case] entries: &[(&str, Option<&str>)],
    #[case] refused: Option<&str>,
) {
    let scene = Scene::new();
    let (ci, stranger) = (SecretKey::generate(), SecretKey::generate());
    let mut all: Vec<_> = entries.iter().map(|(roles, builder)| (&ci, *roles, *builder)).collect();
    all.push((&stranger, "provenance", None));
    let trust = with_roles(&scene, &all);
    let (kind, digest) = (kind("provenance"), scene.described.digest());
    let made = Attestation::make(&ci, "a", &digest, &kind, good("provenance")).expect("attests");
    let verified = made.verify(&digest, &kind, &trust);
    assert_eq!(verified.is_err(), refused.is_some(), "{verified:?}");
    if let (Err(why), Some(said)) = (verified, refused) {
        assert!(why.contains(said), "{why}");
    }
    // The key that signs modules has that role alone beside entries.
    let own = scene.attest("provenance").verify(&digest, &kind, &trust).expect_err("refused");
    assert!(own.contains("99.pub, which has not the role provenance"), "{own}");
}
