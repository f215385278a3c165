use super::*;
use rstest::rstest;

fn package(version: &str) -> Package {
    Package {
        name: "linux-headers-6.1.0-50-amd64".into(),
        version: version.into(),
        arch: "amd64".into(),
        source: Some("linux".into()),
        component: "main".into(),
        filename: String::new(),
        size: 0,
        sha256: String::new(),
        depends: Vec::new(),
        provides: Vec::new(),
        base_url: "".into(),
        origin: longshore_core::package_origin::PackageOrigin::named("bookworm"),
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

/// Proxmox's headers have a name of their own, and Debian's place; a release is not sought among other kernels'.
#[rstest]
#[case("proxmox-headers-6.14.11-2-pve", "6.14.11-2-pve", Ok("usr/src/linux-headers-6.14.11-2-pve"))]
#[case("pve-headers-6.2.16-3-pve", "6.2.16-3-pve", Ok("usr/src/linux-headers-6.2.16-3-pve"))]
#[case(
    "proxmox-headers-6.14.11-2-pve",
    "6.14.11-3-pve",
    Err("boot a kernel whose headers there are (6.14.11-2-pve)")
)]
#[case(
    "linux-headers-6.1.0-50-amd64",
    "6.14.11-2-pve",
    Err("the archives have no headers of kernels like pve; ")
)]
#[case(
    "linux-headers-6.1.0-50-arm64",
    "6.18.8-current-rockchip64",
    Err("kernels like current-rockchip64; if their package has another name")
)]
fn headers_of_other_names(
    #[case] offered: &str,
    #[case] release: &str,
    #[case] expected: Result<&str, &str>,
) {
    let sha256 = "0".repeat(64);
    let text = format!(
        "Package: {offered}\nVersion: 1\nArchitecture: amd64\nFilename: a.deb\nSize: 1\n\
         SHA256: {sha256}\n"
    );
    let archive = Archive::of_suites(&[("bookworm", &text)]);
    match (find(&archive, release, None), expected) {
        (Ok(found), Ok(tree)) => {
            assert_eq!(found.package.name, offered);
            assert_eq!(format!("usr/src/{}", tree_of(&found.package.name)), tree);
        }
        (Err(failure), Err(remedy)) => {
            let text = failure.remedy_or_default();
            assert!(text.contains(remedy), "{text}");
        }
        (found, _) => panic!("{found:?}"),
    }
}
