use super::*;
use longshore_core::failure::ExitCode;
use rstest::rstest;

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

#[test]
fn no_archive_at_all_is_a_mistake_of_the_configuration() {
    let root = tempfile::tempdir().expect("dir");
    let config = ArchiveConfig {
        sources: Vec::new(),
        use_host_apt: true,
        host_components: Vec::new(),
        host_suites: Vec::new(),
        container_lists: None,
        frozen: false,
    };
    let failure = select(&config, root.path(), "amd64").expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Usage);
    let wanting = ArchiveConfig { host_suites: vec!["trixie".to_owned()], ..config };
    let failure = select(&wanting, root.path(), "amd64").expect_err("refused");
    assert!(failure.to_string().contains("trixie"), "{failure}");
}
