//! Trust in core objects that were pulled, by the configuration and the key that signs the set.

use rstest::rstest;

use super::*;
use crate::supplier::test_scene::Scene;
use longshore_modules::artifact::core_objects::DescribedCore;
use longshore_modules::signature::{Evidence, Signature};
use longshore_modules::testing::core_record;

#[test]
fn the_page_about_deadlines_has_both_limits() {
    longshore_core::testing::assert_in_page(
        "Registries that are asked for core objects",
        PULL_LIMIT,
    );
    longshore_core::testing::assert_in_page("Core objects that are pushed", CORE_PUSH_LIMIT);
    assert!(CORE_PUSH_LIMIT < crate::supplier::publication::PUSH_LIMIT, "the set is left time");
}

/// Core objects that were pulled with a signature by this key.
fn pulled(key: Option<&SecretKey>) -> StoredCore {
    let DescribedCore { manifest, config, record } =
        DescribedCore::from_record(&core_record()).expect("describes");
    let digest = longshore_modules::artifact::image::digest(&manifest);
    let sign = |key| Signature::make(key, "a", &digest).expect("signs");
    let signatures: Vec<_> = key.into_iter().map(sign).collect();
    let pulled = Some(Evidence::new(manifest, config, signatures).expect("text"));
    StoredCore { record, pulled }
}

/// Signature of the pulled objects, key that signs the set, denial; and the reason why they do not count.
#[rstest]
#[case::nothing_is_required(None, false, false, None)]
#[case::of_a_set_that_is_signed_here(None, true, false, Some("it has no signature"))]
#[case::signed_by_that_key(Some(true), true, false, None)]
#[case::signed_by_another(Some(false), true, false, Some("another key"))]
#[case::denied(None, false, true, Some("is denied"))]
fn pulled_core_objects_count_by_their_signature(
    #[case] signed_by_own: Option<bool>,
    #[case] signs: bool,
    #[case] denied: bool,
    #[case] expected: Option<&str>,
) {
    let mut config = Scene::new("bookworm-t4").config;
    let (own, other) = (SecretKey::generate(), SecretKey::generate());
    let core = pulled(signed_by_own.map(|is_own| if is_own { &own } else { &other }));
    if denied {
        config.signatures.denied.extend(core.input().pulled);
    }
    let (away, telemetry) = (UnreachableHosts::default(), Telemetry::default());
    let signs = signs.then(|| own.public());
    let source = CoreRegistries::new(&config, signs, &away, &telemetry).expect("reads");
    let why = source.check(&core).err();
    assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
    assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()));
    source.check(&StoredCore { pulled: None, ..core }).expect("those compiled here count");
}

#[tokio::test]
async fn an_unreachable_registry_costs_a_warning() {
    let scene = Scene::new("bookworm-t4");
    let mut config = scene.config.clone();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = free.local_addr().expect("address");
    drop(free);
    config.registries = vec![format!("http://{address}/a").parse().expect("a registry")];
    let (away, telemetry) = (UnreachableHosts::default(), Telemetry::default());
    let source = CoreRegistries::new(&config, None, &away, &telemetry).expect("reads");
    let (asked, store) = (core_record().query(), scene.store());
    let found = source.fetch(&asked, &store, &longshore_core::progress::Silent).await;
    assert_eq!(found.expect("no failure"), None);
}
