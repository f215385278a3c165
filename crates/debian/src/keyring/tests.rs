use super::*;
use pgp::composed::{
    ArmorOptions, CleartextSignedMessage, DetachedSignature, KeyType, SecretKeyParamsBuilder,
    SignedKeyDetails, SignedSecretKey, SubkeyParamsBuilder,
};
use pgp::packet::{KeyFlags, SignatureConfig, Subpacket, SubpacketData};
use pgp::types::{Duration, Password, SigningKey};
use rand::thread_rng;
use rstest::rstest;

const TEXT: &str = "Origin: Test\nSuite: stable\n- dashed\n";
const NO_PASSWORD: fn() -> Password = Password::empty;

fn now() -> u64 {
    u64::from(Timestamp::now().as_secs())
}

/// A key that signs itself, or with a signing subkey.
fn key(with_subkey: bool) -> SignedSecretKey {
    let mut params = SecretKeyParamsBuilder::default();
    params
        .key_type(KeyType::Ed25519Legacy)
        .can_certify(true)
        .can_sign(!with_subkey)
        .primary_user_id("archive <archive@example.com>".into());
    if with_subkey {
        let mut subkey = SubkeyParamsBuilder::default();
        subkey.key_type(KeyType::Ed25519Legacy).can_sign(true);
        params.subkeys(vec![subkey.build().expect("subkey")]);
    }
    params.build().expect("parameters").generate(thread_rng()).expect("key")
}

fn ring(certificate: &SignedPublicKey) -> Keyring {
    Keyring::read(&certificate.to_bytes().expect("bytes"))
}

fn sign(key: &impl SigningKey) -> Vec<u8> {
    let message = CleartextSignedMessage::sign(thread_rng(), TEXT, key, &NO_PASSWORD());
    message.expect("signs").to_armored_bytes(ArmorOptions::default()).expect("armor")
}

fn refusal(keyring: &Keyring, message: &[u8]) -> String {
    keyring.verify_cleartext(message, now()).expect_err("refused").to_string()
}

#[rstest]
fn a_good_signature_gives_the_signed_text(#[values(false, true)] with_subkey: bool) {
    let key = key(with_subkey);
    let message = match key.secret_subkeys.first() {
        Some(subkey) => sign(&subkey.key),
        None => sign(&key.primary_key),
    };
    let keyring = ring(&key.to_public_key());
    let text = keyring.verify_cleartext(&message, now()).expect("verifies");
    assert_eq!(text.trim_end(), TEXT.trim_end());
}

#[test]
fn keyrings_are_read_binary_armored_and_joined() {
    let keys = [key(false), key(false)];
    let armored = |key: &SignedSecretKey| {
        key.to_public_key().to_armored_bytes(ArmorOptions::default()).expect("armor")
    };
    let binary = |key: &SignedSecretKey| key.to_public_key().to_bytes().expect("bytes");
    for bytes in [
        [armored(&keys[0]), armored(&keys[1])].concat(),
        [binary(&keys[0]), binary(&keys[1])].concat(),
    ] {
        let keyring = Keyring::read(&bytes);
        assert_eq!(keyring.certificates.len(), 2);
        for key in &keys {
            keyring.verify_cleartext(&sign(&key.primary_key), now()).expect("verifies");
        }
    }
}

#[rstest]
#[case::empty(b"")]
#[case::garbage(b"\x99\x01garbage")]
#[case::text(b"no key here")]
#[case::broken_armor(
    b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n!!\n-----END PGP PUBLIC KEY BLOCK-----\n"
)]
fn what_holds_no_key_gives_an_empty_keyring(#[case] bytes: &[u8]) {
    let keyring = Keyring::read(bytes);
    assert!(keyring.is_empty());
    assert!(refusal(&keyring, &sign(&key(false).primary_key)).contains("not in the keyring"));
}

/// `P` is the fingerprint of the primary key, `S` that of its subkey, `X` that of another.
#[rstest]
#[case("P", Some(true), Some(true))]
#[case("P!", Some(true), Some(false))]
#[case("S", Some(false), Some(true))]
#[case("S!", Some(false), Some(true))]
#[case("P! S!", Some(true), Some(true))]
#[case("X P", Some(true), Some(true))]
#[case("X", None, None)]
fn fingerprints_narrow_a_keyring(
    #[case] names: &str,
    #[case] primary: Option<bool>,
    #[case] subkey: Option<bool>,
) {
    let mut params = SecretKeyParamsBuilder::default();
    let mut sub = SubkeyParamsBuilder::default();
    sub.key_type(KeyType::Ed25519Legacy).can_sign(true);
    params
        .key_type(KeyType::Ed25519Legacy)
        .can_certify(true)
        .can_sign(true)
        .primary_user_id("archive <archive@example.com>".into())
        .subkeys(vec![sub.build().expect("subkey")]);
    let ours = params.build().expect("parameters").generate(thread_rng()).expect("key");
    let below = &ours.secret_subkeys[0].key;
    let signer = |name: &str| {
        let fingerprint = match name.trim_end_matches('!') {
            "P" => ours.primary_key.fingerprint().to_string().to_uppercase(),
            "S" => below.fingerprint().to_string(),
            _ => "0123456789ABCDEF0123456789ABCDEF01234567".to_owned(),
        };
        Signer { fingerprint, exact: name.ends_with('!') }
    };
    let mut keyring = ring(&ours.to_public_key());
    keyring.extend(ring(&key(false).to_public_key()));
    keyring.only(&names.split(' ').map(signer).collect::<Vec<_>>());
    assert_eq!(keyring.certificates.len(), usize::from(primary.is_some()));
    for (message, counts) in [(sign(&ours.primary_key), primary), (sign(below), subkey)] {
        let verified = keyring.verify_cleartext(&message, now());
        assert_eq!(verified.is_ok(), counts == Some(true), "{verified:?}");
    }
}

#[test]
fn another_key_or_another_text_is_refused() {
    let (ours, theirs) = (key(false), key(false));
    let keyring = ring(&ours.to_public_key());
    let refused = refusal(&keyring, &sign(&theirs.primary_key));
    assert!(refused.contains(&theirs.primary_key.fingerprint().to_string()), "{refused}");
    let message = String::from_utf8(sign(&ours.primary_key)).expect("text");
    let changed = message.replace("Origin: Test", "Origin: Best");
    assert!(refusal(&keyring, changed.as_bytes()).contains("does not match"));
    let unsigned = message.split("-----BEGIN PGP SIGNATURE").next().expect("text");
    assert!(refusal(&keyring, unsigned.as_bytes()).contains("cut off"));
    assert!(refusal(&keyring, b"\xff\xfe").contains("UTF-8"));
}

#[test]
fn one_good_signature_among_several_suffices() {
    let (ours, theirs) = (key(false), key(false));
    let signers = [&theirs, &ours];
    let message = CleartextSignedMessage::new_many(TEXT, |text| {
        let sign = |key: &&SignedSecretKey| {
            let signed = DetachedSignature::sign_text_data(
                thread_rng(),
                &key.primary_key,
                &NO_PASSWORD(),
                HashAlgorithm::Sha512,
                text.as_bytes(),
            );
            signed.map(|one| one.signature)
        };
        signers.iter().map(sign).collect()
    });
    let armored = message.expect("signs").to_armored_bytes(ArmorOptions::default());
    let armored = armored.expect("armor");
    ring(&ours.to_public_key()).verify_cleartext(&armored, now()).expect("verifies");
    assert!(refusal(&ring(&key(false).to_public_key()), &armored).matches("not in").count() == 2);
}

#[rstest]
#[case(HashAlgorithm::Sha256, true)]
#[case(HashAlgorithm::Sha512, true)]
#[case(HashAlgorithm::Sha1, false)]
#[case(HashAlgorithm::Md5, false)]
fn weak_hashes_do_not_count(#[case] hash: HashAlgorithm, #[case] expected: bool) {
    // Ed25519 does not sign weak hashes at all.
    let mut params = SecretKeyParamsBuilder::default();
    params.key_type(KeyType::Rsa(2048)).can_sign(true).primary_user_id("rsa".into());
    let key = params.build().expect("parameters").generate(thread_rng()).expect("key");
    let keyring = ring(&key.to_public_key());
    let signature = DetachedSignature::sign_binary_data(
        thread_rng(),
        &key.primary_key,
        &NO_PASSWORD(),
        hash,
        TEXT.as_bytes(),
    );
    let signature = signature.expect("signs");
    for bytes in [
        signature.to_bytes().expect("bytes"),
        signature.to_armored_bytes(ArmorOptions::default()).expect("armor"),
    ] {
        let verified = keyring.verify(TEXT.as_bytes(), &bytes, now());
        assert_eq!(verified.is_ok(), expected, "{verified:?}");
    }
    assert_eq!(keyring.verify(TEXT.as_bytes(), b"junk", now()), Err(SignatureError::Unsigned));
}

/// A self-signature of `typ` with these subpackets.
fn self_signature(
    key: &SignedSecretKey,
    typ: SignatureType,
    data: Vec<SubpacketData>,
) -> Signature {
    self_signature_at(key, typ, data, Timestamp::now())
}

fn self_signature_at(
    key: &SignedSecretKey,
    typ: SignatureType,
    data: Vec<SubpacketData>,
    made: Timestamp,
) -> Signature {
    let mut config = SignatureConfig::v4(typ, key.primary_key.algorithm(), HashAlgorithm::Sha256);
    let mut hashed = vec![
        SubpacketData::SignatureCreationTime(made),
        SubpacketData::IssuerFingerprint(key.primary_key.fingerprint()),
    ];
    hashed.extend(data);
    config.hashed_subpackets =
        hashed.into_iter().map(|d| Subpacket::regular(d).expect("subpacket")).collect();
    let public = key.primary_key.public_key();
    if typ == SignatureType::KeyRevocation {
        return config.sign_key(&key.primary_key, &NO_PASSWORD(), public).expect("revokes");
    }
    let id = &key.details.users[0].id;
    let signed =
        config.sign_certification(&key.primary_key, public, &NO_PASSWORD(), Tag::UserId, id);
    signed.expect("certifies")
}

/// The key's certificate with another self-signature in place of its own.
fn certificate(key: &SignedSecretKey, signature: Signature) -> SignedPublicKey {
    let id = key.details.users[0].id.clone();
    let details = SignedKeyDetails::new(vec![], vec![], vec![id.into_signed(signature)], vec![]);
    SignedPublicKey::new(key.primary_key.public_key().clone(), details, vec![])
}

fn flags(sign: bool) -> SubpacketData {
    let mut flags = KeyFlags::default();
    flags.set_sign(sign);
    flags.set_certify(true);
    SubpacketData::KeyFlags(flags)
}

#[test]
fn a_key_counts_until_it_expires() {
    let key = key(false);
    let message = sign(&key.primary_key);
    let lasts = SubpacketData::KeyExpirationTime(Duration::from_secs(3600));
    let signature = self_signature(&key, SignatureType::CertPositive, vec![flags(true), lasts]);
    let keyring = ring(&certificate(&key, signature));
    keyring.verify_cleartext(&message, now()).expect("verifies");
    let late = keyring.verify_cleartext(&message, now() + 3601).expect_err("refused");
    assert!(late.to_string().contains("expired"), "{late}");
}

#[test]
fn revoked_keys_and_keys_for_other_purposes_do_not_count() {
    let key = key(false);
    let message = sign(&key.primary_key);
    let mut revoked = key.to_public_key();
    let revocation = self_signature(&key, SignatureType::KeyRevocation, vec![]);
    revoked.details.revocation_signatures.push(revocation);
    assert!(refusal(&ring(&revoked), &message).contains("revoked"));

    let certifying = self_signature(&key, SignatureType::CertPositive, vec![flags(false)]);
    let certifying = certificate(&key, certifying);
    assert!(refusal(&ring(&certifying), &message).contains("not for signing"));

    let foreign = self_signature(&self::key(false), SignatureType::CertPositive, vec![flags(true)]);
    let foreign = certificate(&key, foreign);
    assert!(refusal(&ring(&foreign), &message).contains("no valid self-signature"));
}

#[rstest]
#[case::revoked_first(true)]
#[case::revoked_last(false)]
fn a_revocation_counts_in_whichever_copy_it_is(#[case] first: bool) {
    let key = key(false);
    let message = sign(&key.primary_key);
    let mut revoked = key.to_public_key();
    let revocation = self_signature(&key, SignatureType::KeyRevocation, vec![]);
    revoked.details.revocation_signatures.push(revocation);
    let (mut one, mut other) = (ring(&key.to_public_key()), ring(&revoked));
    if first {
        std::mem::swap(&mut one, &mut other);
    }
    one.extend(other);
    assert_eq!(one.certificates.len(), 1);
    assert!(refusal(&one, &message).contains("revoked"));
    let bytes = |certificate: &SignedPublicKey| certificate.to_bytes().expect("bytes");
    let both = Keyring::read(&[bytes(&key.to_public_key()), bytes(&revoked)].concat());
    assert!(refusal(&both, &message).contains("revoked"));
}

#[test]
fn a_shortened_expiry_counts_beside_an_older_copy() {
    let key = key(false);
    let message = sign(&key.primary_key);
    // Newer than the key's own, which may be of this very second.
    let later = Timestamp::from_secs(Timestamp::now().as_secs() + 1);
    let lasts = SubpacketData::KeyExpirationTime(Duration::from_secs(3600));
    let data = vec![flags(true), lasts];
    let signature = self_signature_at(&key, SignatureType::CertPositive, data, later);
    let mut keyring = ring(&key.to_public_key());
    keyring.verify_cleartext(&message, now() + 3601).expect("the older copy never expires");
    keyring.extend(ring(&certificate(&key, signature)));
    let late = keyring.verify_cleartext(&message, now() + 3601).expect_err("refused");
    assert!(late.to_string().contains("expired"), "{late}");
}

/// Made by gpg 2.2 (`--quick-gen-key ... rsa1024 sign`, `--detach-sign`, over [`TEXT`]): the
/// library creates no such key.
#[test]
fn a_short_rsa_key_does_not_count() {
    let keyring = Keyring::read(include_bytes!("testdata/rsa1024.asc"));
    let signature = include_bytes!("testdata/rsa1024.sig");
    let refused = keyring.verify(TEXT.as_bytes(), signature, now()).expect_err("refused");
    assert!(refused.to_string().contains("the key is too short"), "{refused}");
}

#[rstest]
#[case::rsa(KeyType::Rsa(2048), true)]
#[case::dsa(KeyType::Dsa(pgp::composed::DsaKeySize::B1024), false)]
fn short_keys_do_not_count(#[case] kind: KeyType, #[case] counts: bool) {
    let mut params = SecretKeyParamsBuilder::default();
    params.key_type(kind).can_sign(true).primary_user_id("a".into());
    let key = params.build().expect("parameters").generate(thread_rng()).expect("key");
    let signature = DetachedSignature::sign_binary_data(
        thread_rng(),
        &key.primary_key,
        &NO_PASSWORD(),
        HashAlgorithm::Sha256,
        TEXT.as_bytes(),
    );
    let signature = signature.expect("signs").to_bytes().expect("bytes");
    let verified = ring(&key.to_public_key()).verify(TEXT.as_bytes(), &signature, now());
    assert_eq!(verified.is_ok(), counts, "{verified:?}");
    if let Err(refused) = verified {
        assert!(refused.to_string().contains("too short"), "{refused}");
    }
}

#[rstest]
#[case::a_clock_that_is_late(23, true)]
#[case::the_future(26, false)]
fn signatures_of_the_future_do_not_count(#[case] hours: u64, #[case] counts: bool) {
    let key = key(false);
    let message = sign(&key.primary_key);
    let verified = ring(&key.to_public_key()).verify_cleartext(&message, now() - hours * 3600);
    assert_eq!(verified.is_ok(), counts, "{verified:?}");
    if let Err(refused) = verified {
        assert!(refused.to_string().contains("in the future"), "{refused}");
    }
}

#[test]
fn a_subkey_must_be_bound_and_not_be_revoked() {
    let key = key(true);
    let subkey = &key.secret_subkeys[0];
    let message = sign(&subkey.key);
    let mut unbound = key.to_public_key();
    unbound.public_subkeys[0].signatures =
        self::key(true).to_public_key().public_subkeys[0].signatures.clone();
    assert!(refusal(&ring(&unbound), &message).contains("does not belong"));

    let mut revoked = key.to_public_key();
    let mut config = SignatureConfig::v4(
        SignatureType::SubkeyRevocation,
        key.primary_key.algorithm(),
        HashAlgorithm::Sha256,
    );
    let created = SubpacketData::SignatureCreationTime(Timestamp::now());
    config.hashed_subpackets = vec![Subpacket::regular(created).expect("subpacket")];
    let revocation = config.sign_subkey_binding(
        &key.primary_key,
        key.primary_key.public_key(),
        &NO_PASSWORD(),
        subkey.key.public_key(),
    );
    revoked.public_subkeys[0].signatures.push(revocation.expect("revokes"));
    assert!(refusal(&ring(&revoked), &message).contains("revoked"));
}
