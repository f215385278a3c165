//! Effective values over several files, formats, and the comparison with containerd's own value.

use super::*;
use crate::files::memory::Memory;
use rstest::rstest;

const TOP: &str = "/etc/containerd/config.toml";
const PART: &str = "/etc/containerd/conf.d/50.toml";

fn assessed(version: Option<(u32, u32)>, files: &[(&str, &str)], dump: Option<&str>) -> Assessment {
    let version = version.map(|(major, minor)| Version::new(major, minor, 0));
    let dump = dump.map_or(Dump::NotAsked, |text| Dump::Text(text.to_owned()));
    asked(version, Path::new(TOP), None, &Memory::new(files), &dump)
}

fn asked(
    version: Option<Version>,
    path: &Path,
    edited: Option<&Path>,
    files: &Memory,
    dump: &Dump,
) -> Assessment {
    let distribution = Distribution::of_file(Runtime::Containerd, path);
    assess(Question { version, path, edited, distribution, dump }, files)
}

/// Returns on, off in a file, or else the reason.
fn shown(assessment: &Assessment) -> String {
    match &assessment.state {
        State::On { .. } => "on".to_owned(),
        State::Off { edit, .. } => format!("off {}", edit.path.display()),
        State::Unknown { edit: Some(edit), .. } => format!("unknown {}", edit.path.display()),
        other => other.reason().to_owned(),
    }
}

const IMPORTS: &str = "version = 2\nimports = [\"conf.d/*.toml\"]\n";
const ON: &str = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n";
const ON_3: &str = "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true\n";
const SECTION: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nx = 1\n";

#[rstest]
#[case::absent_old(Some((1, 7)), &[], "off /etc/containerd/config.toml")]
#[case::absent_new(Some((2, 0)), &[], "on")]
#[case::absent_unknown(None, &[], "unknown /etc/containerd/config.toml")]
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
#[case::an_import_of_unknown(None, &[(TOP, ON), (PART, SECTION)], "unknown /etc/containerd/conf.d/50.toml")]
#[case::version_4(Some((2, 3)), &[(TOP, "version = 4\n")], "on")]
#[case::version_4_for_old(
    Some((2, 2)),
    &[(TOP, "version = 4\n")],
    "/etc/containerd/config.toml is in the format of version 4, which containerd 2.2.0 does not read"
)]
#[case::a_drop_in_without_version(
    Some((2, 1)),
    &[(TOP, ON_3), (PART, "[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n")],
    "off /etc/containerd/conf.d/50.toml"
)]
#[case::the_old_section_without_version(
    Some((2, 3)),
    &[(TOP, ON_3), (PART, "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n")],
    "off /etc/containerd/conf.d/50.toml"
)]
#[case::a_drop_in_makes_the_old_section_unread(
    Some((2, 1)),
    &[
        (TOP, "version = 2\nimports = [\"conf.d/*.toml\"]\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n"),
        (PART, "[debug]\nlevel = \"info\"\n"),
    ],
    "on"
)]
#[case::each_by_its_own_version(
    Some((2, 3)),
    &[
        (TOP, "version = 2\nimports = [\"conf.d/*.toml\"]\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n"),
        (PART, "[debug]\nlevel = \"info\"\n"),
    ],
    "off /etc/containerd/config.toml"
)]
#[case::a_higher_drop_in(
    Some((2, 3)),
    &[(TOP, IMPORTS), (PART, "version = 4\n")],
    "containerd does not start: /etc/containerd/conf.d/50.toml is of version 4, above version 2 of /etc/containerd/config.toml, which containerd refuses from 2.3 on"
)]
#[case::a_higher_drop_in_before(Some((2, 2)), &[(TOP, IMPORTS), (PART, "version = 3\n")], "on")]
#[case::a_lower_drop_in(Some((2, 3)), &[(TOP, ON_3), (PART, "version = 2\n")], "on")]
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

#[test]
fn a_dump_that_fails_or_is_silent_is_never_on() {
    let files = Memory::new(&[(TOP, ON_3), (PART, "version = 4\n")]);
    let version = Some(Version::new(2, 3, 2));
    let failed = "ended with exit status: 1: containerd: drop-in config version 4 higher than root config version 3";
    for (dump, reason) in [
        (
            Dump::Failed(failed.to_owned()),
            "containerd does not start: /etc/containerd/conf.d/50.toml: ",
        ),
        (
            Dump::Failed("other".to_owned()),
            "containerd does not start: `containerd config dump` failed: other",
        ),
        (Dump::Silent("has not ended in 10 s".to_owned()), "could not be asked: has not ended"),
    ] {
        let made = asked(version, Path::new(TOP), None, &files, &dump);
        assert!(matches!(made.state, State::Refused { .. }), "{made:?}");
        assert!(
            made.state.reason().starts_with(reason) || made.state.reason().contains(reason),
            "{made:?}"
        );
    }
}

const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
const HEADER: &str =
    "# File generated by k3s. DO NOT EDIT. Use config-v3.toml.tmpl instead.\nversion = 3\n";
const OFF: &str = "[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = false\n";

fn k3s(path: &str, files: &[(&str, &str)]) -> Assessment {
    let path = Path::new(path);
    let distribution = Distribution::of_file(Runtime::Containerd, path);
    let top = distribution.top_of(path);
    let (top, edited) = match &top {
        Some(top) => (top.as_path(), Some(path)),
        None => (path, None),
    };
    asked(Some(Version::new(2, 1, 5)), top, edited, &Memory::new(files), &Dump::NotAsked)
}

#[test]
fn a_generated_file_is_not_edited_and_the_place_that_lasts_is_named() {
    let dir = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d";
    let imports = format!("{HEADER}imports = [\"{dir}/*.toml\"]\n{OFF}");
    let drop_in = format!("{dir}/50-cdi.toml");
    let template = K3S.replace(".toml", "-v3.toml.tmpl");
    let plain = format!("{HEADER}{OFF}");
    for (path, files, place) in [
        (K3S, &[(K3S, imports.as_str())][..], drop_in.as_str()),
        (K3S, &[(K3S, plain.as_str())], template.as_str()),
        (
            &template,
            &[(K3S, imports.as_str()), (&template, "{{ template \"base\" . }}\n")],
            &drop_in,
        ),
        (
            &template,
            &[(K3S, plain.as_str()), (&template, "{{ template \"base\" . }}\n")],
            &template,
        ),
    ] {
        let made = k3s(path, files);
        assert_eq!(made.state.edit(), None, "{made:?}");
        assert!(!made.state.is_well());
        assert!(made.state.remedy().is_some_and(|remedy| remedy.contains(place)), "{made:?}");
        assert!(!format!("{made:?}").contains("correct the file"), "{made:?}");
    }
    // The drop-in that was named is made, and another one that has the value is edited.
    let made = k3s(&drop_in, &[(K3S, &imports)]);
    let edit = made.state.edit().expect("an edit");
    assert_eq!(edit.before, None);
    assert_eq!(
        edit.after,
        "version = 3\n\n[plugins.\"io.containerd.cri.v1.runtime\"]\n  enable_cdi = true\n"
    );
    let on = k3s(&drop_in, &[(K3S, &imports), (&drop_in, &edit.after)]);
    assert!(on.state.is_well(), "{on:?}");
    let later = format!("{dir}/99.toml");
    let made = k3s(&drop_in, &[(K3S, &imports), (&later, OFF)]);
    assert!(made.state.reason().contains("has no effect"), "{made:?}");
}

#[test]
fn k0s_reads_its_directory_whether_it_runs_or_not() {
    let top = "/etc/k0s/containerd.toml";
    let text = "# k0s_managed=true\nversion = 2\nimports = [\"/run/k0s/containerd-cri.toml\"]\n";
    let drop_in = "/etc/k0s/containerd.d/50-cdi.toml";
    let on = "[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n";
    let version = Some(Version::new(1, 7, 24));
    let of = |edited: Option<&str>, files: &[(&str, &str)]| {
        asked(version, Path::new(top), edited.map(Path::new), &Memory::new(files), &Dump::NotAsked)
    };
    let made = of(None, &[(top, text)]);
    assert!(made.state.remedy().is_some_and(|remedy| remedy.contains(drop_in)), "{made:?}");
    assert_eq!(of(None, &[(top, text), (drop_in, on)]).state.name(), "on");
    let made = of(Some(drop_in), &[(top, text)]);
    let edit = made.state.edit().expect("an edit");
    let files = Memory::new(&[(top, text)]);
    let copy = candidate(&files, Path::new(top), Keeping::K0s, edit, Path::new("/d"));
    let copy = copy.expect("made");
    assert!(copy[0].1.contains("imports = [\"/d/1.toml\"]"), "the drop-in is judged: {copy:?}");
    assert_eq!(copy[1].1, edit.after);
}

#[test]
fn no_edit_is_offered_while_the_directory_of_specs_is_missing_from_the_list() {
    let text =
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\ncdi_spec_dirs = [\"/etc/cdi\"]\n";
    for version in [Some((1, 7)), Some((2, 1)), None] {
        let made = assessed(version, &[(TOP, text)], None);
        assert!(matches!(made.state, State::Manual { .. }), "{made:?}");
        assert!(made.state.reason().contains("lists no /var/run/cdi"), "{made:?}");
    }
}

#[test]
fn a_copy_reads_its_files_in_the_order_of_the_originals() {
    let files = Memory::new(&[
        (TOP, "version = 3\nimports = [\"conf.d/*.toml\", \"/etc/x.toml\"]\nroot = \"/srv\"\n"),
        (PART, "x = 1\n"),
        ("/etc/x.toml", "imports = [\"/etc/containerd/config.toml\"]\n"),
    ]);
    let edit = Edit { path: PART.into(), before: None, after: "x = 2\n".to_owned() };
    let made =
        candidate(&files, Path::new(TOP), Keeping::Own, &edit, Path::new("/d")).expect("made");
    let texts: Vec<_> =
        made.iter().map(|(path, text)| (path.to_str().expect("UTF-8"), text.as_str())).collect();
    assert_eq!(
        texts,
        [
            (
                "/d/0.toml",
                "version = 3\nimports = [\"/d/1.toml\", \"/d/2.toml\"]\nroot = \"/srv\"\n"
            ),
            ("/d/1.toml", "x = 2\n"),
            ("/d/2.toml", "imports = [\"/d/0.toml\"]\n"),
        ]
    );
}
