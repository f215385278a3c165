//! Hosts whose kernel asks for signatures.

use super::*;
use crate::host::facts::KernelKey;
use crate::module_signing::{Hash, SignedBy, Signer};

const KNOWN: &str = "25a7e07a509423d9b62468531c37a604632a7585";

/// A host under Secure Boot that has an enrolled key, or whose keys cannot be seen.
fn host(enrolled: Known<&str>) -> HostFacts {
    let mut facts = facts("bookworm-secure-boot");
    match (&mut facts.security.keys, enrolled) {
        (Known::Yes(keys), Known::Yes(id)) => {
            keys.push(KernelKey { name: "Example: Module signing".into(), id: id.into() });
        }
        (keys, Known::Unknown(why)) => *keys = Known::Unknown(why),
        (Known::Unknown(why), _) => panic!("the tree's keys are not known: {why}"),
    }
    facts
}

fn signed(facts: &HostFacts, key_id: &str, place: SetPlace) -> SetAtHand {
    let mut at_hand = set(facts, Flavour::Open, place);
    at_hand.set.key.signed_by = Some(SignedBy {
        certificate: format!("{key_id:0>64}"),
        name: "Example: Module signing".into(),
        key_ids: vec![key_id.into()],
        hash: Hash::Sha512,
    });
    for module in &mut at_hand.set.modules {
        module.sha256 = format!("{:f>64}", module.name.len());
    }
    at_hand
}

fn signer(key_id: &str) -> Signer {
    Signer {
        certificate: format!("{key_id:0>64}"),
        name: "Example: Module signing".into(),
        key_id: key_id.into(),
        detached: false,
    }
}

fn signs(plan: &Plan) -> bool {
    plan.acquire.iter().any(|a| matches!(a, Acquire::SignSet { .. }))
}

fn builds(plan: &Plan) -> bool {
    plan.acquire.iter().any(|a| matches!(a, Acquire::BuildSet { .. }))
}

#[test]
fn the_trees_keys_are_debians_and_the_firmwares() {
    let Known::Yes(keys) = facts("bookworm-secure-boot").security.keys else { panic!("unknown") };
    assert!(keys.iter().any(|key| key.name == "Debian Secure Boot CA"), "{keys:?}");
}

/// What there is of signatures, and what comes of it: refusals, warnings, whether it is signed
/// first, whether it is compiled.
#[rstest]
#[case::nothing(None, None, Known::Yes(KNOWN), &["signature-required"], &[], false, true)]
#[case::signed_and_enrolled(Some(KNOWN), None, Known::Yes(KNOWN), &[], &[], false, false)]
#[case::signed_by_a_stranger(Some("0abc"), None, Known::Yes(KNOWN), &["module-key-untrusted"], &[], false, false)]
#[case::keys_not_seen(Some(KNOWN), None, Known::Unknown("masked".into()), &[], &["module-key-untrusted"], false, false)]
#[case::to_compile_and_sign(None, Some(KNOWN), Known::Yes(KNOWN), &[], &[], false, true)]
#[case::to_sign_with_a_strange_key(None, Some("0abc"), Known::Yes(KNOWN), &["module-key-untrusted"], &[], false, true)]
#[case::stranger_but_a_key_here(Some("0abc"), Some(KNOWN), Known::Yes(KNOWN), &[], &[], false, true)]
fn under_secure_boot(
    #[case] set_by: Option<&str>,
    #[case] signer_here: Option<&str>,
    #[case] enrolled: Known<&str>,
    #[case] refusals: &[&str],
    #[case] warnings: &[&str],
    #[case] is_signed: bool,
    #[case] is_compiled: bool,
) {
    let facts = host(enrolled);
    let mut catalog = archives();
    catalog.sets.extend(set_by.map(|id| signed(&facts, id, SetPlace::Store)));
    catalog.signer = signer_here.map(signer);
    let plan = plan(&config("535", "open"), &facts, &catalog).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), refusals);
    assert_eq!(codes(&plan, Severity::Warning), warnings);
    assert_eq!((signs(&plan), builds(&plan)), (is_signed, is_compiled), "{:?}", plan.acquire);
    let exit = (!refusals.is_empty()).then_some(ExitCode::Preflight);
    assert_eq!(plan.refusal().map(|f| f.code()), exit);
}

#[rstest]
#[case::enforced("bookworm-secure-boot")]
#[case::not_enforced("bookworm-t4")]
fn an_unsigned_set_is_signed_with_the_key_here_and_not_compiled_again(#[case] tree: &str) {
    let mut facts = facts(tree);
    facts.security.keys =
        Known::Yes(vec![KernelKey { name: "x".into(), id: KNOWN.to_uppercase() }]);
    let mut catalog = stocked(&facts, Flavour::Open);
    catalog.signer = Some(signer(KNOWN));
    let unsigned = catalog.sets[0].set.key.file_stem();
    let first = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    let sign = Acquire::SignSet { set: unsigned, by: format!("Example: Module signing ({KNOWN})") };
    assert_eq!(first.acquire, [sign]);
    assert!(!first.exact && first.refusal().is_none(), "{:?}", first.findings);
    assert!(render(&first, &facts).contains("sign the modules: Example"));
    catalog.sets.push(signed(&facts, KNOWN, SetPlace::Store));
    let second = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert!(second.exact && second.acquire.is_empty(), "{:?}", second.acquire);
    assert!(why(&second, "signed for the kernel").contains("sha512"));
    let digests = second.install.iter().filter_map(|step| match step {
        Step::LoadModule { origin: ModuleOrigin::Driver { sha256 }, .. } => Some(sha256),
        _ => None,
    });
    assert!(digests.clone().count() == 3 && digests.clone().all(|d| d.starts_with("fff")));
}

#[test]
fn a_signed_set_of_a_registry_comes_before_an_unsigned_one_at_hand() {
    let facts = host(Known::Yes(KNOWN));
    let mut catalog = stocked(&facts, Flavour::Open);
    let place = SetPlace::Registry { registry: "r.example.com/a".into(), manifest: "m".into() };
    catalog.sets.push(signed(&facts, KNOWN, place));
    let plan = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert!(matches!(plan.acquire[..], [Acquire::PullSet { .. }]), "{:?}", plan.acquire);
}

#[test]
fn what_is_signed_comes_before_what_is_newer() {
    let facts = host(Known::Yes(KNOWN));
    let mut catalog = archives();
    catalog.sets.push(signed(&facts, KNOWN, SetPlace::Store));
    let plan = plan(&config("newest", "auto"), &facts, &catalog).unwrap();
    assert_eq!(plan.driver_version, "535.261.03");
    assert!(why(&plan, "driver").contains("the signature of"), "{}", why(&plan, "driver"));
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
}

#[test]
fn a_stranger_is_named_with_those_the_kernel_knows() {
    let facts = host(Known::Yes(KNOWN));
    let mut catalog = archives();
    catalog.sets.push(signed(&facts, "0abc", SetPlace::Store));
    catalog.headers = Known::Unknown("away".into());
    let plan = plan(&config("535", "open"), &facts, &catalog).unwrap();
    let seen = &plan.findings[0].seen;
    assert!(seen.contains("Example: Module signing (0abc)") && seen.contains(KNOWN), "{seen}");
    assert!(seen.contains("Debian Secure Boot CA"), "{seen}");
}

#[test]
fn where_only_secure_boot_is_known_unsigned_modules_are_warned_of() {
    let mut facts = facts("bookworm-secure-boot");
    facts.security.lockdown = Known::Unknown("no securityfs".into());
    let unsigned = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    assert_eq!(codes(&unsigned, Severity::Warning), ["signature-required"]);
    let mut catalog = archives();
    catalog.signer = Some(signer(KNOWN));
    let to_sign = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert!(codes(&to_sign, Severity::Warning).is_empty(), "{:?}", to_sign.findings);
}
