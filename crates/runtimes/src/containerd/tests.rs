//! Effective values over several files, formats, and the comparison with containerd's own value.

use super::*;
use crate::files::memory::Memory;
use rstest::rstest;

const TOP: &str = "/etc/containerd/config.toml";
const PART: &str = "/etc/containerd/conf.d/50.toml";

fn assessed(version: Option<(u32, u32)>, files: &[(&str, &str)], dump: Option<&str>) -> Assessment {
    let version = version.map(|(major, minor)| Version::new(major, minor, 0));
    assess(version, Path::new(TOP), &Memory::of(files), dump)
}

/// Returns on, off in a file, or else the reason.
fn shown(assessment: &Assessment) -> String {
    match &assessment.state {
        State::On { .. } => "on".to_owned(),
        State::Off { edit, .. } => format!("off {}", edit.path.display()),
        other => other.reason().to_owned(),
    }
}

const IMPORTS: &str = "version = 2\nimports = [\"conf.d/*.toml\"]\n";
const ON: &str = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n";
const SECTION: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nx = 1\n";

#[rstest]
#[case::absent_old(Some((1, 7)), &[], "off /etc/containerd/config.toml")]
#[case::absent_new(Some((2, 0)), &[], "on")]
#[case::absent_unknown(None, &[], "off /etc/containerd/config.toml")]
#[case::too_old(Some((1, 6)), &[], "containerd 1.6.0 has no CDI, which came with 1.7")]
#[case::version_3_default(Some((2, 1)), &[(TOP, "version = 3\n")], "on")]
#[case::version_3_unknown(None, &[(TOP, "version = 3\n")], "on")]
#[case::version_3_for_old(
    Some((1, 7)),
    &[(TOP, "version = 3\n")],
    "/etc/containerd/config.toml is in the format of version 3, which containerd 1.7.0 does not read"
)]
#[case::switched_off(
    Some((2, 1)),
    &[(TOP, "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n")],
    "off /etc/containerd/config.toml"
)]
#[case::old_name_in_version_3(
    Some((2, 1)),
    &[(TOP, "version = 3\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n")],
    "on"
)]
#[case::disabled(
    Some((1, 7)),
    &[(TOP, "disabled_plugins = [\"cri\"]\n")],
    "its CRI plugin is disabled in /etc/containerd/config.toml"
)]
#[case::an_import_replaces(Some((1, 7)), &[(TOP, ON), (PART, SECTION)], "off /etc/containerd/conf.d/50.toml")]
#[case::an_import_merges(Some((2, 1)), &[(TOP, ON), (PART, SECTION)], "on")]
#[case::an_import_of_unknown(None, &[(TOP, ON), (PART, SECTION)], "off /etc/containerd/conf.d/50.toml")]
#[case::an_import_has_it(
    Some((1, 7)),
    &[(TOP, IMPORTS), (PART, "[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n")],
    "on"
)]
#[case::an_import_of_nothing(Some((1, 7)), &[(TOP, IMPORTS)], "off /etc/containerd/config.toml")]
#[case::a_circle(Some((2, 1)), &[(TOP, "version = 3\nimports = [\"../containerd/config.toml\"]")], "on")]
#[case::an_absent_import(
    Some((1, 7)),
    &[(TOP, "version = 2\nimports = [\"/etc/none.toml\"]")],
    "/etc/none.toml is imported and absent, so containerd does not start"
)]
#[case::a_pattern_of_directories(
    Some((1, 7)),
    &[(TOP, "version = 2\nimports = [\"/etc/*/x.toml\"]")],
    "/etc/containerd/config.toml imports /etc/*/x.toml, a pattern that is not read here"
)]
fn effective(
    #[case] version: Option<(u32, u32)>,
    #[case] files: &[(&str, &str)],
    #[case] wanted: &str,
) {
    assert_eq!(shown(&assessed(version, files, None)), wanted);
}

#[rstest]
#[case::no_version("root = \"/srv\"\n", "is in the format of version 1")]
#[case::version_1("version = 1\n", "is in the format of version 1")]
#[case::version_4("version = 4\n", "is in the format of version 4")]
#[case::no_toml("version = \n", "is not TOML, so containerd refuses it")]
#[case::twice("version = 2\nversion = 2\n", "is not TOML, so containerd refuses it")]
#[case::no_table("version = 2\nplugins = 3\n", "is not edited")]
#[case::dotted("version = 2\nplugins.\"io.containerd.grpc.v1.cri\".x = 3\n", "is not edited")]
fn refused(#[case] text: &str, #[case] reason: &str) {
    let made = assessed(Some((1, 7)), &[(TOP, text)], None);
    assert!(made.state.reason().contains(reason), "{made:?}");
    assert!(matches!(made.state, State::Refused { .. }));
}

#[test]
fn more_files_than_anybody_has_are_refused() {
    let many: Vec<_> =
        (0..100).map(|n| (format!("/etc/containerd/conf.d/{n}.toml"), "x = 1")).collect();
    let mut files: Vec<(&str, &str)> =
        many.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    files.push((TOP, IMPORTS));
    assert!(shown(&assessed(Some((1, 7)), &files, None)).contains("imports more than 64 files"));
}

#[rstest]
#[case::agrees(ON, "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n", "on")]
#[case::says_on(IMPORTS, "[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true\n", "on")]
#[case::says_off(
    ON,
    "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n",
    "`containerd config dump` has enable_cdi = false, though /etc/containerd/config.toml has enable_cdi = true"
)]
#[case::says_nothing(ON, "version = 2\n", "on")]
#[case::is_garbage(ON, "containerd: not found", "on")]
fn dumps(#[case] text: &str, #[case] dump: &str, #[case] wanted: &str) {
    assert_eq!(shown(&assessed(Some((1, 7)), &[(TOP, text)], Some(dump))), wanted);
}
