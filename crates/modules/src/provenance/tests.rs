use std::collections::BTreeSet;

use super::*;
use crate::artifact::CoreInput;
use crate::testing::{build_record, set};
use rstest::rstest;
use serde_json::Value;

/// Returns the provenance and the bill of materials of a set with a patch.
fn statements() -> (Value, Value) {
    let mut set = set();
    set.key.patches.insert("pci-resize".into(), "6".repeat(64));
    set.key.patches.insert(PACKAGING_PATCHES.into(), "7".repeat(64));
    set.key.headers.insert("/usr/src/linux-headers".into(), "8".repeat(64));
    let record = build_record();
    let builder = "https://example.com/builder".parse().expect("a URI");
    let compiled = Compiled { set: &set, record: &record, builder: &builder };
    let mut predicates = compiled.predicates();
    assert_eq!(predicates, compiled.predicates());
    let (spdx, slsa) = (predicates.pop().expect("two"), predicates.pop().expect("one"));
    assert_eq!((slsa.0.to_string(), spdx.0.to_string()), ("provenance".into(), "spdx".into()));
    (slsa.1, spdx.1)
}

#[test]
fn provenance_names_the_request_the_builder_and_every_input_by_its_digest() {
    let (slsa, _) = statements();
    let definition = &slsa["buildDefinition"];
    let parameters = &definition["externalParameters"];
    assert_eq!(parameters["kernel"]["release"], "6.12.117+deb13-amd64");
    assert!(parameters["kernel"]["version"].as_str().is_some_and(|v| v.starts_with("#1 SMP")));
    assert_eq!(
        (&parameters["driver"], &parameters["flavour"]),
        (&"535.261.03".into(), &"open".into())
    );
    let inputs = definition["resolvedDependencies"].as_array().expect("inputs");
    let found: Vec<(&str, &str)> = inputs
        .iter()
        .map(|input| {
            let digest = input["digest"]["sha256"].as_str().expect("a digest");
            (input["annotations"]["role"].as_str().expect("a role"), &digest[..1])
        })
        .collect();
    let expected = [
        ("driver", "1"),
        ("headers", "2"),
        ("compiler", "4"),
        ("tool", "5"),
        ("headers", "8"),
        ("packaging-patches", "7"),
        ("patch", "6"),
    ];
    assert_eq!(found, expected);
    let purl = "pkg:deb/debian/gcc-14@1%3A2.0-3~deb13u1?arch=amd64";
    assert_eq!(inputs[2]["uri"], purl);
    let run = &slsa["runDetails"];
    assert_eq!(run["builder"]["id"], "https://example.com/builder");
    assert_eq!(run["metadata"]["finishedOn"], "2026-11-20T14:04:11Z");
    assert_eq!(run["byproducts"][0]["name"], "nvidia.ko");
}

#[rstest]
#[case::of_a_package(None, None)]
#[case::compiled_here(Some(None), None)]
#[case::pulled(Some(Some("9")), Some("9"))]
fn pulled_core_objects_are_an_input_by_their_manifest(
    #[case] core: Option<Option<&str>>,
    #[case] expected: Option<&str>,
) {
    let pulled = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let core = core.map(|of| CoreInput { key: "1".repeat(64), pulled: of.map(pulled) });
    let (set, record) = (set(), BuildRecord { core, ..build_record() });
    let builder = "https://example.com/builder".parse().expect("a URI");
    let [slsa, spdx] = Compiled { set: &set, record: &record, builder: &builder }
        .predicates()
        .try_into()
        .expect("two predicates");
    let inputs = slsa.1["buildDefinition"]["resolvedDependencies"].clone();
    let of_core = |input: &&Value| input["annotations"]["role"] == "core-objects";
    let found = inputs.as_array().expect("inputs").iter().find(of_core).cloned();
    let digest = found.map(|input| input["digest"]["sha256"].clone());
    assert_eq!(digest, expected.map(|digit| digit.repeat(64).into()));
    let packages = spdx.1["packages"].as_array().expect("packages");
    let has_core = packages.iter().any(|package| package["name"] == "core-objects");
    assert_eq!(has_core, expected.is_some());
}

/// The rules of SPDX 2.3 that a JSON schema does not hold.
#[test]
fn a_bill_of_materials_refers_to_nothing_that_it_does_not_have() {
    let (_, spdx) = statements();
    let ids = |name: &str| -> Vec<String> {
        let all = spdx[name].as_array().expect("a list");
        all.iter().map(|one| one["SPDXID"].as_str().expect("an id").to_owned()).collect()
    };
    let all: Vec<String> =
        [ids("packages"), ids("files"), vec!["SPDXRef-DOCUMENT".into()]].concat();
    let unique: BTreeSet<&String> = all.iter().collect();
    assert_eq!(unique.len(), all.len());
    let is_id = |id: &str| {
        let rest = id.strip_prefix("SPDXRef-").unwrap_or_default();
        !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c))
    };
    assert!(all.iter().all(|id| is_id(id)), "{all:?}");
    let relationships = spdx["relationships"].as_array().expect("a list");
    for relationship in relationships {
        for end in ["spdxElementId", "relatedSpdxElement"] {
            let end = relationship[end].as_str().expect("an id").to_owned();
            assert!(unique.contains(&end), "{end}");
        }
    }
    // The document, seven materials, and one module.
    assert_eq!(relationships.len(), 9);
    let kinds: Vec<&Value> = relationships.iter().map(|r| &r["relationshipType"]).collect();
    assert_eq!(kinds[1], "GENERATED_FROM");
    assert_eq!(kinds[3], "BUILD_TOOL_OF");
    assert_eq!(kinds[7], "PATCH_APPLIED");
}

#[rstest]
#[case("gcc-12", "gcc-12")]
#[case("g++", "g%2B%2B")]
#[case("1:2~x", "1%3A2~x")]
#[case("\u{e4}", "%C3%A4")]
fn parts_of_package_urls_are_escaped(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(escaped(text), expected);
}
