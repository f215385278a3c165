//! Settings as apt has them: asked of `apt-config` over the same files.

use std::fs;
use std::process::Command;

use super::*;
use rstest::rstest;

/// Makes a root with these files below /etc/apt.
fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::create_dir_all(dir.path().join("etc/apt/apt.conf.d")).expect("made");
    for (name, text) in files {
        fs::write(dir.path().join("etc/apt").join(name), text).expect("written");
    }
    dir
}

/// Returns the proxy settings that apt has, by name in small letters; those that are empty are left out.
fn of_apt(dir: &Path) -> BTreeMap<String, String> {
    let config = dir.join("root.conf");
    fs::write(&config, format!("Dir \"{}\";\n", dir.display())).expect("written");
    let output = Command::new("apt-config").arg("dump").env("APT_CONFIG", &config).output();
    let text = String::from_utf8(output.expect("apt-config").stdout).expect("UTF-8");
    let of_line = |line: &str| {
        let (name, value) = line.strip_suffix("\";")?.split_once(" \"")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    };
    text.lines().filter_map(of_line).filter(is_proxy).collect()
}

fn is_proxy((name, value): &(String, String)) -> bool {
    name.starts_with("acquire::http") && name.contains("proxy") && !value.is_empty()
}

fn of_longshore(dir: &Path) -> BTreeMap<String, String> {
    let mut settings = Settings::default();
    settings.read_all(&Root::open(dir).expect("root"));
    let values = settings.values.into_iter().map(|(name, setting)| (name, setting.value));
    values.filter(is_proxy).collect()
}

#[rstest]
#[case::one_line(&[("apt.conf.d/01proxy", "Acquire::HTTP::Proxy \"http://a:1\";\nAcquire::HTTPS::Proxy \"false\";\n")])]
#[case::the_last_counts(&[("apt.conf.d/01", "Acquire::http::Proxy \"http://a:1\";"), ("apt.conf.d/02", "acquire::HTTP::proxy \"http://b:2\";")])]
#[case::apt_conf_is_last(&[("apt.conf", "Acquire::http::Proxy \"http://a:1\";"), ("apt.conf.d/99", "Acquire::http::Proxy \"http://b:2\";")])]
#[case::blocks(&[("apt.conf", "Acquire {\n http { Proxy \"http://a:1\"; Proxy { x.example.com \"DIRECT\"; }; };\n https::Proxy::Y.example.com \"http://b:2\";\n}\n")])]
#[case::a_value_before_a_block(&[("apt.conf", "Acquire::http::Proxy \"http://a:1\" { x.example.com DIRECT; };")])]
#[case::comments(&[("apt.conf", "// Acquire::http::Proxy \"http://a:1\";\n# Acquire::http::Proxy \"http://b:2\";\n/* Acquire::http::Proxy \"http://c:3\";\n*/ Acquire::http::Proxy \"http://d:4//#x\"; // e\n")])]
#[case::over_lines(&[("apt.conf", "Acquire::http::Proxy\n\t\"http://a:1\"\n;\n")])]
#[case::cleared(&[("apt.conf.d/01", "Acquire::http::Proxy \"http://a:1\";\nAcquire::http::Proxy::x.example.com \"http://b:2\";\n"), ("apt.conf.d/02", "#clear Acquire::http::Proxy;\n")])]
#[case::other_names(&[("apt.conf.d/01.disabled", "Acquire::http::Proxy \"http://a:1\";"), ("apt.conf.d/02.conf", "Acquire::http::Proxy \"http://b:2\";"), ("apt.conf.d/03.conf~", "Acquire::http::Proxy \"http://c:3\";")])]
#[case::unquoted(&[("apt.conf", "Acquire::http::Proxy http://a:1;\n")])]
#[case::in_quotes(&[("apt.conf", "Acquire::http::Proxy \"http://u:p;{}@a:1\";\n")])]
#[case::detect(&[("apt.conf", "Acquire::http::Proxy-Auto-Detect \"/usr/bin/detect\";\nAcquire::https::ProxyAutoDetect \"/x\";\n")])]
#[case::empty(&[("apt.conf", "Acquire::http::Proxy \"http://a:1\";\nAcquire::http::Proxy \"\";\n")])]
#[case::a_block_ends_a_statement(&[("apt.conf", "Acquire::http { Proxy \"http://a:1\" };\nAcquire::https::Proxy \"http://b:2\";")])]
#[case::too_many_ends(&[("apt.conf", "};};\nAcquire::http::Proxy \"http://a:1\";\n")])]
fn settings_are_those_of_apt(#[case] files: &[(&str, &str)]) {
    let dir = root(files);
    assert_eq!(of_longshore(dir.path()), of_apt(dir.path()), "{files:?}");
}

/// apt runs no command at all with such a file.
#[test]
fn a_file_that_apt_refuses_is_a_problem() {
    let dir = root(&[("apt.conf", "Acquire::http::Proxy \"http://a:1\";\nx \"y\" z;\n")]);
    assert_eq!(of_apt(dir.path()), BTreeMap::new());
    let mut settings = Settings::default();
    settings.read_all(&Root::open(dir.path()).expect("root"));
    assert!(settings.problems[0].contains("line 2: something follows the value"));
}

#[test]
fn an_included_file_is_read_below_the_root_and_in_no_circle() {
    let dir = root(&[
        ("apt.conf", "#include /etc/apt/more;\n"),
        ("more", "Acquire::http::Proxy \"http://a:1\";\n#include \"/etc/apt/more\";\n"),
    ]);
    let mut settings = Settings::default();
    settings.read_all(&Root::open(dir.path()).expect("root"));
    assert_eq!(settings.values["acquire::http::proxy"].value, "http://a:1");
    assert!(settings.problems[0].contains("include too many"), "{:?}", settings.problems);
}

fn urls(texts: &[&str]) -> Vec<Url> {
    texts.iter().map(|text| Url::parse(text).expect("a URL")).collect()
}

#[test]
fn proxies_are_chosen_as_apt_does_and_named_without_secrets() {
    let dir = root(&[(
        "apt.conf.d/01proxy",
        "Acquire::http::Proxy \"http://u:secret@proxy.example.com\";\n\
         Acquire::http::Proxy::direct.example.com \"DIRECT\";\n\
         Acquire::https::Proxy::tls.example.com \"http://other.example.com:3128\";\n",
    )]);
    let found = read(
        dir.path(),
        &urls(&[
            "http://a.example.com/debian",
            "http://a.example.com/security",
            "http://direct.example.com/",
            "https://tls.example.com/",
            "https://b.example.com/",
        ]),
    );
    let found = found.expect("usable");
    let hosts: Vec<_> = found
        .rules
        .iter()
        .map(|rule| (rule.host.as_str(), rule.proxy.as_ref().map(Proxy::shown)))
        .collect();
    let of_all = |port: &str| Some(format!("http://***@proxy.example.com{port}"));
    assert_eq!(
        hosts,
        [
            ("a.example.com", of_all("")),
            ("direct.example.com", None),
            ("tls.example.com", Some("http://other.example.com:3128".to_owned())),
            ("b.example.com", of_all(":443")),
        ]
    );
    let notes = found.notes.join("\n");
    assert!(
        notes.contains("apt's proxy http://***@proxy.example.com of /etc/apt/apt.conf.d/01proxy is used for the host's apt sources (a.example.com)"),
        "{notes}"
    );
    assert!(!notes.contains("secret"), "{notes}");
}

#[test]
fn no_proxy_of_apt_is_silent_and_a_wrong_one_is_refused() {
    let url = urls(&["http://a.example.com/"]);
    let none = read(root(&[]).path(), &url).expect("none");
    assert!(none.rules.is_empty() && none.notes.is_empty());
    for (text, why) in
        [("http://u:p@ss@a:1", "not escaped"), ("socks5h://a:1", "SOCKS"), (" http://a:1", "blank")]
    {
        let dir = root(&[("apt.conf", &format!("Acquire::http::Proxy \"{text}\";"))]);
        let failure = read(dir.path(), &url).expect_err("refused");
        let shown = failure.one_line();
        assert_eq!(failure.code().number(), 2);
        assert!(shown.contains("/etc/apt/apt.conf") && shown.contains(why), "{shown}");
        assert!(!shown.contains("p@ss"), "{shown}");
    }
}

#[test]
fn a_program_that_detects_a_proxy_is_named_and_not_run() {
    let dir =
        root(&[("apt.conf", "Acquire::http::Proxy-Auto-Detect \"/usr/bin/detect\";\nx y z;\n")]);
    let found = read(dir.path(), &urls(&["http://a.example.com/"])).expect("usable");
    let notes = found.notes.join("\n");
    assert!(notes.contains("the program /usr/bin/detect of /etc/apt/apt.conf"), "{notes}");
    assert!(notes.contains("apt refuses /etc/apt/apt.conf: line 2"), "{notes}");
}
