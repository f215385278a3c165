//! JSON of a plan's acquisitions, which `longshore plan --json` prints: scripts read it.

use super::*;
use longshore_modules::module_signing::Signer;
use longshore_sources::runfile::AvailableRunFile;

/// Returns the catalog with a set of this place, the host, and the flavour of the set.
fn with(place: SetPlace) -> (HostFacts, Catalog) {
    let facts = facts("bookworm-t4");
    let mut catalog = archives();
    catalog.sets.push(set(&facts, Flavour::Open, place));
    (facts, catalog)
}

fn in_layout() -> (HostFacts, Catalog) {
    with(SetPlace::layout(Path::new("/srv/modules"), "sha256:1"))
}

fn in_registry() -> (HostFacts, Catalog) {
    with(SetPlace::registry(&"registry.example.com/a".parse().unwrap(), "sha256:1"))
}

fn to_sign() -> (HostFacts, Catalog) {
    let (facts, mut catalog) = with(SetPlace::store());
    catalog.sets[0].set.key.kernel_version = facts.kernel.version.clone();
    catalog.signer = Some(Signer {
        certificate: "1".repeat(64),
        name: "Example: Module signing".into(),
        key_id: "25a7".into(),
        detached: false,
    });
    (facts, catalog)
}

fn in_run_file() -> (HostFacts, Catalog) {
    let file = AvailableRunFile {
        name: "NVIDIA-Linux-x86_64-535.261.03.run".into(),
        urls: vec!["file:///srv/driver.run".into()],
        sha256: "1".repeat(64),
        version: "535.261.03".into(),
        flavours: vec![Flavour::Open],
        stored: false,
        gpus: None,
    };
    (facts("bookworm-t4"), Catalog { run_files: Probe::Read(vec![file]), ..archives() })
}

fn with_build_root() -> (HostFacts, Catalog) {
    let headers = AvailableHeaders::BuildRoot {
        place: "/srv/root".into(),
        digest: "1".repeat(64),
        compiler: None,
    };
    (facts("bookworm-t4"), Catalog { headers: Probe::Read(headers), ..archives() })
}

const TREE: &str = r#"{"acquire":"assemble-userspace","driver_version":"535.261.03"}"#;
const BUILD: &str = r#"{"acquire":"build-set","driver_version":"535.261.03","flavour":"open","kernel_release":"6.1.0-50-amd64"}"#;

#[rstest]
#[case::import(
    in_layout(),
    r#"{"acquire":"import-set","dir":"/srv/modules","manifest":"sha256:1"}"#
)]
#[case::pull(
    in_registry(),
    r#"{"acquire":"pull-set","registry":"registry.example.com/a","manifest":"sha256:1"}"#
)]
#[case::build((facts("bookworm-t4"), archives()), BUILD)]
#[case::build_root(with_build_root(), "ROOT")]
#[case::sign(to_sign(), "SIGN")]
#[case::run_file(in_run_file(), "RUN")]
fn acquisitions_are_named_in_json(
    #[case] (facts, catalog): (HostFacts, Catalog),
    #[case] first: &str,
) {
    let plan = plan(&config("535.261.03", "open"), &facts, &catalog).unwrap();
    let first = match first {
        "SIGN" => format!(
            r#"{{"acquire":"sign-set","set":"{}","signer":"Example: Module signing (25a7)"}}"#,
            catalog.sets[0].set.key.file_stem()
        ),
        "RUN" => format!(
            r#"{{"acquire":"fetch-run-file","name":"NVIDIA-Linux-x86_64-535.261.03.run","sha256":"{}"}},{BUILD}"#,
            "1".repeat(64)
        ),
        "ROOT" => format!(
            r#"{},"build_root":{{"place":"/srv/root","sha256":"{}"}}}}"#,
            BUILD.trim_end_matches('}'),
            "1".repeat(64)
        ),
        other => other.to_owned(),
    };
    let json = serde_json::to_string(&plan.acquire).unwrap();
    assert_eq!(json, format!("[{first},{TREE}]"));
    let whole = serde_json::to_string(&plan).unwrap();
    assert!(whole.contains(&format!(r#""acquire":[{first},{TREE}],"install":["#)), "{whole}");
}
