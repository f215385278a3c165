use super::*;
use crate::signature::Trust;
use rstest::rstest;
use serde_json::{Value, json};

const ISSUED: &str = "2026-11-20T14:00:00Z";
const VERSION: u64 = 1_795_183_200;

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn set(number: usize) -> String {
    format!("sha256:{number:064}")
}

fn index() -> SetIndex {
    let sets = [set(1), set(2)].into();
    let (issued, expires) = (time(ISSUED), time("2026-11-27T14:00:00Z"));
    SetIndex { version: VERSION, issued, expires, sets }
}

fn keys(key: &SecretKey) -> Vec<TrustedKey> {
    Trust::in_keys([SecretKey::generate().public(), key.public()]).keys().to_vec()
}

fn payload() -> Value {
    json!({
        "format": 1, "version": VERSION, "issued": ISSUED, "expires": "2026-11-27T14:00:00Z",
        "sets": [set(1), set(2)],
    })
}

fn signed(payload: &[u8], key: &SecretKey) -> SignedIndex {
    SignedIndex(Envelope::sign_as(SET_INDEX_TYPE, payload, key).to_json().expect("JSON"))
}

#[test]
fn a_signed_index_is_read_back_and_says_who_signed_it() {
    let key = SecretKey::generate();
    let made = SignedIndex::sign(&index(), &key).expect("signs");
    let read = SignedIndex::from_bytes(made.as_bytes().to_vec()).expect("reads");
    assert_eq!(read.verify(&keys(&key)), Ok((index(), "the signing key".to_owned())));
    assert_eq!(
        signed(payload().to_string().as_bytes(), &key).verify(&keys(&key)).map(|v| v.0),
        Ok(index())
    );
}

#[test]
fn the_key_has_to_have_the_role() {
    let dir = tempfile::tempdir().expect("dir");
    let key = SecretKey::generate();
    let path = dir.path().join("a.pub");
    std::fs::write(&path, key.public_pem().expect("pem")).expect("writes");
    let made = SignedIndex::sign(&index(), &key).expect("signs");
    let judged = |role: &str| {
        let entry = format!("{role}={}", path.display()).parse().expect("an entry");
        made.verify(Trust::read(true, &[], &[entry]).expect("reads").keys())
    };
    assert!(judged("index").is_ok() && judged("modules+index").is_ok());
    let why = judged("modules+provenance").expect_err("refused").to_string();
    assert!(why.contains("a.pub, which has not that role"), "{why}");
}

#[rstest]
#[case::another_format(|p: &mut Value| p["format"] = json!(2), "its format is 2, and 1 is known")]
#[case::a_later_format(|p: &mut Value| *p = json!({"format": 3, "entries": {}}), "its format is 3")]
#[case::no_format(|p: &mut Value| *p = json!({"version": 1}), "its payload is damaged")]
#[case::another_field(|p: &mut Value| p["later"] = json!(1), "its payload is damaged")]
#[case::negative(|p: &mut Value| p["version"] = json!(-1), "its payload is damaged")]
#[case::no_time(|p: &mut Value| p["expires"] = json!("soon"), "its payload is damaged")]
#[case::no_list(|p: &mut Value| p["sets"] = json!({}), "its payload is damaged")]
#[case::backwards(|p: &mut Value| p["expires"] = json!(ISSUED), "it expires before it is issued")]
#[case::twice(|p: &mut Value| p["sets"] = json!([set(1), set(1)]), "1 twice")]
#[case::no_digest(|p: &mut Value| p["sets"] = json!(["latest"]), "\"latest\", which is no sha256 digest")]
#[case::capitals(|p: &mut Value| p["sets"] = json!([format!("sha256:{}", "A".repeat(64))]), "no sha256 digest")]
#[case::many(|p: &mut Value| p["sets"] = (0..=MOST_SETS).map(set).collect(), "more than 20000 sets")]
fn a_hostile_payload_is_refused(#[case] change: fn(&mut Value), #[case] expected: &str) {
    let key = SecretKey::generate();
    let mut payload = payload();
    change(&mut payload);
    let why = signed(payload.to_string().as_bytes(), &key).verify(&keys(&key));
    let why = why.expect_err("refused");
    assert!(matches!(why, NotListed::Unreadable(_)), "{why:?}");
    assert!(why.to_string().contains(expected), "{why}");
}

#[test]
fn an_index_by_another_key_and_another_kind_of_envelope_are_refused() {
    let key = SecretKey::generate();
    let made = SignedIndex::sign(&index(), &SecretKey::generate()).expect("signs");
    assert!(matches!(made.verify(&keys(&key)), Err(NotListed::Untrusted(_))));
    assert!(matches!(made.verify(&[]), Err(NotListed::Untrusted(_))));
    // A payload by another key is not parsed.
    let garbage = signed(b"garbage", &SecretKey::generate());
    assert!(matches!(garbage.verify(&keys(&key)), Err(NotListed::Untrusted(_))));
    // A statement with the same payload is no index.
    let statement = Envelope::sign(payload().to_string().as_bytes(), &key).to_json().expect("JSON");
    let why = SignedIndex(statement).verify(&keys(&key)).expect_err("refused").to_string();
    assert!(why.contains("vnd.in-toto+json"), "{why}");
}

#[rstest]
#[case::no_text(vec![0xff], "not text")]
#[case::control_characters(b"{\0}".to_vec(), "not text")]
#[case::large(vec![b' '; MAX_INDEX as usize + 1], "more than 4194304 bytes")]
fn bytes_that_are_no_envelope(#[case] bytes: Vec<u8>, #[case] expected: &str) {
    let why = SignedIndex::from_bytes(bytes).expect_err("refused").to_string();
    assert!(why.contains(expected), "{why}");
}

#[test]
fn the_largest_index_is_within_the_bound() {
    let key = SecretKey::generate();
    let most = SetIndex { sets: (0..MOST_SETS).map(set).collect(), ..index() };
    let made = SignedIndex::sign(&most, &key).expect("signs");
    assert!((made.as_bytes().len() as u64) < MAX_INDEX);
    assert_eq!(made.verify(&keys(&key)).map(|verified| verified.0), Ok(most.clone()));
    let sets = most.sets.into_iter().chain([set(MOST_SETS)]).collect();
    let failure = SignedIndex::sign(&SetIndex { sets, ..index() }, &key).expect_err("refused");
    assert_eq!(failure.code(), longshore_core::failure::ExitCode::Usage);
}

#[rstest]
#[case::first(ISSUED, [None; 3], "")]
#[case::the_same_again(ISSUED, [Some(VERSION); 3], "")]
#[case::newer(ISSUED, [Some(VERSION - 1), Some(VERSION - 9), Some(VERSION - 5)], "")]
#[case::replayed_at_once(ISSUED, [Some(VERSION + 1), None, None], "1795183200, and this store has seen 1795183201")]
#[case::replayed_later("2026-11-25T14:00:00Z", [Some(VERSION + 86_400), None, None], "this store has seen")]
#[case::below_the_minimum(ISSUED, [None, Some(VERSION + 1), None], "1795183200, and index-minimum is 1795183201")]
#[case::below_the_published(ISSUED, [None, None, Some(VERSION + 1)], "1795183200, and index-minimum-file has 1795183201")]
#[case::below_the_minimum_alone(ISSUED, [Some(VERSION), Some(VERSION + 1), Some(VERSION)], "index-minimum is")]
#[case::below_the_published_alone(ISSUED, [Some(VERSION), Some(VERSION), Some(VERSION + 1)], "index-minimum-file has")]
#[case::below_all(ISSUED, [Some(VERSION + 1), Some(VERSION + 2), Some(VERSION + 3)], "this store has seen")]
#[case::clock_behind("2026-11-20T13:55:00Z", [None; 3], "")]
#[case::of_the_future("2026-11-20T13:54:59Z", [None; 3], "in the future")]
fn versions(#[case] now: &str, #[case] lowest: [Option<u64>; 3], #[case] refused: &str) {
    let [seen, minimum, published] = lowest;
    let checked = index().check_version(time(now), LowestVersions { seen, minimum, published });
    match refused {
        "" => assert_eq!(checked, Ok(())),
        _ => {
            let why = checked.expect_err("refused").to_string();
            assert!(why.contains(refused), "{why}");
        }
    }
}

#[test]
fn a_version_of_the_future_does_not_count_whatever_its_time_is() {
    let index = SetIndex { version: u64::MAX, ..index() };
    let checked = index.check_version(time(ISSUED), LowestVersions::default());
    assert!(matches!(checked, Err(NotListed::Future(_))), "{checked:?}");
}

#[test]
fn an_index_expires_and_lists_what_it_lists() {
    let index = index();
    assert_eq!(index.check_expiry(time("2026-11-27T13:59:59Z")), Ok(()));
    let why = index.check_expiry(time("2026-11-27T14:00:00Z")).expect_err("expired").to_string();
    assert!(why.ends_with("1795183200 has expired since 2026-11-27T14:00:00Z"), "{why}");
    assert_eq!(index.check_listed(&set(2)), Ok(()));
    assert_eq!(index.check_listed(&set(3)), Err(NotListed::Unlisted(VERSION)));
}

#[rstest]
#[case::first(None, VERSION)]
#[case::after_an_older_one(Some(5), VERSION)]
#[case::in_the_same_second(Some(VERSION), VERSION + 1)]
#[case::by_a_clock_that_is_ahead(Some(VERSION + 60), VERSION + 61)]
#[case::after_one_of_the_future(Some(VERSION + 301), VERSION)]
#[case::after_the_greatest(Some(u64::MAX), VERSION)]
fn next_versions(#[case] before: Option<u64>, #[case] expected: u64) {
    assert_eq!(SetIndex::next_version(time(ISSUED), before), expected);
}

#[rstest]
#[case::ours(|_: &mut Value| (), "")]
#[case::another_artifact(|m: &mut Value| m["artifactType"] = json!("text/plain"), "another artifact")]
#[case::no_type(|m: &mut Value| drop(m.as_object_mut().map(|m| m.remove("artifactType"))), "another artifact")]
#[case::no_layer(|m: &mut Value| m["layers"] = json!([]), "not one layer")]
#[case::two_layers(|m: &mut Value| m["layers"] = json!([m["layers"][0], m["layers"][0]]), "not one layer")]
#[case::another_layer(|m: &mut Value| m["layers"][0]["mediaType"] = json!("text/plain"), "no envelope")]
#[case::large(|m: &mut Value| m["layers"][0]["size"] = json!(MAX_INDEX + 1), "more than 4194304 bytes")]
#[case::no_manifest(|m: &mut Value| *m = json!([]), "damaged")]
fn manifests(#[case] change: fn(&mut Value), #[case] refused: &str) {
    let made = SignedIndex::sign(&index(), &SecretKey::generate()).expect("signs");
    let (manifest, blobs) = made.image().expect("an image");
    let mut manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    change(&mut manifest);
    let found = envelope_in(manifest.to_string().as_bytes());
    match refused {
        "" => assert!(found.expect("an envelope").describes(blobs[1])),
        _ => {
            let why = found.expect_err("refused").to_string();
            assert!(why.contains(refused), "{why}");
        }
    }
}
