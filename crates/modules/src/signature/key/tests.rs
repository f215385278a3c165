//! Tests with published data of the sigstore project (cosign's pkg/cosign/keys_test.go, whose
//! password is `hello`, and sigstore-rs' signature tests).

use super::*;
use longshore_core::failure::ExitCode;
use rstest::rstest;
use std::os::unix::fs::PermissionsExt;

const COSIGN_1: &str = "-----BEGIN ENCRYPTED COSIGN PRIVATE KEY-----
eyJrZGYiOnsibmFtZSI6InNjcnlwdCIsInBhcmFtcyI6eyJOIjo2NTUzNiwiciI6
OCwicCI6MX0sInNhbHQiOiJHK3F5WTYrNzhNS0JzMXNGTGs1ajYwcS9kS3Z1czBW
VkhlSHZybC9POTF3PSJ9LCJjaXBoZXIiOnsibmFtZSI6Im5hY2wvc2VjcmV0Ym94
Iiwibm9uY2UiOiJRc2JGdG13WDRDK2ttV3ZCcVRaMEFGOUFYdk1jRmg1SCJ9LCJj
aXBoZXJ0ZXh0IjoiREM5T28zeldiYVQzSXYwdFVnWEdycjUxYW1samwwNlQ5MTNP
VkxPbWpuMWhnK2o2WXRUbWg3SGhZSlY1N2J5eGE0Q281bE9YYmRqbTJ3aklubEd1
Um5aZCt5OExnekpSNzFSeEhKVzgrWmRlcFJmYWJMTjdHbDgrSFZEcERVQ3NxQnRh
VngyblpGbFEwWUl1anZwbFphblNGaUVvdERLVGkxZ3VhUXIwUHNzYU01NXZxbTRY
WS9rPSJ9
-----END ENCRYPTED COSIGN PRIVATE KEY-----";

const COSIGN_2: &str = "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----
eyJrZGYiOnsibmFtZSI6InNjcnlwdCIsInBhcmFtcyI6eyJOIjozMjc2OCwiciI6
OCwicCI6MX0sInNhbHQiOiI3T3VGd2VsbWZZNXVId2NoaURSc210anNwZ2ZlZjFG
Mk5lOGFDTjVLYVpZPSJ9LCJjaXBoZXIiOnsibmFtZSI6Im5hY2wvc2VjcmV0Ym94
Iiwibm9uY2UiOiJQNHk4OGhCb3ZTa09MbXN0bFVBaGJwdDJ0K2xTNUxQSCJ9LCJj
aXBoZXJ0ZXh0IjoiMnB1QzdyZldJOWh3bnJlQ2s4aUZDRlVwQlRrSzRJNlIvbFBF
cnBDekpXUGpJWXl4eGVIL1A2VW52cFJHdVhla1NNb3JMdGhLamdoQ1JlNy82NDVH
QWtoVm1LRC92eEF0S2EvbE1abENSQ3FlekJGUFd1dzNpeFRtZ2xhb2J1ZFVSbUVs
bmNGOGlZbzBTMVl6Y1ZOMVFwY2J2c0dNcUlYRzVlbmdteGp5dCtBcXlyZTF0Q0Y0
V01tU1BlaEljNlBqd2h1Q2xHaVpJUWRvTGc9PSJ9
-----END ENCRYPTED SIGSTORE PRIVATE KEY-----";

const SEC1: &str = "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIIGhcmCI5F7BPMH4r3pWCpQdAsveErdU5DjvVQerErJuoAoGCCqGSM49
AwEHoUQDQgAE+9E3Qe+h25ofmz3Uo2T004Dfy49iX06MMbxf9rsGmLkOPrS0KYDl
1QMfFuSbrtf8wTWNT9HNxrW/Foz39mDhHw==
-----END EC PRIVATE KEY-----";

const PKCS8: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgmKnLL81dCEYc6Spq
rFukFeTnU5JjtXfeNHAXJj3hYTahRANCAATjp4/Z4tUbZwUdId07GQeUdwLll4Br
YLP25Fk+mBY2G0lyKqjqLG5hxhimbEJH6j+lzg5tcYpQgzXtOJ66Zi0N
-----END PRIVATE KEY-----";

const P384: &str = "-----BEGIN EC PRIVATE KEY-----
MIGkAgEBBDDWIebxSdyJVber6J/l5MKnD0+VU0b7fcjY/RbIxuIsHLVIvwJrSohY
r3gJ/iJmIKGgBwYFK4EEACKhZANiAAQeoKZkkc1GafmIgp1tbNbMBjr2EdvX2dtT
lGhzHJgE0YB6TavazcYH1iOBNmX7/pInCopiyWbjF/5olrRKJMG6DQz80td++fYf
O4tr+Z3nyUgRGmf/fqYA4PSN30CuOMU=
-----END EC PRIVATE KEY-----";

const ED25519: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIALEbo1EFnWFqBK/wC+hhypG/8hXEerwdNetAoFoFVdv
-----END PRIVATE KEY-----";

const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAENptdY/l3nB0yqkXLBWkZWQwo6+cu
OSWS1X9vPavpiQOoTTGC0xX57OojUadxF1cdQmrsiReWg2Wn4FneJfa8xw==
-----END PUBLIC KEY-----";
const PAYLOAD: &str = r#"{"critical":{"identity":{"docker-reference":"registry-testing.svc.lan/busybox"},"image":{"docker-manifest-digest":"sha256:f3cfc9d0dbf931d3db4685ec659b7ac68e2a578219da4aae65427886e649b06b"},"type":"cosign container image signature"},"optional":null}"#;
const SIGNATURE: &str = "MEUCIQD6q/COgzOyW0YH1Dk+CCYSt4uAhm3FDHUwvPI55zwnlwIgE0ZK58ZOWpZw8YVmBapJhBqCfdPekIknimuO0xH8Jh8=";

#[rstest]
#[case::cosign_1(COSIGN_1, Some("hello"))]
#[case::cosign_2(COSIGN_2, Some("hello"))]
#[case::sec1(SEC1, None)]
#[case::pkcs8(PKCS8, None)]
fn a_key_that_cosign_reads_signs_and_verifies(#[case] text: &str, #[case] password: Option<&str>) {
    let key = SecretKey::from_pem(text, password).expect("reads");
    let signature = key.sign(b"payload");
    assert_eq!(signature, key.sign(b"payload"), "the same signature each time");
    let public = PublicKey::from_pem(&key.public_pem().expect("pem"), "p").expect("reads");
    assert!(public.verifies(b"payload", &signature));
    assert!(!public.verifies(b"payloae", &signature));
    assert!(!SecretKey::generate().public().verifies(b"payload", &signature));
}

#[test]
fn the_public_half_of_a_published_key_is_the_published_one() {
    let key = SecretKey::from_pem(SEC1, None).expect("reads");
    // The last 65 bytes of the SEC 1 structure are the public point.
    let (_, der) = pem(SEC1).expect("pem");
    let (_, spki) = pem(&key.public_pem().expect("pem")).expect("pem");
    assert_eq!(spki[spki.len() - 65..], der[der.len() - 65..]);
}

#[test]
fn a_signature_that_cosign_made_is_accepted() {
    let key = PublicKey::from_pem(PUBLIC, "p").expect("reads");
    assert!(key.verifies(PAYLOAD.as_bytes(), SIGNATURE));
    assert!(!key.verifies(PAYLOAD.replace("null", "nul1").as_bytes(), SIGNATURE));
}

#[rstest]
#[case::not_base64("%")]
#[case::empty("")]
#[case::not_der("AAAA")]
#[case::zero("MAYCAQACAQA=")]
fn what_is_no_signature_does_not_verify(#[case] signature: &str) {
    assert!(!PublicKey::from_pem(PUBLIC, "p").expect("reads").verifies(b"", signature));
}

#[test]
fn a_key_comes_back_from_under_its_password() {
    let key = SecretKey::generate();
    let text = key.to_encrypted_pem("geheim").expect("encrypts");
    assert!(text.starts_with("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n"), "{text}");
    assert!(text.lines().all(|line| line.len() <= 64));
    let back = SecretKey::from_pem(&text, Some("geheim")).expect("reads");
    assert_eq!(back.public().fingerprint(), key.public().fingerprint());
}

#[rstest]
#[case::wrong_password(COSIGN_2.to_owned(), Some("hallo"), "does not open")]
#[case::no_password(COSIGN_2.to_owned(), None, "COSIGN_PASSWORD is not set")]
#[case::p384(P384.to_owned(), None, "not an ECDSA P-256")]
#[case::ed25519(ED25519.to_owned(), None, "not an ECDSA P-256")]
#[case::public(PUBLIC.to_owned(), None, "a PUBLIC KEY")]
#[case::not_pem("garbage".to_owned(), None, "no PEM block")]
#[case::cut(PKCS8[..100].to_owned(), None, "does not end")]
#[case::empty_block("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----".to_owned(), None, "not an ECDSA")]
#[case::other_json(encrypted("{}"), Some("x"), "not what cosign writes")]
#[case::costly(encrypted(&envelope(1 << 30, "scrypt")), Some("x"), "out of bounds")]
#[case::odd_cost(encrypted(&envelope(3, "scrypt")), Some("x"), "out of bounds")]
#[case::other_kdf(encrypted(&envelope(1 << 15, "argon2")), Some("x"), "argon2")]
#[case::short_nonce(encrypted(&envelope(1 << 4, "scrypt")), Some("x"), "nonce")]
fn what_is_no_key_is_refused(
    #[case] text: String,
    #[case] password: Option<&str>,
    #[case] said: &str,
) {
    let why = SecretKey::from_pem(&text, password).expect_err("refused");
    assert!(why.contains(said), "{why}");
}

fn encrypted(json: &str) -> String {
    format!("-----BEGIN {ENCRYPTED}-----\n{}\n-----END {ENCRYPTED}-----", STANDARD.encode(json))
}

fn envelope(n: u32, kdf: &str) -> String {
    format!(
        r#"{{"kdf":{{"name":"{kdf}","params":{{"N":{n},"r":8,"p":1}},"salt":"AAAA"}},
            "cipher":{{"name":"nacl/secretbox","nonce":"AAAA"}},"ciphertext":"AAAA"}}"#
    )
}

#[rstest]
#[case(PKCS8)]
#[case(ED25519)]
#[case("")]
fn what_is_no_public_key_is_refused(#[case] text: &str) {
    assert!(PublicKey::from_pem(text, "p").is_err());
}

#[rstest]
#[case::roots(0o644, true)]
#[case::written_by_all(0o666, false)]
fn a_public_key_is_roots_alone(#[case] mode: u32, #[case] accepted: bool) {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("cosign.pub");
    std::fs::write(&path, PUBLIC).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
    let read = PublicKey::read(&path);
    assert_eq!(read.is_ok(), accepted, "{read:?}");
    if let Err(failure) = read {
        assert_eq!(failure.code(), ExitCode::Usage);
        assert!(failure.remedy_or_default().contains("chmod go-w"));
    }
}
