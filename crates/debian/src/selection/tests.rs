use super::*;
use longshore_core::failure::ExitCode;
use rstest::rstest;
use std::os::unix::fs::PermissionsExt;

#[rstest]
#[case("bookworm", true)]
#[case("bookworm-security", true)]
#[case("bookworm-backports", true)]
#[case("stable-updates", true)]
#[case("trixie", false)]
#[case("nodistro", false)]
#[case("cloud-sdk-bookworm", false)]
fn suites_of_the_release_are_told_by_their_names(#[case] suite: &str, #[case] own: bool) {
    let os = Os::parse("ID=debian\nVERSION_CODENAME=\"bookworm\"\n");
    assert_eq!(os.has(suite), own);
    assert!(Os::parse("").has(suite), "nothing is known of the host");
}

#[test]
fn origins_come_from_the_ids() {
    let os = Os::parse("ID=ubuntu\nID_LIKE=debian\nID_X=other\n");
    assert_eq!(os.origins, ["ubuntu", "debian"]);
}

#[rstest]
#[case("bookworm-security", true)]
#[case("buster/updates", true)]
#[case("bookworm-updates", false)]
#[case("bookworm", false)]
fn security_suites_are_told_by_their_names(#[case] suite: &str, #[case] expected: bool) {
    assert_eq!(is_security(suite), expected);
}

#[rstest]
#[case::flat("/", &[], Ok("flat"))]
#[case::suite("bookworm", &["main"], Ok("main"))]
#[case::flat_with_components("./", &["main"], Err("is flat"))]
#[case::suite_without("bookworm", &[], Err("has no components"))]
fn a_suite_of_the_configuration_has_components_unless_it_is_flat(
    #[case] suite: &str,
    #[case] components: &[&str],
    #[case] expected: Result<&str, &str>,
) {
    let source = ArchiveSource {
        url: "https://archive.example.com/debian".into(),
        suites: vec![suite.to_owned()],
        components: components.iter().map(|name| name.to_string()).collect(),
        keyring: "/k.gpg".into(),
        max_age: None,
    };
    match (configured_components(&source, suite), expected) {
        (Ok(found), Ok(name)) => assert_eq!(found[0].name, name),
        (Err(failure), Err(said)) => {
            assert_eq!(failure.code(), ExitCode::Usage);
            assert!(failure.to_string().contains(said), "{failure}");
        }
        (found, _) => panic!("{found:?}"),
    }
}

/// Keyrings of this file system, or else of the host's.
#[rstest]
#[case::of_this("this", 0o644, None)]
#[case::of_the_host("host", 0o644, None)]
#[case::of_this_for_all("this", 0o666, Some("can be written to by others"))]
#[case::of_the_host_for_all("host", 0o666, Some("can be written to by others"))]
#[case::of_none("none", 0o644, Some("No such file"))]
fn a_keyring_is_roots_alone(#[case] place: &str, #[case] mode: u32, #[case] said: Option<&str>) {
    let dir = tempfile::tempdir().expect("dir");
    let named = dir.path().join("k.gpg");
    let host = dir.path().join("host");
    let of_host = host.join(named.strip_prefix("/").expect("absolute"));
    std::fs::create_dir_all(of_host.parent().expect("parent")).expect("made");
    let path = match place {
        "this" => named.clone(),
        "host" => of_host,
        _ => dir.path().join("other"),
    };
    std::fs::write(&path, include_str!("../keyring/testdata/rsa1024.asc")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
    let source = ArchiveSource {
        url: "https://archive.example.com/debian".into(),
        suites: Vec::new(),
        components: Vec::new(),
        keyring: named,
        max_age: None,
    };
    let failure = keyring_of(&source, &host).err();
    assert_eq!(failure.as_ref().map(Failure::code), said.map(|_| ExitCode::Usage), "{failure:?}");
    if let (Some(failure), Some(said)) = (failure, said) {
        assert!(failure.report().contains(said), "{}", failure.report());
    }
}

/// A configuration that names no archive, but takes the host's.
fn of_host() -> ArchiveConfig {
    ArchiveConfig {
        sources: Vec::new(),
        use_host_apt: true,
        host_components: Vec::new(),
        host_suites: Vec::new(),
        container_lists: None,
        frozen: false,
        max_age: MaxAge::default(),
    }
}

#[rstest]
#[case::mirror("deb mirror://m.example.com/m.txt noble main", "the transport mirror:")]
#[case::unreplaced(
    "deb http://a.example.com/debian $(lsb_release -cs) main",
    "apt takes $(lsb_release as it is written"
)]
#[case::another_architecture(
    "deb [arch=arm64] http://a.example.com/debian bookworm main",
    "its architectures are arm64"
)]
#[case::another_release(
    "deb http://a.example.com/debian trixie main",
    "no suite of this distribution (bookworm)"
)]
fn sources_that_are_left_out_are_named_where_no_other_is_left(
    #[case] line: &str,
    #[case] why: &str,
) {
    let root = tempfile::tempdir().expect("dir");
    for (path, text) in [
        ("etc/apt/sources.list", line),
        ("etc/os-release", "ID=debian\nVERSION_CODENAME=bookworm\n"),
    ] {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("dir");
        std::fs::write(path, text).expect("written");
    }
    let failure = select(&of_host(), root.path(), "amd64").expect_err("refused");
    assert_eq!(failure.kind(), FailureKind::NoSource);
    let said = failure.to_string();
    assert!(said.contains("/etc/apt/sources.list, line 1: ") && said.contains(why), "{said}");
    let switched_off = ArchiveConfig { use_host_apt: false, ..of_host() };
    let failure = select(&switched_off, root.path(), "amd64").expect_err("refused");
    assert!(failure.to_string().ends_with("switched off (host-apt)"), "{failure}");
}

#[test]
fn without_any_archive_there_is_no_source() {
    let root = tempfile::tempdir().expect("dir");
    let config = of_host();
    let failure = select(&config, root.path(), "amd64").expect_err("refused");
    assert_eq!((failure.kind(), failure.code()), (FailureKind::NoSource, ExitCode::Download));
    assert!(failure.to_string().ends_with("the host has none for apt"), "{failure}");
    let wanting = ArchiveConfig { host_suites: vec!["trixie".to_owned()], ..config };
    let failure = select(&wanting, root.path(), "amd64").expect_err("refused");
    assert!(failure.to_string().contains("trixie"), "{failure}");
}
