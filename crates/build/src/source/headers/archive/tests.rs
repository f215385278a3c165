use super::*;
use rstest::rstest;

fn package(version: &str) -> Package {
    Package {
        name: "linux-headers-6.1.0-50-amd64".into(),
        version: version.into(),
        arch: "amd64".into(),
        source: Some("linux".into()),
        suite: "bookworm".into(),
        component: "main".into(),
        filename: String::new(),
        size: 0,
        sha256: String::new(),
        depends: Vec::new(),
        provides: Vec::new(),
        base_url: "".into(),
        phased: None,
        host_flat: false,
    }
}

#[rstest]
#[case::newest(None, Some("6.1.176-2"))]
#[case::named(Some("#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)"), Some("6.1.176-1"))]
#[case::another_form(Some("#1 SMP PREEMPT_DYNAMIC Thu Nov 5 2026"), Some("6.1.176-2"))]
#[case::gone(Some("#1 SMP Debian 6.1.176-10 (2026-08-02)"), None)]
#[case::of_ubuntu(Some("#91-Ubuntu SMP Tue Nov 14 13:30:08 UTC 2023"), None)]
fn the_version_that_runs_is_chosen(#[case] uname: Option<&str>, #[case] wanted: Option<&str>) {
    let candidates = [package("6.1.176-2"), package("6.1.176-1")];
    let chosen = choose(&candidates, "6.1.0-50-amd64", uname).map(|p| p.version.as_str());
    assert_eq!(chosen, wanted);
}
