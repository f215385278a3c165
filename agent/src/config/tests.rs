use super::*;
use rstest::rstest;
use std::time::Duration;

use longshore_core::failure::{ExitCode, FailureKind, OrFail};
use longshore_core::value::Uri;
use longshore_debian::max_age::MaxAge;

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    settings: Fragment,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Plan,
}

pub(super) fn load_with(
    args: &[&str],
    pairs: &[(&str, &str)],
    file: Option<&str>,
) -> Result<Config, Failure> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("config.toml");
    if let Some(text) = file {
        fs::write(&path, text).expect("write");
    }
    let args = ["longshore"].iter().chain(args);
    let cli = <Cli as clap::Parser>::try_parse_from(args)
        .or_fail(FailureKind::Usage, || "parsing the command line")?;
    let env = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    load(cli.settings, &env, Some(&path))
}

#[test]
fn defaults() {
    let config = load_with(&["plan"], &[], None).unwrap();
    assert_eq!(config.driver.version, None);
    assert_eq!(config.driver.flavour, None);
    assert!(config.compile && config.archives.use_host_apt && !config.archives.frozen);
    assert_eq!(config.archives.max_age, MaxAge::default());
    assert_eq!(config.archives.host_components, DRIVER_COMPONENTS);
    assert_eq!(config.paths.store, Path::new("/var/lib/longshore"));
    // Without --root, it depends on the machine (config/record_place.rs).
    let captured = load_with(&["plan", "--root", "/srv/tree"], &[], None).unwrap();
    assert_eq!(captured.paths.state, Path::new("/run/longshore"));
    assert_eq!(config.paths.driver_root, Path::new("/run/nvidia/driver"));
    assert_eq!(config.deadlines, Deadlines::default());
    assert_eq!(config.missing_gpus, Reaction::Warn);
}

#[test]
fn flags_go_over_environment_over_file() {
    let file = "driver = \"470\"\nflavour = \"open\"\njobs = 3\ncompile = true\n\
                [parameters]\nnvidia = \"a=1 b=1 c=1\"\n";
    let env = [
        ("LONGSHORE_DRIVER", "535"),
        ("LONGSHORE_JOBS", "2"),
        ("LONGSHORE_BUILD_UID", "70001"),
        ("LONGSHORE_MISSING_GPUS", "refuse"),
        ("LONGSHORE_PARAMETERS_NVIDIA", "b=2 c=2"),
    ];
    let args = ["plan", "--driver", "550.163.01", "--no-compile", "--parameter", "nvidia.c=3"];
    let config = load_with(&args, &env, Some(file)).unwrap();
    assert_eq!(config.driver.version.as_deref(), Some("550.163.01"));
    assert_eq!(config.driver.flavour, Some(Flavour::Open));
    assert_eq!(config.jobs, Some(2));
    assert_eq!(config.build_user.id(), 70001);
    assert!(config.missing_gpus.refuses());
    assert!(!config.compile);
    assert_eq!(config.driver.parameters["nvidia"], "a=1 b=2 c=3");
}

#[test]
fn a_whole_file_is_read() {
    let file = r#"
        driver = "535"
        extra-modules = ["nvidia-drm", "nvidia", "nvidia_drm"]
        host-apt = false
        archive-components = ["contrib"]
        archive-suites = ["bookworm-security"]
        archive-frozen = true
        archive-max-age = "36h"
        prebuilt = ["/srv/modules"]
        require-signature = true
        signature-keys = ["/srv/cosign.pub"]
        store = "/srv/store"
        state-dir = "/srv/state"
        driver-root = "/srv/driver"
        host-root = "/host"
        unload-deadline = "1m"
        on-busy = "wait:5m"
        missing-gpus = "refuse"
        load-deadline = "10m"
        lock-deadline = "2m"
        look-deadline = "1s"
        build-deadline = "30m"
        disk-deadline = "10m"
        step-deadline = "1s"
        [downloads]
        busy = "10m"
        [[archive]]
        url = "https://archive.example.com/debian"
        suites = ["bookworm"]
        components = ["main", "non-free"]
        keyring = "/usr/share/keyrings/a.gpg"
        max-age = "14d"
        [[registry]]
        reference = "registry.example.com/nvidia/modules"
        mirrors = ["http://mirror.example.com:5000/modules"]
        [[registry]]
        reference = "localhost:5000/modules"
        plain-http = true
    "#;
    let config = load_with(&[], &[], Some(file)).unwrap();
    assert_eq!(config.driver.extra_modules, ["nvidia_drm"]);
    assert_eq!(config.archives.sources[0].components, ["main", "non-free"]);
    assert_eq!(
        config.archives.sources[0].max_age.map(|age| age.to_string()).as_deref(),
        Some("14d")
    );
    assert_eq!(config.archives.max_age.to_string(), "1d12h");
    assert_eq!(config.archives.host_components, ["contrib"]);
    assert_eq!(config.archives.host_suites, ["bookworm-security"]);
    let [one, other] = &config.registries[..] else { panic!("{:?}", config.registries) };
    assert!(!one.reference.plain_http() && one.mirrors[0].plain_http());
    assert!(other.reference.plain_http() && other.mirrors.is_empty());
    assert!(config.signatures.required && !config.may_compile());
    assert_eq!(config.signatures.keys, [Path::new("/srv/cosign.pub")]);
    assert_eq!(config.paths.host_root, Path::new("/host"));
    assert!(config.missing_gpus.refuses());
    let deadlines = Deadlines {
        users: Duration::from_secs(300),
        unload: Duration::from_secs(60),
        load: Duration::from_secs(600),
        lock: Duration::from_secs(120),
        look: Duration::from_secs(1),
        build: Duration::from_secs(1800),
        disk: Duration::from_secs(600),
        step: Duration::from_secs(5),
    };
    assert_eq!(config.deadlines, deadlines);
    let busy = Duration::from_secs(600);
    assert_eq!(config.downloads, Downloads { busy, ..Downloads::default() });
}

#[test]
fn a_captured_tree_is_its_own_host_root() {
    let config = load_with(&["plan", "--root", "/captured"], &[], None).unwrap();
    assert_eq!(config.paths.host_root, Path::new("/captured"));
    assert!(config.paths.is_captured());
}

#[test]
fn a_named_file_must_exist() {
    let failure = load_with(&["--config", "/no/such.toml"], &[], None).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Usage);
    assert!(failure.to_string().contains("/no/such.toml"));
}

#[test]
fn the_usual_file_may_be_absent_but_not_lead_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    let load = || load(Fragment::default(), &|_| None, Some(&file));
    load().unwrap();
    std::os::unix::fs::symlink("nowhere", &file).unwrap();
    assert_eq!(load().unwrap_err().code(), ExitCode::Usage);
}

#[rstest]
#[case::roots("config.toml", 0o600, None, None)]
#[case::written_by_all("config.toml", 0o666, None, Some("config.toml can be written to by others"))]
#[case::in_a_directory_of_all("", 0o777, None, Some("can be written to by others"))]
#[case::in_a_sticky_directory("", 0o1777, None, None)]
#[case::another_users(
    "config.toml",
    0o644,
    Some(1000),
    Some("config.toml belongs to another user than root")
)]
#[case::in_another_users_directory(
    "",
    0o755,
    Some(1000),
    Some("belongs to another user than root")
)]
fn the_file_is_roots_alone(
    #[case] path: &str,
    #[case] mode: u32,
    #[case] owner: Option<u32>,
    #[case] said: Option<&str>,
) {
    use std::os::unix::fs::{PermissionsExt, chown};
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "").unwrap();
    let at = dir.path().join(path);
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(mode)).unwrap();
    chown(&at, owner, None).unwrap();
    for loaded in [
        load(Fragment::default(), &|_| None, Some(&file)),
        load_with(&["--config", file.to_str().unwrap()], &[], None),
    ] {
        let failure = loaded.err();
        assert_eq!(failure.as_ref().map(|f| f.code()), said.map(|_| ExitCode::Usage));
        if let (Some(failure), Some(said)) = (failure, said) {
            assert!(failure.report().contains(said), "{}", failure.report());
        }
    }
}

#[test]
fn a_signature_that_no_key_could_make_good_is_not_required() {
    let failure = load_with(&["--require-signature"], &[], None).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Usage);
    let keys = ["--require-signature", "--signature-key", "/k.pub"];
    assert!(load_with(&keys, &[], None).unwrap().signatures.required);
}

#[rstest]
#[case::without_keys(&["--require-attestation", "provenance"], "no signature-keys are")]
#[case::without_signatures(
    &["--require-attestation", "spdx", "--signature-key", "/k.pub", "--require-signature=false"],
    "require-signature is false"
)]
#[case::published_without_a_key(
    &["--publish", "registry.example.com/a", "--publish-attest"],
    "publish-key is not"
)]
fn attestations_that_no_key_vouches_for_are_refused(#[case] flags: &[&str], #[case] why: &str) {
    let failure = load_with(flags, &[], None).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Usage);
    assert!(failure.to_string().contains(why), "{failure}");
    assert!(failure.remedy_text().is_some());
}

const TRUST: &str = "signature-keys = ['/k.pub']
    [[trust]]
    key = '/ci.pub'
    roles = ['provenance', 'spdx']
    builder-id = 'https://ci.example.com/b'
    [[trust]]
    key = '/qa.pub'
    roles = ['test-result']
";

#[rstest]
#[case::all(&["--require-attestation", "provenance", "--require-attestation", "test-result"], None)]
#[case::of_a_role_that_no_key_has(
    &["--require-attestation", "https://example.com/a"],
    Some("require-attestation names https://example.com/a, and no key has that role")
)]
#[case::of_the_short_form_alone(
    &["--require-attestation", "spdx", "--trust", "test-result=/qa.pub"],
    Some("signature-keys sign modules alone")
)]
fn keys_have_roles(#[case] flags: &[&str], #[case] refused: Option<&str>) {
    let loaded = load_with(flags, &[], Some(TRUST));
    match refused {
        None => assert!(loaded.expect("loads").signatures.required),
        Some(why) => {
            let failure = loaded.expect_err("refused");
            assert_eq!(failure.code(), ExitCode::Usage);
            assert!(failure.to_string().contains(why), "{failure}");
        }
    }
}

#[rstest]
#[case::of_the_short_form(&["--signature-key", "/k.pub"], None)]
#[case::of_an_entry(&["--trust", "modules+index=/k.pub"], None)]
#[case::without_keys(&[], Some("no key has the role index"))]
#[case::of_the_short_form_beside_entries(
    &["--signature-key", "/k.pub", "--trust", "provenance=/ci.pub"],
    Some("no key has the role index")
)]
#[case::without_signatures(
    &["--signature-key", "/k.pub", "--require-signature=false"],
    Some("require-signature is false")
)]
#[case::index_alone(&["--trust", "index=/k.pub"], Some("no key of trust has the role modules"))]
#[case::not_required(&["--require-index=false"], None)]
fn a_required_index_needs_a_key_with_the_role(
    #[case] flags: &[&str],
    #[case] refused: Option<&str>,
) {
    let loaded = load_with(flags, &[("LONGSHORE_REQUIRE_INDEX", "true")], None);
    match refused {
        None => assert!(loaded.is_ok(), "{loaded:?}"),
        Some(why) => {
            let failure = loaded.expect_err("refused");
            assert_eq!(failure.code(), ExitCode::Usage);
            assert!(failure.to_string().contains(why), "{failure}");
            assert!(failure.remedy_text().is_some());
        }
    }
}

#[test]
fn bounds_of_indexes_and_attestations_are_read() {
    let file = "signature-keys = ['/k.pub']\nrequire-index = true\nindex-minimum = 1795183200\n\
                index-minimum-file = '/etc/longshore-index/index-minimum'\n\
                require-attestation = ['test-result']\nattestation-max-age = '30d'";
    let signatures = load_with(&[], &[], Some(file)).expect("loads").signatures;
    assert!(signatures.index_required);
    assert_eq!(signatures.index_minimum, Some(1_795_183_200));
    let file = signatures.index_minimum_file.as_deref().and_then(Path::to_str);
    assert_eq!(file, Some("/etc/longshore-index/index-minimum"));
    let month = Duration::from_secs(30 * 86_400);
    assert_eq!(signatures.attestation_max_age, Some(month));
    assert_eq!(signatures.trust().map(|_| ()).expect_err("no such key").code(), ExitCode::Usage);
    let variable = [("LONGSHORE_INDEX_MINIMUM_FILE", "/a/index-minimum")];
    let signatures = load_with(&[], &variable, None).expect("loads").signatures;
    assert_eq!(signatures.index_minimum_file.as_deref(), Some(Path::new("/a/index-minimum")));
    let wrong = [
        "index-minimum = -1",
        "index-minimum-file = 'index-minimum'",
        "attestation-max-age = '1m'",
        "require-index = 'yes'",
    ];
    for wrong in wrong {
        assert!(load_with(&[], &[], Some(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn keys_with_roles_come_from_file_variable_and_flag() {
    let config = load_with(&[], &[], Some(TRUST)).expect("loads");
    let [ci, qa] = &config.signatures.entries[..] else { panic!("{config:?}") };
    assert_eq!((ci.key.to_str(), ci.roles.len()), (Some("/ci.pub"), 2));
    assert_eq!(ci.builder_id.as_ref().map(Uri::as_str), Some("https://ci.example.com/b"));
    assert_eq!((qa.key.to_str(), &qa.builder_id), (Some("/qa.pub"), &None));
    let variable = [("LONGSHORE_TRUST", "modules+spdx=/a.pub,provenance=/b.pub=https://b.example")];
    let config = load_with(&[], &variable, None).expect("loads");
    assert_eq!(config.signatures.entries.len(), 2);
    assert!(config.signatures.required, "as with signature-keys");
    let lacks = load_with(&["--trust", "spdx=/a.pub"], &[], None).expect_err("refused");
    assert!(lacks.to_string().contains("no key of trust has the role modules"), "{lacks}");
    assert!(load_with(&[], &[("LONGSHORE_TRUST", "spdx=a.pub")], None).is_err(), "relative");
    let unknown = "[[trust]]\nkey = '/a.pub'\nroles = ['modules']\nrole = 'spdx'\n";
    assert!(load_with(&[], &[], Some(unknown)).is_err());
    let idle = "[[trust]]\nkey = '/a.pub'\nroles = ['modules']\nbuilder-id = 'https://b.example'\n";
    assert!(load_with(&[], &[], Some(idle)).is_err());
}

#[test]
fn required_attestations_are_named_or_given_by_their_uri() {
    let of_file = "signature-keys = ['/k.pub']\nrequire-attestation = ['test-result']";
    let types = |config: Config| -> Vec<String> {
        config.signatures.attestations.iter().map(|kind| kind.uri().to_owned()).collect()
    };
    let found = types(load_with(&[], &[], Some(of_file)).expect("loads"));
    assert_eq!(found, ["https://in-toto.io/attestation/test-result/v0.1"]);
    let variable = [("LONGSHORE_REQUIRE_ATTESTATION", "provenance,https://example.com/a")];
    let found = types(load_with(&[], &variable, Some(of_file)).expect("loads"));
    assert_eq!(found, ["https://slsa.dev/provenance/v1", "https://example.com/a"]);
    assert!(load_with(&["--require-attestation", "sbom"], &[], Some(of_file)).is_err());
}

#[test]
fn keys_are_required_of_signatures_unless_it_is_said_that_they_are_not() {
    let keys = [("LONGSHORE_SIGNATURE_KEYS", "/k.pub")];
    let config = load_with(&[], &keys, None).unwrap();
    assert!(config.signatures.required && !config.may_compile());
    let config = load_with(&[], &keys, Some("require-signature = false")).unwrap();
    assert!(!config.signatures.required && config.may_compile());
}

const PLAIN: &str = "http://registry.example.com:5000/a";

#[rstest]
#[case::tls("reference = 'registry.example.com/a'", "", true)]
#[case::plain("reference = 'http://registry.example.com:5000/a'", "", false)]
#[case::by_the_entry("reference = 'registry.example.com:5000/a'\nplain-http = true", "", false)]
#[case::loopback("reference = 'http://127.0.0.1:5000/a'", "", true)]
#[case::its_mirror(
    "reference = 'registry.example.com/a'\nmirrors = ['http://registry.example.com:5000/a']",
    "",
    false
)]
#[case::signed(
    "reference = 'http://registry.example.com:5000/a'",
    "signature-keys = ['/k.pub']",
    true
)]
#[case::not_signed_after_all(
    "reference = 'http://registry.example.com:5000/a'",
    "signature-keys = ['/k.pub']\nrequire-signature = false",
    false
)]
#[case::insecure(
    "reference = 'http://registry.example.com:5000/a'",
    "insecure-registries = ['registry.example.com:5000']",
    true
)]
#[case::another_is(
    "reference = 'http://registry.example.com:5000/a'",
    "insecure-registries = ['registry.example.com']",
    false
)]
fn modules_come_over_plain_http_only_where_that_proves_nothing_away(
    #[case] entry: &str,
    #[case] settings: &str,
    #[case] accepted: bool,
) {
    let loaded = load_with(&[], &[], Some(&format!("{settings}\n[[registry]]\n{entry}\n")));
    let failure = loaded.err();
    assert_eq!(failure.is_none(), accepted, "{failure:?}");
    if let Some(failure) = failure {
        assert_eq!(failure.code(), ExitCode::Usage);
        let report = failure.report();
        assert!(report.contains(PLAIN), "{report}");
        assert!(
            report.contains("insecure-registries = [\"registry.example.com:5000\"]"),
            "{report}"
        );
    }
}

#[rstest]
#[case("LONGSHORE_REGISTRIES")]
#[case("LONGSHORE_PUBLISH")]
fn plain_http_of_the_environment_is_refused_unless_it_is_named(#[case] name: &str) {
    let failure = load_with(&[], &[(name, PLAIN)], None).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Usage);
    let named = ["--insecure-registry", "registry.example.com:5000"];
    load_with(&named, &[(name, PLAIN)], None).unwrap();
    let named = [(name, PLAIN), ("LONGSHORE_INSECURE_REGISTRIES", "registry.example.com:5000")];
    load_with(&[], &named, None).unwrap();
}

#[test]
fn a_secret_in_a_bad_file_is_not_shown() {
    let file = "prebuilt = 'https://secret@a.example.com/?secret'\n";
    let failure = load_with(&[], &[], Some(file)).unwrap_err().report();
    assert!(!failure.contains("secret"), "{failure}");
}

#[test]
fn registries_are_named_by_flag_and_environment() {
    let env = [("LONGSHORE_REGISTRIES", "registry.example.com/a, http://localhost:5000/b")];
    let config = load_with(&[], &env, None).unwrap();
    let names: Vec<_> = config.registries.iter().map(|r| r.reference.to_string()).collect();
    assert_eq!(names, ["registry.example.com/a", "http://localhost:5000/b"]);
    let config = load_with(&["--registry", "localhost/c"], &env, None).unwrap();
    assert_eq!(config.registries[0].reference.name(), "localhost/c");
    assert!(load_with(&["--registry", "debian"], &[], None).is_err());
}

#[test]
fn a_bad_flag_is_refused() {
    for args in [
        ["--driver", "new!"],
        ["--jobs", "0"],
        ["--build-uid", "0"],
        ["--unload-deadline", "2d"],
        ["--on-busy", "kill"],
        ["--missing-gpus", "ignore"],
    ] {
        assert_eq!(load_with(&args, &[], None).unwrap_err().code(), ExitCode::Usage);
    }
}

#[rstest]
#[case::flag_over_file(&["plan", "--build-root", "/srv/root"], Some("/srv/root"), 0)]
#[case::headers_over_file(&["plan", "--headers", "/srv/headers"], None, 1)]
#[case::file(&["plan"], Some("/srv/of-the-file"), 0)]
fn the_upper_layer_decides_between_headers_and_build_root(
    #[case] args: &[&str],
    #[case] root: Option<&str>,
    #[case] headers: usize,
) {
    let file = "build-root = \"/srv/of-the-file\"\n";
    let config = load_with(args, &[], Some(file)).unwrap();
    assert_eq!(config.build_root.map(|root| root.to_string()).as_deref(), root);
    assert_eq!(config.headers.len(), headers);
}

#[test]
fn headers_and_build_root_exclude_each_other() {
    let file = "build-root = \"/srv/root\"\nheaders = [\"/srv/headers\"]\n";
    let failure = load_with(&["plan"], &[], Some(file)).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Usage);
    let tag = [("LONGSHORE_BUILD_ROOT", "oci://registry.example.com/a:1")];
    let failure = load_with(&["plan"], &tag, None).unwrap_err();
    assert!(failure.to_string().contains("by its digest"), "{failure}");
}
