//! Drivers of .run files: candidates, and their lists of supported GPUs.

use super::*;
use crate::catalog::SupportedGpus;
use longshore_core::failure::ExitCode;
use longshore_sources::runfile::AvailableRunFile;

const VERSION: &str = "535.261.03";

fn run_file(gpus: Option<&str>) -> AvailableRunFile {
    AvailableRunFile {
        name: format!("NVIDIA-Linux-x86_64-{VERSION}.run"),
        urls: vec!["file:///srv/driver.run".into()],
        sha256: "1".repeat(64),
        version: VERSION.into(),
        flavours: vec![Flavour::Open, Flavour::Proprietary],
        stored: gpus.is_some(),
        gpus: gpus.map(|text| SupportedGpus::parse(text.as_bytes()).unwrap()),
    }
}

/// Archives with newer drivers, and a configuration with a .run file.
fn with(file: AvailableRunFile) -> Catalog {
    Catalog { run_files: Probe::Read(vec![file]), ..archives() }
}

fn chips(text: &str) -> String {
    format!(r#"{{"chips": [{text}]}}"#)
}

#[test]
fn who_names_a_file_gets_its_driver() {
    let plan =
        plan(&config("newest", "auto"), &facts("bookworm-t4"), &with(run_file(None))).unwrap();
    assert_eq!(plan.driver_version, VERSION);
    assert!(why(&plan, "driver").contains(".run"), "{}", why(&plan, "driver"));
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert!(matches!(&plan.acquire[0], Acquire::Fetch(Item::RunFile(_))), "{:?}", plan.acquire);
    assert_eq!(plan.acquire.len(), 3);
    let user_mode = why(&plan, "user mode assembled");
    assert!(user_mode.contains("from NVIDIA-Linux-x86_64-535.261.03.run"), "{user_mode}");
}

#[test]
fn a_file_in_the_store_is_not_fetched() {
    let catalog = with(run_file(Some(&chips(""))));
    let plan = plan(&config("newest", "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    assert!(!plan.acquire.iter().any(|a| matches!(a, Acquire::Fetch(Item::RunFile(_)))));
}

#[test]
fn another_version_than_the_files_is_not_taken_from_the_archives() {
    let plan = plan(&config("550", "auto"), &facts("bookworm-t4"), &with(run_file(None))).unwrap();
    assert_eq!(plan.refusal().map(|f| f.code()), Some(ExitCode::Download));
    let offer = &plan.findings.iter().find(|f| f.code == Code::DriverNotOffered).unwrap().detail;
    assert!(offer.contains("no configured .run file has driver 550"), "{offer}");
    assert!(offer.contains("535.261.03 open"), "{offer}");
}

#[test]
fn a_file_that_cannot_be_read_is_no_reason_to_take_another_driver() {
    let mut config = config("newest", "auto");
    config.run_files = vec![longshore_sources::runfile::RunFileSource {
        urls: vec!["https://archive.example.com/driver.run".into()],
        pin: longshore_sources::runfile::Pin::Sha256("1".repeat(64)),
    }];
    let catalog = Catalog { run_files: Probe::Unreadable("no connection".into()), ..archives() };
    let plan = plan(&config, &facts("bookworm-t4"), &catalog).unwrap();
    assert!(codes(&plan, Severity::Refusal).contains(&"run-file-unread"), "{:?}", plan.findings);
}

/// The T4 of the tree is 0x1eb8.
#[rstest]
#[case::open_only(
    r#"{"devid": "0x1EB8", "name": "T4", "features": ["kernelopen"]},
    {"devid": "0x1DB4", "features": ["gsp_proprietary_supported"]}"#,
    "auto",
    Flavour::Open
)]
#[case::not_open(
    r#"{"devid": "0x1EB8", "name": "T4", "features": []},
    {"devid": "0x2330", "features": ["kernelopen"]}"#,
    "auto",
    Flavour::Proprietary
)]
fn what_the_file_says_goes_over_the_table(
    #[case] text: &str,
    #[case] flavour: &str,
    #[case] wanted: Flavour,
) {
    let catalog = with(run_file(Some(&chips(text))));
    let plan = plan(&config("newest", flavour), &facts("bookworm-t4"), &catalog).unwrap();
    assert_eq!(plan.flavour, wanted);
    assert!(why(&plan, "flavour").contains("T4"), "{}", why(&plan, "flavour"));
    assert!(why(&plan, "flavour").contains("supported-gpus.json"));
}

#[rstest]
#[case::legacy(
    r#"{"devid": "0x1EB8", "name": "T4", "legacybranch": "470.xx"}"#,
    "auto",
    "T4 needs branch 470 (list of driver 535.261.03)",
    "select driver 470"
)]
#[case::flavour(
    r#"{"devid": "0x1EB8", "name": "T4", "features": []},
    {"devid": "0x2330", "features": ["kernelopen"]}"#,
    "open",
    "T4 is not supported by the open modules",
    "select flavour proprietary"
)]
fn a_gpu_that_the_file_does_not_drive_is_refused(
    #[case] text: &str,
    #[case] flavour: &str,
    #[case] seen: &str,
    #[case] remedy: &str,
) {
    let catalog = with(run_file(Some(&chips(text))));
    let plan = plan(&config("newest", flavour), &facts("bookworm-t4"), &catalog).unwrap();
    let finding = plan.findings.iter().find(|f| f.code == Code::GpuUnsupported).unwrap();
    assert!(finding.detail.contains(seen), "{}", finding.detail);
    assert!(finding.remedy.contains(remedy), "{}", finding.remedy);
}

#[test]
fn a_gpu_that_the_file_does_not_know_is_judged_by_the_table() {
    let catalog = with(run_file(Some(&chips(r#"{"devid": "0x1EB8", "name": "T4"}"#))));
    let plan = plan(&config("newest", "open"), &facts("bookworm-v100"), &catalog).unwrap();
    assert!(codes(&plan, Severity::Refusal).contains(&"gpu-unsupported"), "{:?}", plan.findings);
}
