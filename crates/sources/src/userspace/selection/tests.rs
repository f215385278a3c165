use super::*;
use longshore_core::failure::ExitCode;
use longshore_debian::relation::{parse_clauses, parse_provides};
use rstest::rstest;

fn package(text: &str) -> Package {
    let mut words = text.split(' ');
    let mut next = || words.next().expect("name version source suite component").to_owned();
    let (name, version, source, suite, component) = (next(), next(), next(), next(), next());
    let provides = text.split_once(" provides ").map_or("", |(_, provides)| provides);
    let depends = text.split_once(" depends ").map_or("", |(_, depends)| depends);
    Package {
        sha256: format!("{name}_{version}"),
        filename: String::new(),
        arch: "amd64".into(),
        source: (source != name).then_some(source),
        size: 1,
        depends: parse_clauses(depends).expect("depends"),
        provides: parse_provides(provides),
        base_url: "file:///archive".into(),
        origin: longshore_core::package_origin::PackageOrigin::named(suite),
        name,
        version,
        component,
    }
}

fn packages(texts: &[&str]) -> Vec<Package> {
    texts.iter().map(|text| package(text)).collect()
}

const GSP: &str = "firmware-nvidia-gsp 535.261.03-1 graphics bookworm non-free-firmware";
const BOOKWORM: &[&str] = &[
    "libcuda1 535.261.03-1 graphics bookworm non-free",
    "libnvidia-ml1 535.261.03-1 graphics bookworm non-free",
    "nvidia-smi 535.261.03-1 graphics bookworm non-free",
    "libnvidia-nvvm4 535.261.03-1 graphics bookworm non-free",
    "nvidia-kernel-support 535.261.03-1 graphics bookworm non-free",
    "nvidia-modprobe 535.161.07-1~deb12u1 nvidia-modprobe bookworm contrib",
    "nvidia-modprobe 570.133.07-1 nvidia-modprobe trixie contrib",
    "libnvidia-tesla-470-cuda1 470.256.02-1~deb12u1 tesla-470 bookworm non-free",
    "libnvidia-tesla-470-ml1 470.256.02-1~deb12u1 tesla-470 bookworm non-free",
    "libnvidia-tesla-470-nvvm4 470.256.02-1~deb12u1 tesla-470 bookworm non-free",
    "nvidia-tesla-470-smi 470.256.02-1~deb12u1 tesla-470 bookworm non-free",
    "nvidia-tesla-470-kernel-support 470.256.02-1~deb12u1 tesla-470 bookworm non-free provides firmware-nvidia-tesla-470-gsp (= 470.256.02)",
];

#[test]
fn the_packages_of_a_version_are_those_of_one_source() {
    let offered = packages(&[BOOKWORM, &[GSP]].concat());
    let chosen = choose("535.261.03", "amd64", &offered).expect("chosen");
    let names: Vec<_> =
        chosen.packages.iter().map(|p| format!("{} {}", p.name, p.version)).collect();
    assert_eq!(
        names,
        [
            "firmware-nvidia-gsp 535.261.03-1",
            "libcuda1 535.261.03-1",
            "libnvidia-ml1 535.261.03-1",
            "libnvidia-nvvm4 535.261.03-1",
            "nvidia-modprobe 535.161.07-1~deb12u1",
            "nvidia-smi 535.261.03-1",
        ]
    );
    assert!(chosen.missing.contains(&"libnvidia-nscq".to_owned()));
    assert!(!chosen.missing.contains(&"nvidia-modprobe".to_owned()));
}

#[test]
fn the_fabric_manager_has_exactly_the_drivers_version_and_the_subnet_manager_one_of_its_own() {
    let fabric = [
        "nvidia-fabricmanager-535 535.261.03-1 fabricmanager-535 cuda main",
        "nvidia-fabricmanager-535 535.274.02-1 fabricmanager-535 cuda main",
        "nvidia-fabricmanager 580.1-1 nvidia-fabricmanager cuda main",
        "nvlsm 2025.10.14-1 nvlsm cuda main",
    ];
    let offered = packages(&[BOOKWORM, &[GSP], &fabric].concat());
    let chosen = choose("535.261.03", "amd64", &offered).expect("chosen");
    let of = |name: &str| chosen.packages.iter().find(|p| p.name.starts_with(name));
    assert_eq!(of("nvidia-fabricmanager").expect("chosen").version, "535.261.03-1");
    assert_eq!(of("nvlsm").expect("chosen").version, "2025.10.14-1");
    let chosen = choose("470.256.02", "amd64", &offered).expect("chosen");
    assert!(chosen.missing.contains(&"nv-fabricmanager".to_owned()));
}

/// Lines of Ubuntu's archive: a branch in its desktop and server edition, and a transitional branch.
fn ubuntu() -> Vec<Package> {
    let of = |branch: &str, version: &str| {
        let source = format!("nvidia-graphics-drivers-{branch} noble-updates restricted");
        let firmware = format!("nvidia-firmware-{branch}-{version}");
        let names = [
            "libnvidia-compute",
            "nvidia-utils",
            "nvidia-compute-utils",
            "libnvidia-cfg1",
            "libnvidia-decode",
            "libnvidia-encode",
            "libnvidia-extra",
            "libnvidia-fbc1",
            "libnvidia-gl",
            "nvidia-kernel-common",
        ];
        let names = names.map(|name| format!("{name}-{branch}")).into_iter().chain([firmware]);
        names.map(|name| format!("{name} {version}-0ubuntu1 {source}")).collect::<Vec<_>>()
    };
    let transitional = "libnvidia-compute-570 580.178.04-0ubuntu1 nvidia-graphics-drivers-580 \
                        noble-updates restricted depends libnvidia-compute-580";
    let fabric = [
        "nvidia-fabricmanager-580 580.178.04-0ubuntu1 fabric-manager-580 noble multiverse",
        "nvidia-fabricmanager-580 580.173.02-0ubuntu1 fabric-manager-580 noble multiverse",
        "libnvidia-nscq-580 580.173.02-0ubuntu1 libnvidia-nscq-580 noble multiverse",
        "nvidia-imex-580 580.173.02-0ubuntu1 nvidia-imex-580 noble multiverse",
        "nvidia-modprobe 570.1-1 nvidia-modprobe noble universe",
    ];
    let drivers = [of("580", "580.178.04"), of("580-server", "580.173.02")].concat();
    let rest = [transitional].into_iter().chain(fabric).map(str::to_owned);
    drivers.into_iter().chain(rest).map(|text| package(&text)).collect()
}

#[rstest]
#[case::desktop(
    "580.178.04",
    "libnvidia-cfg1-580 libnvidia-compute-580 libnvidia-decode-580 libnvidia-encode-580 \
     libnvidia-extra-580 libnvidia-fbc1-580 nvidia-compute-utils-580 nvidia-fabricmanager-580 \
     nvidia-firmware-580-580.178.04 nvidia-modprobe nvidia-utils-580",
    "libnvidia-nscq nvidia-imex"
)]
#[case::server(
    "580.173.02",
    "libnvidia-cfg1-580-server libnvidia-compute-580-server libnvidia-decode-580-server \
     libnvidia-encode-580-server libnvidia-extra-580-server libnvidia-fbc1-580-server \
     libnvidia-nscq-580 nvidia-compute-utils-580-server nvidia-fabricmanager-580 \
     nvidia-firmware-580-server-580.173.02 nvidia-imex-580 nvidia-modprobe \
     nvidia-utils-580-server",
    ""
)]
fn packages_under_ubuntus_names_are_of_one_edition(
    #[case] version: &str,
    #[case] expected: &str,
    #[case] missing: &str,
) {
    let chosen = choose(version, "amd64", &ubuntu()).expect("chosen");
    let names: Vec<_> = chosen.packages.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    for package in chosen.packages.iter().filter(|p| p.name != "nvidia-modprobe") {
        assert_eq!(version::upstream(&package.version), version, "{}", package.name);
    }
    for name in ["libnvidia-nscq", "nvidia-imex"] {
        let is_missing = chosen.missing.iter().any(|part| part == name);
        assert_eq!(is_missing, missing.contains(name), "{name}");
    }
}

#[test]
fn packages_without_a_branch_and_of_several_sources_go_together_by_their_version() {
    let numberless = [
        "libnvidia-compute 590.44.01-1ubuntu1 nvidia-driver cuda flat",
        "nvidia-utils 590.44.01-1ubuntu1 nvidia-driver cuda flat",
        "libnvidia-decode 590.44.01-1ubuntu1 nvidia-driver cuda flat",
        "nvidia-firmware 590.44.01-1ubuntu1 nvidia-kmod cuda flat",
        "nvidia-firmware 590.48.01-1ubuntu1 nvidia-kmod cuda flat",
        "nvidia-persistenced 590.44.01-1ubuntu1 nvidia-persistenced cuda flat",
        "nvidia-persistenced 590.48.01-1ubuntu1 nvidia-persistenced cuda flat",
        "nvidia-fabricmanager 590.44.01-1 nvidia-fabricmanager cuda flat",
        "nvlsm 2025.10.14-1 nvlsm cuda flat",
    ];
    let chosen = choose("590.44.01", "amd64", &packages(&numberless)).expect("chosen");
    let names: Vec<_> =
        chosen.packages.iter().map(|p| format!("{} {}", p.name, p.version)).collect();
    let expected = [
        "libnvidia-compute 590.44.01-1ubuntu1",
        "libnvidia-decode 590.44.01-1ubuntu1",
        "nvidia-fabricmanager 590.44.01-1",
        "nvidia-firmware 590.44.01-1ubuntu1",
        "nvidia-persistenced 590.44.01-1ubuntu1",
        "nvidia-utils 590.44.01-1ubuntu1",
        "nvlsm 2025.10.14-1",
    ];
    assert_eq!(names, expected);
}

/// Names of NVIDIA's archives: that for Ubuntu has no package of the tools since 590, that for Debian has them in
/// `nvidia-driver-cuda`.
#[rstest]
#[case::for_ubuntu_2604(
    "610.57.04",
    &[
        "libnvidia-compute 610.57.04-1ubuntu1 nvidia-driver cuda flat",
        "libnvidia-gpucomp 610.57.04-1ubuntu1 nvidia-driver cuda flat",
        "libnvidia-cfg1 610.57.04-1ubuntu1 nvidia-driver cuda flat",
        "nvidia-kernel-common 610.57.04-1ubuntu1 nvidia-driver cuda flat",
        "nvidia-firmware 610.57.04-1ubuntu1 nvidia-kmod cuda flat",
        "nvidia-persistenced 610.57.04-1ubuntu1 nvidia-persistenced cuda flat",
        "nvidia-modprobe 610.57.04-1ubuntu1 nvidia-modprobe cuda flat",
    ],
    "libnvidia-cfg1 libnvidia-compute libnvidia-gpucomp nvidia-firmware nvidia-kernel-common nvidia-modprobe \
     nvidia-persistenced"
)]
#[case::for_debian_13(
    "595.58.03",
    &[
        "libcuda1 595.58.03-1 nvidia-driver cuda flat",
        "libnvidia-ml1 595.58.03-1 nvidia-driver cuda flat",
        "libnvidia-nvvm4 595.58.03-1 nvidia-driver cuda flat",
        "libnvidia-tileiras 595.58.03-1 nvidia-driver cuda flat",
        "nvidia-driver-cuda 595.58.03-1 nvidia-driver cuda flat",
        "nvidia-driver-libs 595.58.03-1 nvidia-driver cuda flat",
        "nvidia-kernel-support 595.58.03-1 nvidia-driver cuda flat",
        "firmware-nvidia-gsp 595.58.03-1 nvidia-driver cuda flat",
    ],
    "firmware-nvidia-gsp libcuda1 libnvidia-ml1 libnvidia-nvvm4 libnvidia-tileiras nvidia-driver-cuda"
)]
fn packages_of_nvidias_archives_are_complete(
    #[case] version: &str,
    #[case] offered: &[&str],
    #[case] expected: &str,
) {
    let chosen = choose(version, "amd64", &packages(offered)).expect("chosen");
    let names: Vec<_> = chosen.packages.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn a_branch_of_its_own_is_found_under_its_names() {
    let chosen = choose("470.256.02", "amd64", &packages(BOOKWORM)).expect("chosen");
    let names: Vec<_> = chosen.packages.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "libnvidia-tesla-470-cuda1",
            "libnvidia-tesla-470-ml1",
            "libnvidia-tesla-470-nvvm4",
            "nvidia-modprobe",
            "nvidia-tesla-470-kernel-support",
            "nvidia-tesla-470-smi",
        ]
    );
}

#[test]
fn of_two_complete_sources_the_newer_revision_is_taken() {
    let rebuilt: Vec<_> = [BOOKWORM, &[GSP]]
        .concat()
        .iter()
        .map(|text| {
            text.replace("535.261.03-1 ", "535.261.03-2~bpo+1 ").replace("bookworm", "backports")
        })
        .collect();
    let rebuilt: Vec<_> = rebuilt.iter().map(String::as_str).collect();
    let offered = packages(&[BOOKWORM, &[GSP], rebuilt.as_slice()].concat());
    let chosen = choose("535.261.03", "amd64", &offered).expect("chosen");
    let libcuda = chosen.packages.iter().find(|p| p.name == "libcuda1").expect("libcuda1");
    assert_eq!(libcuda.version, "535.261.03-2~bpo+1");
}

#[test]
fn a_binary_rebuild_belongs_to_its_source_version() {
    let offered =
        packages(&[BOOKWORM, &[&GSP.replace("535.261.03-1", "535.261.03-1+b2")]].concat());
    assert!(choose("535.261.03", "amd64", &offered).is_ok());
}

#[rstest]
#[case::no_firmware("535.261.03", "amd64", "GSP firmware")]
#[case::no_such_version("999.1", "amd64", "999.1")]
#[case::no_such_arch("535.261.03", "arm64", "arm64")]
fn what_is_not_to_be_had_is_named(#[case] version: &str, #[case] arch: &str, #[case] said: &str) {
    let failure = choose(version, arch, &packages(BOOKWORM)).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Download);
    assert!(failure.to_string().contains(said), "{failure}");
    assert!(failure.remedy_text().is_some());
}
