use super::*;
use longshore_core::failure::ExitCode;
use rstest::rstest;

fn source(url: &str, suites: &[&str], components: &[&str]) -> (String, Vec<String>, Vec<String>) {
    let owned = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
    (url.to_owned(), owned(suites), owned(components))
}

fn sources_of(name: &str, text: &str) -> Vec<AptSource> {
    let entries = parse(Path::new(name), text, "amd64").into_iter();
    let source = |entry| match entry {
        Ok(SourcesEntry::Source(source)) => Some(source),
        Ok(SourcesEntry::LeftOut(_)) => None,
        Err(bad) => panic!("{bad:?}"),
    };
    entries.filter_map(source).collect()
}

fn parsed(name: &str, text: &str) -> Vec<(String, Vec<String>, Vec<String>)> {
    let sources = sources_of(name, text);
    sources.into_iter().map(|s| (s.url, s.suites, s.components)).collect()
}

/// Returns the bad lines of a text.
fn bad_lines(name: &str, text: &str) -> Vec<(usize, String)> {
    let entries = parse(Path::new(name), text, "amd64").into_iter();
    entries.filter_map(|entry| entry.err().map(|bad| (bad.line, bad.what))).collect()
}

const URL: &str = "https://archive.example.com/debian";

#[rstest]
#[case::plain("deb URL bookworm main contrib", Some(&["main", "contrib"][..]))]
#[case::comment("deb URL bookworm main # contrib", Some(&["main"][..]))]
#[case::options("deb [arch=amd64,i386 signed-by=/k.gpg trusted=yes] URL bookworm main", Some(&["main"][..]))]
#[case::spaced_options("deb [ arch=amd64  lang=none ]  URL\tbookworm  main", Some(&["main"][..]))]
#[case::other_arch("deb [arch=i386] URL bookworm main", None)]
#[case::source("deb-src URL bookworm main", None)]
#[case::commented("# deb URL bookworm main", None)]
#[case::empty("   ", None)]
fn one_line_sources(#[case] line: &str, #[case] components: Option<&[&str]>) {
    let expected: Vec<_> = components.map(|c| source(URL, &["bookworm"], c)).into_iter().collect();
    assert_eq!(parsed("/a.list", &line.replace("URL", URL)), expected);
}

#[rstest]
#[case::root("deb [signed-by=/k.gpg] URL /", "/")]
#[case::dot("deb [signed-by=/k.gpg] URL ./", "./")]
#[case::directory("deb [signed-by=/k.gpg] URL $(ARCH)/", "amd64/")]
fn flat_one_line_sources(#[case] line: &str, #[case] suite: &str) {
    let line = line.replace("URL", URL);
    assert_eq!(parsed("/a.list", &line), [source(URL, &[suite], &[])]);
    let sources = sources_of("/a.list", &line);
    assert_eq!(sources[0].signed_by.files, [Path::new("/k.gpg")]);
}

#[rstest]
#[case("/")]
#[case("./")]
fn flat_deb822_sources(#[case] suite: &str) {
    let text = format!("Types: deb\nURIs: {URL}\nSuites: {suite}\nSigned-By: /k.gpg\n");
    assert_eq!(parsed("/a.sources", &text), [source(URL, &[suite], &[])]);
}

#[rstest]
#[case("deb", "there is no URI")]
#[case("deb URL", "there is no suite")]
#[case("deb URL bookworm", "there is no component")]
#[case("deb URL / main", "the flat archive / has no components")]
#[case("deb [arch=amd64 URL bookworm main", "https://archive.example.com/debian has no value")]
#[case("deb [arch=amd64", "the options are not closed")]
#[case("deb \"URL bookworm main", "\" is not closed")]
#[case("deb a.example.com/debian bookworm main", "a.example.com/debian is no URI")]
#[case("deb [arch] URL bookworm main", "arch has no value")]
#[case("rpm URL bookworm main", "rpm is not a type of source")]
fn a_bad_line_is_numbered(#[case] line: &str, #[case] what: &str) {
    let text = format!("# first\n\n{}\n", line.replace("URL", URL));
    assert_eq!(bad_lines("/a.list", &text), [(3, what.to_owned())]);
}

#[test]
fn deb822_sources_multiply_uris_and_keep_suites() {
    let text = "Types: deb deb-src\n# a comment\nURIs: https://a.example.com https://b.example.com/$(ARCH)\n\
                Suites: bookworm bookworm-updates\nComponents: main\n non-free\nSigned-By: /k.gpg, /l.asc\n";
    let suites = ["bookworm", "bookworm-updates"];
    let components = ["main", "non-free"];
    assert_eq!(
        parsed("/a.sources", text),
        [
            source("https://a.example.com", &suites, &components),
            source("https://b.example.com/amd64", &suites, &components)
        ]
    );
    let sources = sources_of("/a.sources", text);
    assert_eq!(sources[0].signed_by.files, [Path::new("/k.gpg"), Path::new("/l.asc")]);
}

#[rstest]
#[case::disabled("Enabled: no\n")]
#[case::other_arch("Architectures: i386 arm64\n")]
#[case::arch_removed("Architectures-Remove: amd64\n")]
fn deb822_sources_that_do_not_count(#[case] more: &str) {
    let text = format!("Types: deb\nURIs: {URL}\nSuites: bookworm\nComponents: main\n");
    assert_eq!(parsed("/a.sources", &text).len(), 1);
    assert_eq!(parsed("/a.sources", &format!("{text}{more}")), []);
    assert_eq!(parsed("/a.sources", &text.replace("Types: deb", "Types: deb-src")), []);
}

#[rstest]
#[case("Types: deb\nSuites: a\nComponents: main\n", 4, "there is no URIs")]
#[case("Types: deb\nURIs: x\nComponents: main\n", 4, "there is no Suites")]
#[case("Types: deb\nURIs: x\nSuites: a\n", 4, "there is no component")]
#[case("URIs: x\nSuites: a\nComponents: main\n", 4, "there is no Types")]
#[case("Types deb\n", 4, "no field name")]
fn a_bad_paragraph_is_numbered(#[case] text: &str, #[case] line: usize, #[case] what: &str) {
    let text = format!("# c\n\n\n{text}");
    assert_eq!(bad_lines("/a.sources", &text), [(line, what.to_owned())]);
}

#[rstest]
#[case::one_blank("\n BEGIN\n .\n abcd\n END")]
#[case::on_the_fields_line(" BEGIN\n .\n abcd\n END")]
#[case::four_blanks("\n    BEGIN\n    .\n    abcd\n    END")]
#[case::a_tab("\n\tBEGIN\n\t.\n\tabcd\n\tEND")]
#[case::lines_of_blanks("\n BEGIN\n \n abcd\n END")]
fn keys_may_be_written_into_the_source(#[case] key: &str) {
    let key = key
        .replace("END", "-----END PGP PUBLIC KEY BLOCK-----")
        .replace("BEGIN", "-----BEGIN PGP PUBLIC KEY BLOCK-----");
    let text = format!("Types: deb\nURIs: {URL}\nSuites: a\nComponents: main\nSigned-By:{key}\n");
    let sources = sources_of("/a.sources", &text);
    assert_eq!(
        sources[0].signed_by.inline.as_deref(),
        Some("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nabcd\n-----END PGP PUBLIC KEY BLOCK-----")
    );
}

#[test]
fn keys_may_be_fingerprints() {
    let fingerprint = "0123456789ABCDEF0123456789ABCDEF01234567";
    for (mark, exact) in [("", false), ("!", true)] {
        let signed_by = SignedBy::of_field(&format!("{fingerprint}{mark} /k.gpg"));
        assert_eq!(signed_by.signers, [Signer { fingerprint: fingerprint.to_owned(), exact }]);
        assert_eq!(signed_by.files, [Path::new("/k.gpg")]);
    }
}

fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("dir");
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("dir");
        fs::write(path, text).expect("write");
    }
    root
}

#[test]
fn a_hosts_files_are_read_in_order_and_a_bad_one_does_not_spoil_the_rest() {
    let root = host(&[
        ("etc/apt/sources.list", "deb https://z.example.com a main\n"),
        ("etc/apt/sources.list.d/b.list", "deb file:/srv/mirror a main\ndeb tor+http://x a main\n"),
        ("etc/apt/sources.list.d/a.list", "deb nonsense\n"),
        ("etc/apt/sources.list.d/c.list.save", "deb https://save.example.com a main\n"),
        ("etc/apt/sources.list.d/odd name.list", "deb https://odd.example.com a main\n"),
        (
            "etc/apt/sources.list.d/d.sources",
            "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/m.list\nSuites: a\nComponents: main\n",
        ),
        ("etc/apt/mirrors/m.list", "# mirrors\nhttps://m.example.com/debian\tpriority:1\n"),
    ]);
    let found = read(root.path(), "amd64");
    let urls: Vec<&str> = found.sources.iter().map(|s| s.url.as_str()).collect();
    let mirror = format!("file://{}/srv/mirror", root.path().display());
    assert_eq!(urls, ["https://z.example.com", &mirror, "https://m.example.com/debian"]);
    let [problem] = &found.problems[..] else { panic!("one problem: {:?}", found.problems) };
    assert_eq!(problem.to_string(), "/etc/apt/sources.list.d/a.list, line 1: there is no suite");
    let [left_out] = &found.left_out[..] else { panic!("one is left out: {:?}", found.left_out) };
    let left_out = left_out.to_string();
    assert!(
        left_out.starts_with("/etc/apt/sources.list.d/b.list, line 2: tor+http://x"),
        "{left_out}"
    );
    assert!(left_out.contains("the transport tor+http: is not"), "{left_out}");
}

#[rstest]
#[case::cdrom("deb cdrom:[Debian GNU/Linux 12]/ a main", "the transport cdrom:")]
#[case::mirror("deb mirror://m.example.com/m.txt a main", "the transport mirror:")]
#[case::a_mirrors_list_that_is_not_there("deb mirror+file:/none a main", "reading /none: ")]
#[case::another_architecture(
    "deb [arch=arm64] URL a main",
    "its architectures are arm64, and this host's is amd64"
)]
#[case::all_removed("deb [arch-=amd64] URL a main", "its architectures are none")]
#[case::without_packages("deb [target=Translations] URL a main", "its targets have no Packages")]
#[case::a_password("deb [arch=i386] https://u:secret@a.example.com a main", "https://")]
fn what_is_left_out_has_its_line_and_reason(#[case] line: &str, #[case] why: &str) {
    let text = format!("# c\n{}\n", line.replace("URL", URL));
    let root = host(&[("etc/apt/sources.list", &text)]);
    let found = read(root.path(), "amd64");
    assert!(found.sources.is_empty() && found.problems.is_empty(), "{found:?}");
    let left_out = found.left_out[0].to_string();
    assert!(
        left_out.starts_with("/etc/apt/sources.list, line 2: ") && left_out.contains(why),
        "{left_out}"
    );
    assert!(!left_out.contains("secret"), "{left_out}");
}

#[test]
fn lists_that_were_mounted_for_the_container_come_first_and_use_the_hosts_files() {
    let own = host(&[
        ("etc/apt/sources.list", "deb https://image.example.com a main\n"),
        (
            "etc/apt/sources.list.d/site.list",
            "deb https://mirror.example.com a main\ndeb file:/srv a main\n",
        ),
        ("etc/apt/sources.list.d/bad.list", "deb nonsense\n"),
    ]);
    let root = host(&[("etc/apt/sources.list", "deb https://host.example.com a main\n")]);
    let urls = |lists| -> Vec<String> {
        read_with(lists, root.path(), "amd64").sources.into_iter().map(|s| s.url).collect()
    };
    let mirror = format!("file://{}/srv", root.path().display());
    let all = ["https://mirror.example.com", &mirror, "https://host.example.com"];
    assert_eq!(urls(Some(own.path())), all);
    assert_eq!(urls(None), ["https://host.example.com"]);
    assert_eq!(urls(Some(root.path())), ["https://host.example.com"]);
    assert_eq!(read_with(Some(own.path()), root.path(), "amd64").problems.len(), 1);
}

#[test]
fn a_host_without_apt_has_no_sources() {
    let root = host(&[]);
    let found = read(root.path(), "amd64");
    assert!(found.sources.is_empty() && found.problems.is_empty());
}

#[test]
fn a_source_without_any_key_is_refused() {
    let root = host(&[("usr/share/keyrings/removed-keys.gpg", "x"), ("k.gpg", "junk")]);
    for signed_by in ["", "/k.gpg", "/missing.gpg"] {
        let failure = SignedBy::of_field(signed_by).keyring(root.path(), &[]).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification, "{signed_by}");
    }
}

/// An armored certificate of a new key.
fn certificate() -> String {
    use pgp::composed::{ArmorOptions, KeyType, SecretKeyParamsBuilder};
    let mut params = SecretKeyParamsBuilder::default();
    params.key_type(KeyType::Ed25519Legacy).can_sign(true).primary_user_id("a".into());
    let key = params.build().expect("parameters").generate(rand::thread_rng()).expect("key");
    key.to_public_key().to_armored_string(ArmorOptions::default()).expect("armor")
}

#[rstest]
#[case::debian("usr/share/keyrings/debian-archive-keyring.gpg", &["debian"], true)]
#[case::trixie("usr/share/keyrings/debian-archive-keyring.pgp", &["debian"], true)]
#[case::ubuntu("usr/share/keyrings/ubuntu-archive-keyring.gpg", &["ubuntu", "debian"], true)]
#[case::a_derivative("usr/share/keyrings/ubuntu-archive-keyring.gpg", &["mint", "ubuntu"], true)]
#[case::another_distribution("usr/share/keyrings/ubuntu-archive-keyring.gpg", &["debian"], false)]
#[case::a_vendor("usr/share/keyrings/docker-archive-keyring.gpg", &["debian"], false)]
#[case::removed("usr/share/keyrings/debian-archive-removed-keys.gpg", &["debian"], false)]
#[case::odd_id("usr/share/keyrings/debian-archive-keyring.gpg", &["x/../debian"], false)]
#[case::trusted("etc/apt/trusted.gpg.d/docker.asc", &["debian"], true)]
fn keys_for_every_source(#[case] file: &str, #[case] ids: &[&str], #[case] counts: bool) {
    let root = host(&[(file, &certificate())]);
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    let keyring = SignedBy::default().keyring(root.path(), &ids);
    assert_eq!(keyring.is_ok(), counts, "{:?}", keyring.err());
    let named = SignedBy::of_field(&format!("/{file}")).keyring(root.path(), &ids);
    assert!(named.is_ok(), "a source may name it");
}
