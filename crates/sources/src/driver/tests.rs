use super::*;
use longshore_core::failure::ExitCode;
use rstest::rstest;

fn driver(package: &str, package_version: &str) -> AvailableDriver {
    AvailableDriver {
        version: version::upstream(package_version).to_owned(),
        flavour: flavour_of(package).expect("a driver package"),
        origin: DriverOrigin::Package {
            name: package.to_owned(),
            version: package_version.to_owned(),
            origin: PackageOrigin::named("bookworm"),
        },
        sha256: "1".repeat(64),
    }
}

fn some() -> Vec<AvailableDriver> {
    let mut drivers = vec![
        driver("nvidia-tesla-470-kernel-source", "470.256.02-1~deb12u1"),
        driver("nvidia-kernel-source", "535.261.03-1"),
        driver("nvidia-open-kernel-source", "535.261.03-1"),
        driver("nvidia-kernel-source", "535.309.01-0+deb12u1"),
        driver("nvidia-open-kernel-source", "550.163.01-2"),
    ];
    drivers.sort_by(newest_first);
    drivers
}

#[rstest]
#[case("nvidia-kernel-source", Some(Flavour::Proprietary))]
#[case("nvidia-open-kernel-source", Some(Flavour::Open))]
#[case("nvidia-tesla-470-kernel-source", Some(Flavour::Proprietary))]
#[case("nvidia-kernel-source-535-open", Some(Flavour::Open))]
#[case("nvidia-kernel-source-535", Some(Flavour::Proprietary))]
#[case("nvidia-kernel-source-580-server-open", Some(Flavour::Open))]
#[case("nvidia-kernel-source-580-server", Some(Flavour::Proprietary))]
#[case("nvidia-kernel-source-open", Some(Flavour::Open))]
#[case("nvidia-dkms-580-open", None)]
#[case("nvidia-dkms-open", None)]
#[case("nvidia-kernel-common-580", None)]
#[case("nvidia-kernel-dkms", None)]
#[case("linux-kernel-source", None)]
#[case("nvidia-kernel-sources", None)]
#[case("nvidia-kernel-open-dkms", None)]
fn packages_are_told_by_their_names(#[case] name: &str, #[case] wanted: Option<Flavour>) {
    assert_eq!(flavour_of(name), wanted);
}

#[rstest]
#[case::nvidia_for_debian("nvidia-kernel-dkms", Some(Flavour::Proprietary))]
#[case::nvidia_for_debian_open("nvidia-kernel-open-dkms", Some(Flavour::Open))]
#[case::debian_open("nvidia-open-kernel-dkms", Some(Flavour::Open))]
#[case::debian_tesla("nvidia-tesla-470-kernel-dkms", Some(Flavour::Proprietary))]
#[case::debian_legacy("nvidia-legacy-390xx-kernel-dkms", Some(Flavour::Proprietary))]
#[case::arch("nvidia-open-dkms", Some(Flavour::Open))]
#[case::ubuntu("nvidia-dkms-595-server-open", Some(Flavour::Open))]
#[case::ubuntu_610("nvidia-dkms-610", Some(Flavour::Proprietary))]
#[case::nvidia_for_ubuntu("nvidia-dkms-open", Some(Flavour::Open))]
#[case::no_modules("nvidia-headless-no-dkms-open", None)]
#[case::storage("nvidia-fs-dkms", None)]
#[case::sources("nvidia-kernel-source-open", None)]
#[case::other("zfs-dkms", None)]
fn packages_for_dkms_are_told_by_their_names(#[case] name: &str, #[case] wanted: Option<Flavour>) {
    assert_eq!(dkms::flavour_of(name), wanted);
}

/// Makes a package of `name version [depends]`.
fn package(text: &str) -> Package {
    let mut words = text.splitn(3, ' ').map(str::to_owned);
    let mut next = || words.next().unwrap_or_default();
    let (name, version, depends) = (next(), next(), next());
    Package {
        sha256: format!("{name} {version}"),
        name,
        version,
        arch: "amd64".to_owned(),
        source: None,
        component: "restricted".to_owned(),
        filename: String::new(),
        size: 1,
        depends: longshore_debian::relation::parse_clauses(&depends).expect("depends"),
        provides: Vec::new(),
        base_url: "file:///archive".into(),
        origin: PackageOrigin { percentage: Some(30), ..PackageOrigin::named("noble-updates") },
    }
}

/// Describes the drivers of packages as `version flavour package`.
fn described(packages: &[&str]) -> Vec<String> {
    let found = of_packages(packages.iter().map(|text| package(text)).collect());
    found.iter().map(|d| format!("{} {} {}", d.version, d.flavour, named(d).0)).collect()
}

#[rstest]
#[case::transitional(
    &[
        "nvidia-kernel-source-570 580.178.04-0ubuntu0.24.04.1 nvidia-kernel-source-580",
        "nvidia-kernel-source-570-open 580.178.04-0ubuntu0.24.04.1 nvidia-kernel-source-580-open",
        "nvidia-kernel-source-580 580.178.04-0ubuntu0.24.04.1 libc6 (>= 2.38)",
        "nvidia-kernel-source-580-open 580.178.04-0ubuntu0.24.04.1",
        "nvidia-kernel-source-580-server 580.173.02-0ubuntu0.24.04.1",
    ],
    &[
        "580.178.04 proprietary nvidia-kernel-source-580",
        "580.178.04 open nvidia-kernel-source-580-open",
        "580.173.02 proprietary nvidia-kernel-source-580-server",
    ]
)]
#[case::open_alone(
    &[
        "nvidia-kernel-source-590 595.91.07-0ubuntu0.24.04.1 nvidia-kernel-source-595",
        "nvidia-kernel-source-595 595.91.07-0ubuntu0.24.04.1",
        "nvidia-kernel-source-595-open 595.91.07-0ubuntu0.24.04.1 nvidia-kernel-source-595",
    ],
    &["595.91.07 open nvidia-kernel-source-595"]
)]
#[case::nvidia_for_debian_has_dkms_alone(
    &[
        "nvidia-kernel-dkms 595.58.03-1 dkms, firmware-nvidia-gsp (= 595.58.03)",
        "nvidia-kernel-open-dkms 595.58.03-1 dkms, g++, nvidia-kernel-support",
        "nvidia-kernel-open-dkms 580.142-1 dkms",
        "nvidia-fs-dkms 2.29.4-1 dkms",
    ],
    &[
        "595.58.03 proprietary nvidia-kernel-dkms",
        "595.58.03 open nvidia-kernel-open-dkms",
        "580.142 open nvidia-kernel-open-dkms",
    ]
)]
#[case::debian_has_sources_beside(
    &[
        "nvidia-kernel-dkms 550.163.01-2 dkms",
        "nvidia-kernel-source 550.163.01-2 debhelper",
        "nvidia-open-kernel-dkms 550.163.01-2 dkms",
    ],
    &["550.163.01 proprietary nvidia-kernel-source", "550.163.01 open nvidia-open-kernel-dkms"]
)]
#[case::ubuntu_2604(
    &[
        "nvidia-dkms-595 595.71.05-0ubuntu0.26.04.1 dkms, nvidia-kernel-source-595 (<= 595.71.05-1)",
        "nvidia-dkms-595-open 595.71.05-0ubuntu0.26.04.1 dkms, nvidia-kernel-source-595-open (<= 595.71.05-1)",
        "nvidia-dkms-590-open 595.71.05-0ubuntu0.26.04.1 nvidia-dkms-595-open",
        "nvidia-kernel-source-590 595.71.05-0ubuntu0.26.04.1 nvidia-kernel-source-595",
        "nvidia-kernel-source-595 595.71.05-0ubuntu0.26.04.1",
        "nvidia-kernel-source-595-open 595.71.05-0ubuntu0.26.04.1",
    ],
    &[
        "595.71.05 proprietary nvidia-kernel-source-595",
        "595.71.05 open nvidia-kernel-source-595-open",
    ]
)]
#[case::nvidia_for_ubuntu_2604(
    &[
        "nvidia-dkms-open 610.57.04-1ubuntu1 dkms, nvidia-kernel-source-open (= 610.57.04-1ubuntu1)",
        "nvidia-kernel-source-open 610.57.04-1ubuntu1",
        "nvidia-kernel-source-open 595.71.05-1ubuntu1",
        "nvidia-kernel-source 595.71.05-1ubuntu1",
        "nvidia-open 610.57.04-1ubuntu1 nvidia-driver-open",
    ],
    &[
        "610.57.04 open nvidia-kernel-source-open",
        "595.71.05 proprietary nvidia-kernel-source",
        "595.71.05 open nvidia-kernel-source-open",
    ]
)]
#[case::an_alternative_is_no_successor(
    &["nvidia-kernel-source 535.261.03-1 nvidia-kernel-source-x | nvidia-support"],
    &["535.261.03 proprietary nvidia-kernel-source"]
)]
fn transitional_packages_are_passed_over(#[case] packages: &[&str], #[case] expected: &[&str]) {
    assert_eq!(described(packages), expected);
}

#[test]
fn a_driver_has_the_pocket_and_the_phase_of_its_package() {
    let found = of_packages(vec![package("nvidia-kernel-source-580 580.178.04-0ubuntu1")]);
    let DriverOrigin::Package { origin, .. } = &found[0].origin else {
        panic!("{found:?}");
    };
    assert_eq!((origin.text.as_str(), origin.percentage), ("noble-updates", Some(30)));
}

#[rstest]
#[case(None, None, "550.163.01")]
#[case(None, Some(Flavour::Proprietary), "535.309.01")]
#[case(Some("535"), Some(Flavour::Open), "535.261.03")]
#[case(Some("535.261.03"), None, "535.261.03")]
#[case(Some("470"), None, "470.256.02")]
#[case(Some("535.261"), None, "535.261.03")]
fn the_newest_that_fits_is_found(
    #[case] wanted: Option<&str>,
    #[case] flavour: Option<Flavour>,
    #[case] version: &str,
) {
    assert_eq!(find(&some(), wanted, flavour).expect("found").version, version);
}

#[rstest]
#[case::unnamed(None, "550.163.01", false)]
#[case::its_branch(Some("580"), "580.173.02", true)]
#[case::of_both(Some("550.163.01"), "550.163.01", false)]
fn a_hosts_flat_source_gives_way_to_the_distribution(
    #[case] wanted: Option<&str>,
    #[case] version: &str,
    #[case] flat: bool,
) {
    let of = |package: &str, is_added| {
        let package = self::package(package);
        Package { origin: PackageOrigin { is_added, ..package.origin }, ..package }
    };
    let found = of_packages(vec![
        of("nvidia-kernel-source-open 580.173.02-1ubuntu1", true),
        of("nvidia-kernel-source-open 550.163.01-1ubuntu1", true),
        of("nvidia-open-kernel-source 550.163.01-0", false),
    ]);
    let chosen = find(&found, wanted, None).expect("found");
    assert_eq!((chosen.version.as_str(), chosen.is_added()), (version, flat));
    let alone = &found[..1];
    assert!(find(alone, None, None).expect("found").is_added());
}

#[rstest]
#[case("535.1.2", "no archive has the driver 535.1.2 open", "535.309.01 proprietary, 535.261.03")]
#[case("53", "no archive has the driver 53 open", "550.163.01 open")]
fn an_unknown_version_names_the_nearest(
    #[case] wanted: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    let failure = find(&some(), Some(wanted), Some(Flavour::Open)).expect_err("none");
    assert_eq!(failure.code(), ExitCode::Download);
    assert_eq!(failure.to_string(), cause);
    let text = failure.remedy_text().expect("a remedy");
    assert!(text.contains(&format!("available are: {remedy}")), "{text}");
}

#[rstest]
#[case::branch(Some("595"), Some("595.91.07"))]
#[case::version(Some("595.91.07"), Some("595.91.07"))]
#[case::both_are_there(Some("580"), None)]
#[case::no_version(None, None)]
fn a_version_without_proprietary_modules_is_refused_by_that(
    #[case] wanted: Option<&str>,
    #[case] open_alone: Option<&str>,
) {
    let drivers = of_packages(vec![
        package("nvidia-kernel-source-595-open 595.91.07-0ubuntu1"),
        package("nvidia-kernel-source-580 580.178.04-0ubuntu1"),
        package("nvidia-kernel-source-580-open 580.178.04-0ubuntu1"),
    ]);
    let found = find(&drivers, wanted, Some(Flavour::Proprietary));
    let Some(version) = open_alone else {
        assert_eq!(found.expect("both").flavour, Flavour::Proprietary);
        return;
    };
    let failure = found.expect_err("open alone");
    assert_eq!(failure.code(), ExitCode::Download);
    let cause = format!(
        "no archive has the driver {} proprietary: they have {version} with the open modules alone",
        wanted.unwrap_or_default()
    );
    assert_eq!(failure.to_string(), cause);
    assert!(failure.remedy_text().expect("a remedy").contains("select flavour open"));
}

#[rstest]
#[case::objects(&["Kbuild", "conftest.sh", "nvidia/nv-kernel.o_binary"], true)]
#[case::objects_and_their_sources(
    &["kernel-open/Kbuild", "kernel-open/conftest.sh", "kernel-open/nvidia/nv-kernel.o_binary", "src/nvidia/Makefile"],
    true
)]
#[case::sources_of_objects(&["kernel-open/Kbuild", "kernel-open/conftest.sh", "src/nvidia/Makefile"], false)]
fn sources_without_objects_are_refused(#[case] files: &[&str], #[case] accepted: bool) {
    let into = tempfile::tempdir().expect("temporary directory");
    for file in files {
        let path = into.path().join("nvidia-610.43.02").join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
        fs::write(path, "").expect("write");
    }
    let dir = find_sources(into.path(), 3).expect("reads").expect("found");
    let checked = check_objects("nvidia-kernel-open-dkms 610.43.02-1", &dir);
    assert_eq!(checked.is_ok(), accepted);
    if let Err(failure) = checked {
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.remedy_text().expect("a remedy").contains(".run file"));
    }
}

#[rstest]
#[case::packed("usr/src/nvidia-kernel.tar.xz", true)]
#[case::unpacked("usr/src/nvidia-580.178.04/Kbuild", true)]
#[case::changelog("usr/share/doc/nvidia-kernel-source-570/changelog.Debian.gz", false)]
#[case::elsewhere("usr/share/doc/nvidia-kernel-source-570/examples.tar.gz", false)]
fn a_package_of_a_changelog_holds_no_sources(#[case] path: &str, #[case] expected: bool) {
    assert_eq!(may_be_sources(Path::new(path)), expected);
}

#[test]
fn an_archive_without_drivers_says_what_is_missing() {
    let failure = find(&[], None, None).expect_err("none");
    assert!(failure.remedy_text().expect("a remedy").contains("non-free"));
}

#[test]
fn sources_are_found_and_say_their_version() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let sources = dir.path().join("modules/nvidia-kernel");
    fs::create_dir_all(&sources).expect("directory");
    assert_eq!(find_sources(dir.path(), 3).expect("reads"), None);
    fs::write(sources.join("conftest.sh"), "").expect("write");
    fs::write(sources.join("Kbuild"), r#"ccflags-y += -DNV_VERSION_STRING=\"535.261.03\""#)
        .expect("write");
    assert_eq!(find_sources(dir.path(), 3).expect("reads"), Some(sources.clone()));
    assert_eq!(stated_version(&sources).expect("reads").as_deref(), Some("535.261.03"));
}

#[rstest]
#[case::of_two(&[("580.2", Some(0)), ("580.1", None)], "580.1")]
#[case::going_on(&[("580.2", Some(10)), ("580.1", None)], "580.2")]
#[case::alone(&[("580.2", Some(0))], "580.2")]
fn an_update_that_its_archive_stopped_is_passed_over(
    #[case] offered: &[(&str, Option<u8>)],
    #[case] chosen: &str,
) {
    let of_phase = |(version, phased): &(&str, Option<u8>)| {
        let mut package = package(&format!("nvidia-kernel-source-580 {version}-0ubuntu1"));
        package.origin.percentage = *phased;
        package
    };
    let found = of_packages(offered.iter().map(of_phase).collect());
    assert_eq!(found[0].version, chosen);
}

#[rstest]
#[case::newest("550.163.01-5.1", &["550.163.01-4~bpo13+1", "550.163.01-2"])]
#[case::in_the_middle("550.163.01-4~bpo13+1", &["550.163.01-2"])]
#[case::oldest("550.163.01-2", &[])]
#[case::of_another_version("550.54.15-5", &[])]
#[case::alone_in_its_flavour("550.163.01-4 open", &[])]
#[case::not_offered_any_more("550.163.01-9", &[])]
fn older_revisions_are_of_the_same_version_and_flavour(
    #[case] of: &str,
    #[case] expected: &[&str],
) {
    let proprietary = |version: &str| AvailableDriver {
        sha256: version.to_owned(),
        ..driver("nvidia-kernel-source", version)
    };
    let open = AvailableDriver {
        sha256: "550.163.01-4 open".to_owned(),
        ..driver("nvidia-open-kernel-source", "550.163.01-4")
    };
    let mut drivers = vec![open.clone()];
    let versions = ["550.163.01-2", "550.54.15-5", "550.163.01-5.1", "550.163.01-4~bpo13+1"];
    drivers.extend(versions.map(proprietary));
    // The same package in a second suite.
    drivers.push(proprietary("550.163.01-5.1"));
    drivers.sort_by(newest_first);
    let this = if of.ends_with("open") { open } else { proprietary(of) };
    let older = older_revisions(&this, &drivers);
    let versions: Vec<_> = older.iter().map(|driver| named(driver).1).collect();
    assert_eq!(versions, expected);
}
