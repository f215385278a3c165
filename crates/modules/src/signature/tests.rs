use super::*;
use crate::artifact::image::json;
use crate::testing::set;
use rstest::rstest;

struct Scene {
    key: SecretKey,
    set: ModuleSet,
    described: Described,
}

impl Scene {
    fn new() -> Self {
        let set = set();
        let described = Described::from_set(&set).expect("describes");
        Self { key: SecretKey::generate(), set, described }
    }

    fn sign(&self, digest: &str) -> Signature {
        Signature::make(&self.key, "registry.example.com/a", digest).expect("signs")
    }

    fn evidence(&self, signatures: Vec<Signature>) -> Evidence {
        let Described { manifest, config, .. } = self.described.clone();
        Evidence::new(manifest, config, signatures).expect("text")
    }

    fn verify(&self, evidence: &Evidence) -> Result<String, NotSigned> {
        evidence.verify(&self.set, &[SecretKey::generate().public(), self.key.public()])
    }
}

#[test]
fn a_signed_set_is_accepted_among_wrong_signatures() {
    let scene = Scene::new();
    let good = scene.sign(&scene.described.digest());
    let wrong = Signature { signature: "AAAA".into(), ..good.clone() };
    assert!(scene.verify(&scene.evidence(vec![wrong, good])).is_ok());
}

#[rstest]
#[case::none(|_: &Scene| vec![], "no signature")]
#[case::other_digest(|s: &Scene| vec![s.sign(&digest(b"x"))], "it is for sha256:")]
#[case::other_key(|s: &Scene| vec![Scene::new().sign(&s.described.digest())], "another key")]
#[case::changed_payload(
    |s: &Scene| vec![Signature {
        payload: payload::payload("b", &s.described.digest()).expect("payload"),
        ..s.sign(&s.described.digest())
    }],
    "another key"
)]
fn a_wrong_signature_is_refused(#[case] make: fn(&Scene) -> Vec<Signature>, #[case] said: &str) {
    let scene = Scene::new();
    let why = scene.verify(&scene.evidence(make(&scene))).expect_err("refused").to_string();
    assert!(why.contains(said), "{why}");
}

#[rstest]
#[case::module(|s: &mut ModuleSet| s.modules[0].sha256 = "4".repeat(64))]
#[case::kernel(|s: &mut ModuleSet| s.key.kernel_version.push('x'))]
#[case::dependencies(|s: &mut ModuleSet| s.modules[0].depends.clear())]
fn the_signature_of_one_set_is_none_of_another(#[case] change: fn(&mut ModuleSet)) {
    let mut scene = Scene::new();
    let evidence = scene.evidence(vec![scene.sign(&scene.described.digest())]);
    change(&mut scene.set);
    assert!(matches!(scene.verify(&evidence), Err(NotSigned::Other(_))));
}

#[test]
fn another_config_under_a_signed_manifest_is_refused() {
    let mut scene = Scene::new();
    let signature = scene.sign(&scene.described.digest());
    scene.set.key.compiler = "another".into();
    scene.described.config = json(&scene.set).expect("json");
    let why = scene.verify(&scene.evidence(vec![signature])).expect_err("refused");
    assert!(matches!(why, NotSigned::Other(_)), "{why}");
}

#[test]
fn signatures_gather_in_one_image_and_each_is_there_once() {
    let scene = Scene::new();
    let digest = scene.described.digest();
    let one = scene.sign(&digest);
    let image = SignatureImage::with(None, &one).expect("makes").expect("an image");
    assert!(SignatureImage::with(Some(&image.manifest), &one).expect("makes").is_none());
    let two = Scene::new().sign(&digest);
    let both = SignatureImage::with(Some(&image.manifest), &two).expect("makes").expect("an image");
    let mut reader = SignatureReader::default();
    let layers = reader.layers(&both.manifest);
    assert_eq!(layers.len(), 2);
    assert_eq!(layers[0].digest, super::digest(one.payload.as_bytes()));
    for (layer, made) in layers.into_iter().zip([&one, &two]) {
        reader.add(layer, made.payload.clone().into_bytes());
    }
    assert_eq!(reader.into_found().signatures, [one, two]);
}

#[rstest]
#[case::nothing(b"" as &[u8])]
#[case::no_manifest(b"{}")]
#[case::an_image(br#"{"schemaVersion":2,"config":{"mediaType":"x","digest":"y","size":1},"layers":[{"mediaType":"x","digest":"y","size":1}]}"#)]
fn what_is_no_image_of_signatures_has_none_and_is_not_replaced(#[case] manifest: &[u8]) {
    assert!(SignatureReader::default().layers(manifest).is_empty());
    let scene = Scene::new();
    let signature = scene.sign(&scene.described.digest());
    let failure = SignatureImage::with(Some(manifest), &signature).expect_err("is left alone");
    let report = failure.report().to_string();
    assert!(report.contains(&signature_tag(&scene.described.digest())), "{report}");
    assert_eq!(failure.code(), longshore_core::failure::ExitCode::Verification);
}

#[test]
fn the_tag_is_cosigns() {
    let digest = "sha256:97fc222cee7991b5b061d4d4afdb5f3428fcb0c9054e1690313786befa1e4e36";
    assert_eq!(
        signature_tag(digest),
        "sha256-97fc222cee7991b5b061d4d4afdb5f3428fcb0c9054e1690313786befa1e4e36.sig"
    );
}
