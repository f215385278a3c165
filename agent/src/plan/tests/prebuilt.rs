//! Sets of registries, and unsigned sets.

use longshore_core::failure::ExitCode;
use std::time::Duration;

use super::*;
use crate::catalog::{Lack, RefusedSet};
use crate::config::PublishConfig;

fn registry() -> SetPlace {
    SetPlace::registry(&"registry.example.com/a".parse().unwrap(), "sha256:1")
}

fn in_registry(facts: &HostFacts) -> AvailableSet {
    set(facts, Flavour::Open, registry())
}

fn strict(driver: &str) -> Config {
    let mut config = config(driver, "auto");
    config.signatures.required = true;
    config
}

#[test]
fn a_set_of_a_registry_is_fetched_and_nothing_compiled() {
    let facts = facts("bookworm-t4");
    let mut catalog = archives();
    catalog.sets.push(in_registry(&facts));
    let plan = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert_eq!(plan.acquire[0], Acquire::Fetch(Item::Set(registry())));
    assert!(!plan.acquire.iter().any(|a| matches!(a, Acquire::BuildSet { .. })));
    assert!(why(&plan, "modules").contains("registry.example.com/a"));
    assert!(render(&plan, &facts).contains("registry.example.com/a@sha256:1"));
}

#[test]
fn where_the_headers_of_a_set_were_from_is_said() {
    let facts = facts("bookworm-t4");
    let cases = [
        (HeadersFrom::Archive, "linux-headers_1_amd64", "from an archive: linux-headers_1_amd64"),
        (HeadersFrom::Host, "/usr/src/a", "from the host that compiled it, unsigned: /usr/s"),
        (
            HeadersFrom::Named,
            "/usr/src/a",
            "from a configured place of the host that compiled it, u",
        ),
        (HeadersFrom::Unknown, "x", "from an unknown place, for the modules were compiled e"),
    ];
    for (from, name, wanted) in cases {
        for local in [false, true] {
            let mut available = match local {
                true => set(&facts, Flavour::Open, SetPlace::store()),
                false => in_registry(&facts),
            };
            available.set.headers_from = from;
            available.set.key.headers = [(name.to_owned(), "5".repeat(64))].into();
            let mut catalog = archives();
            catalog.sets.push(available);
            let plan = plan(&config("535", "auto"), &facts, &catalog).unwrap();
            let reason = plan.reasons.iter().find(|r| r.heading() == "headers of the modules");
            // Modules compiled here with an archive's headers need no mention.
            let is_reported = !local || from != HeadersFrom::Archive;
            assert_eq!(reason.is_some(), is_reported, "{from:?}");
            assert!(reason.is_none_or(|reason| reason.reason.starts_with(wanted)), "{reason:?}");
        }
    }
}

#[rstest]
#[case::with_another(true)]
#[case::without(false)]
fn a_denied_set_is_named_and_not_used(#[case] compile: bool) {
    let facts = facts("bookworm-t4");
    let mut catalog = archives();
    catalog.denied.push(in_registry(&facts));
    let config = if compile { config("535", "auto") } else { strict("535") };
    let plan = plan(&config, &facts, &catalog).unwrap();
    assert!(!plan.acquire.iter().any(|item| matches!(item, Acquire::Fetch(Item::Set(_)))));
    let is_it = |finding: &&Finding| finding.code == Code::SetDenied;
    let finding = plan.findings.iter().find(is_it).expect("the finding");
    assert!(finding.detail.contains("registry.example.com/a"), "{}", finding.detail);
    let wanted = if compile { Severity::Warning } else { Severity::Refusal };
    assert_eq!(finding.severity, wanted);
    let refused = (!compile).then_some(ExitCode::Verification);
    assert_eq!(plan.refusal().map(|failure| failure.code()), refused);
}

#[rstest]
#[case::newest("newest", false)]
#[case::branch("535", false)]
#[case::version("535.261.03", false)]
#[case::newest_of_two("newest", true)]
fn a_driver_below_the_minimum_is_not_installed(#[case] driver: &str, #[case] newer: bool) {
    let facts = facts("bookworm-t4");
    let mut catalog = archives();
    catalog.sets.push(in_registry(&facts));
    if newer {
        let mut set = in_registry(&facts);
        set.set.key.driver_version = "550.163.01".into();
        catalog.sets.push(set);
    }
    let mut config = strict(driver);
    config.driver.minimum = Some("535.261.4".parse().unwrap());
    let plan = plan(&config, &facts, &catalog).unwrap();
    if newer {
        assert_eq!(plan.driver_version, "550.163.01");
        assert!(plan.refusal().is_none(), "{:?}", plan.findings);
        return;
    }
    assert_eq!(plan.refusal().expect("refused").code(), ExitCode::Verification);
    let is_it = |finding: &&Finding| finding.code == Code::DriverBelowMinimum;
    let finding = plan.findings.iter().find(is_it).expect("the finding");
    assert!(finding.detail.contains("below driver-minimum, 535.261.4"), "{}", finding.detail);
    // The minimum itself is permitted.
    config.driver.minimum = Some("535.261.3".parse().unwrap());
    let plan = super::plan(&config, &facts, &catalog).unwrap();
    assert_eq!(plan.driver_version, "535.261.03");
    assert!(!plan.findings.iter().any(|f| f.code == Code::DriverBelowMinimum));
}

#[rstest]
#[case::not_for_others(false, "publication off", "the host's /lib/modules")]
#[case::all_the_same(true, "publication on", "registry.example.com/a")]
fn what_is_compiled_with_headers_that_nobody_signed(
    #[case] all: bool,
    #[case] what: &str,
    #[case] why: &str,
) {
    let mut catalog = archives();
    catalog.headers = Probe::Read(AvailableHeaders::Local {
        place: "the host's /lib/modules/x/build".into(),
        compiler: "gcc-12".into(),
        passed_over: Vec::new(),
    });
    let mut config = config("535", "auto");
    config.publish = Some(PublishConfig {
        reference: "registry.example.com/a".parse().expect("a repository"),
        sign_key: None,
        attest: false,
        lease: Duration::from_secs(60),
        wait: Duration::from_secs(60),
        unsigned_headers: all,
    });
    let plan = plan(&config, &facts("bookworm-t4"), &catalog).unwrap();
    let reason = plan.reasons.iter().find(|reason| reason.heading() == what).expect("a reason");
    assert!(reason.reason.contains(why), "{}", reason.reason);
}

#[test]
fn the_store_comes_before_a_registry() {
    let facts = facts("bookworm-t4");
    let mut catalog = stocked(&facts, Flavour::Open);
    catalog.sets.push(in_registry(&facts));
    let plan = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert!(plan.acquire.is_empty(), "{:?}", plan.acquire);
}

#[rstest]
#[case::another_source(true, None)]
#[case::the_last_source(false, Some(ExitCode::Download))]
fn a_registry_that_is_away(#[case] compile: bool, #[case] ends: Option<ExitCode>) {
    let mut catalog = archives();
    let failure = Failure::new(FailureKind::Download, "x");
    let name = "registry.example.com/a";
    catalog.failures.push(SourceFailure::new(SourceId::Registry, name, failure));
    let mut config = config("535.261.03", "auto");
    config.compile = compile;
    let plan = plan(&config, &facts("bookworm-t4"), &catalog).unwrap();
    let finding = plan.findings.iter().find(|f| f.code == Code::RegistryUnread).expect("a finding");
    assert!(finding.detail.contains("registry.example.com/a"), "{}", finding.detail);
    assert_eq!(plan.refusal().map(|f| f.code()), ends);
}

#[test]
fn without_a_signature_nothing_is_loaded_and_nothing_compiled() {
    let facts = facts("bookworm-t4");
    let mut catalog = archives();
    let available = set(&facts, Flavour::Open, SetPlace::store());
    let why = "it has no signature".to_owned();
    catalog.refused.push(RefusedSet { available, why, lacks: Lack::Signature });
    let plan = plan(&strict("535.261.03"), &facts, &catalog).unwrap();
    let refusal = plan.refusal().unwrap();
    assert_eq!(refusal.code(), ExitCode::Verification);
    assert!(refusal.to_string().contains("the store: it has no signature"), "{refusal}");
    assert!(!plan.acquire.iter().any(|a| matches!(a, Acquire::BuildSet { .. })));
    assert!(loads(&plan).iter().all(|name| !name.starts_with("nvidia")), "{:?}", loads(&plan));
}

#[test]
fn a_set_that_only_lacks_an_attestation_is_named_before_unsigned_ones() {
    let facts = facts("bookworm-t4");
    let mut catalog = archives();
    refuse(&mut catalog, &facts, &[("it has no signature", Lack::Signature)]);
    refuse(&mut catalog, &facts, &[("it has no attestation", Lack::Attestation)]);
    let plan = plan(&strict("535.261.03"), &facts, &catalog).unwrap();
    assert_eq!(plan.refusal().map(|refusal| refusal.code()), Some(ExitCode::Verification));
    let refusals: Vec<_> =
        plan.findings.iter().filter(|f| f.severity == Severity::Refusal).collect();
    let [finding] = refusals[..] else { panic!("one refusal: {refusals:?}") };
    assert_eq!(finding.code, Code::AttestationMissing);
    assert!(finding.detail.contains("the store: it has no attestation"), "{}", finding.detail);
    assert!(finding.detail.contains("the store: it has no signature"), "{}", finding.detail);
}

fn refuse(catalog: &mut Catalog, facts: &HostFacts, sets: &[(&str, Lack)]) {
    for (why, lacks) in sets {
        let (available, why) = (set(facts, Flavour::Open, SetPlace::store()), (*why).to_owned());
        catalog.refused.push(RefusedSet { available, why, lacks: *lacks });
    }
}

#[rstest]
#[case::unlisted_alone(&[("not listed", Lack::Listing)], Code::IndexRefused)]
#[case::beside_an_unsigned_one(&[("unsigned", Lack::Signature), ("not listed", Lack::Listing)], Code::IndexRefused)]
#[case::beside_one_that_is_not_attested(
    &[("not listed", Lack::Listing), ("not attested", Lack::Attestation)],
    Code::AttestationMissing
)]
fn a_set_that_no_index_lists_is_a_finding_of_its_own(
    #[case] sets: &[(&str, Lack)],
    #[case] expected: Code,
) {
    let facts = facts("bookworm-t4");
    let mut catalog = archives();
    refuse(&mut catalog, &facts, sets);
    let plan = plan(&strict("535.261.03"), &facts, &catalog).unwrap();
    assert_eq!(plan.refusal().map(|refusal| refusal.code()), Some(ExitCode::Verification));
    let refusal =
        plan.findings.iter().find(|f| f.severity == Severity::Refusal).expect("a refusal");
    assert_eq!(refusal.code, expected);
    for (why, _) in sets {
        assert!(refusal.detail.contains(why), "{}", refusal.detail);
    }
}

#[test]
fn with_no_set_at_all_the_one_that_is_missing_is_named() {
    let plan = plan(&strict("535"), &facts("bookworm-t4"), &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["nothing-built"]);
    assert_eq!(plan.refusal().map(|f| f.code()), Some(ExitCode::Download));
}

#[test]
fn what_is_compiled_for_all_is_said_so() {
    let facts = facts("bookworm-t4");
    let publish = [("LONGSHORE_PUBLISH", "registry.example.com/a"), ("LONGSHORE_DRIVER", "535")];
    let env = |name: &str| publish.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let mut config = config::load(Fragment::default(), &env, None).unwrap();
    assert_eq!(config.registries.len(), 1, "it is looked in too");
    config.paths.root = PathBuf::from("/");
    config.paths.host_root = PathBuf::from("/");
    let compiled = plan(&config, &facts, &archives()).unwrap();
    assert!(why(&compiled, "publication on").contains("registry.example.com/a"));
    let mut catalog = archives();
    catalog.sets.push(in_registry(&facts));
    let pulled = plan(&config, &facts, &catalog).unwrap();
    assert_eq!(why(&pulled, "publication on"), "");
}
