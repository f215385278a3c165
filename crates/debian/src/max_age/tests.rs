//! Limits of age; those of apt are asked of `apt-get update` over the same files.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::apt_sources;
use longshore_core::failure::ExitCode;
use rstest::rstest;

const URL: &str = "http://archive.example.com/debian/dists/bookworm";
/// 2026-11-18.
const DATE: u64 = 1_795_000_000;

fn release(date: Option<u64>, more: &str) -> Release {
    let date = date.map(|seconds| format!("Date: {}\n", rfc2822(seconds))).unwrap_or_default();
    Release::parse(&format!("Suite: a\n{date}{more}SHA256:\n")).expect("reads")
}

fn rfc2822(seconds: u64) -> String {
    let time = jiff::Timestamp::from_second(seconds.try_into().expect("seconds")).expect("a time");
    time.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string()
}

fn age(text: &str) -> MaxAge {
    text.parse().expect("an age")
}

#[rstest]
#[case("14d", Ok(14 * DAY))]
#[case("2w", Ok(14 * DAY))]
#[case("36h", Ok(36 * HOUR))]
#[case("1d12h", Ok(36 * HOUR))]
#[case("1h", Ok(HOUR))]
#[case("3650d", Ok(3650 * DAY))]
#[case("59m", Err(()))]
#[case("3651d", Err(()))]
#[case("0d", Err(()))]
#[case("-14d", Err(()))]
#[case("1mo", Err(()))]
#[case("14", Err(()))]
#[case("None", Err(()))]
#[case("", Err(()))]
fn spans(#[case] text: &str, #[case] wanted: Result<u64, ()>) {
    let parsed = text.parse::<MaxAge>().map_err(|e| assert!(e.to_string().contains(WANTED)));
    assert_eq!(parsed.map(|age| age.duration().expect("a limit").as_secs()), wanted);
}

#[rstest]
#[case("14d", "14d")]
#[case("2w", "14d")]
#[case("36h", "1d12h")]
#[case("90m", "1h30m")]
#[case("none", "none")]
fn a_limit_is_written_as_it_is_read(#[case] text: &str, #[case] written: &str) {
    assert_eq!(age(text).to_string(), written);
    assert_eq!(age(written), age(text));
    assert_eq!(span_text(0), "0s");
}

#[rstest]
#[case::young(Some("14d"), "none", Some(14 * DAY), None)]
#[case::old(Some("14d"), "none", Some(14 * DAY + 1), Some(("max-age is 14d", "14d1s old", "raise max-age of")))]
#[case::of_the_default(None, "36h", Some(2 * DAY), Some(("archive-max-age is 1d12h", "2d old", "raise archive-max-age")))]
#[case::within_the_default(None, "36h", Some(DAY), None)]
#[case::its_own_goes_over_the_default(Some("14d"), "1d", Some(2 * DAY), None)]
#[case::none_of_its_own(Some("none"), "1d", Some(900 * DAY), None)]
#[case::none_at_all(None, "none", Some(900 * DAY), None)]
#[case::no_date(Some("14d"), "none", None, Some(("has no Date", "max-age is 14d", "max-age = \"none\"")))]
#[case::no_date_and_no_limit(None, "none", None, None)]
fn metadata_is_refused_above_its_age(
    #[case] own: Option<&str>,
    #[case] default: &str,
    #[case] old: Option<u64>,
    #[case] refused: Option<(&str, &str, &str)>,
) {
    let limits = AgeLimits::of_entry(own.map(age), age(default));
    let rules = |frozen| Rules { now: DATE + old.unwrap_or(0), frozen };
    let release = release(old.map(|_| DATE), "");
    let checked = limits.check(URL, &release, rules(false));
    assert_eq!(checked.is_err(), refused.is_some(), "{checked:?}");
    if let (Err(failure), Some((setting, second, remedy))) = (checked, refused) {
        assert_eq!(failure.code(), ExitCode::Verification);
        let cause = failure.to_string();
        assert!(
            cause.contains(URL) && cause.contains(setting) && cause.contains(second),
            "{cause}"
        );
        assert!(old.is_none() || cause.contains("2026-11-18T"), "{cause}");
        let text = failure.remedy_or_default();
        assert!(text.contains(remedy) && text.contains("--archive-frozen"), "{text}");
    }
    limits.check(URL, &release, rules(true)).expect("frozen");
}

/// Origin of a limit, which decides where two entries name one suite.
#[rstest]
#[case::the_shorter(Some("14d"), Some("7d"), "7d")]
#[case::the_shorter_first(Some("7d"), Some("none"), "7d")]
#[case::one_alone(Some("none"), Some("7d"), "7d")]
#[case::an_entry_before_the_host(Some("none"), None, "none")]
fn entries_of_one_suite(
    #[case] first: Option<&str>,
    #[case] second: Option<&str>,
    #[case] wanted: &str,
) {
    let limits = |own: Option<&str>| match own {
        Some(own) => AgeLimits::of_entry(Some(age(own)), MaxAge::default()),
        None => AgeLimits { own: age("1d"), ..AgeLimits::default() },
    };
    let mut merged = limits(first);
    merged.merge(&limits(second));
    assert_eq!(merged.own, age(wanted));
}

#[test]
fn a_sources_options_count_for_all_its_entries() {
    let of = |max, check| ValidUntil { max, check, ..ValidUntil::default() };
    let mut first = AgeLimits { source: of(0, Some(false)), ..AgeLimits::default() };
    first.merge(&AgeLimits { source: of(5, Some(true)), ..AgeLimits::default() });
    assert_eq!((first.source.max, first.source.check), (5, Some(false)));
}

/// A root with apt's files, and a flat archive whose Release is three days old.
struct Host {
    root: tempfile::TempDir,
    now: u64,
}

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("dir");
        for dir in ["etc/apt/apt.conf.d", "etc/apt/sources.list.d", "etc/apt/trusted.gpg.d", "repo"]
        {
            fs::create_dir_all(root.path().join(dir)).expect("made");
        }
        fs::create_dir_all(root.path().join("var/lib/apt/lists/partial")).expect("made");
        fs::create_dir_all(root.path().join("var/cache/apt/archives/partial")).expect("made");
        let now = jiff::Timestamp::now().as_second().try_into().expect("since 1970");
        Self { root, now }
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.root.path().join(path), text).expect("written");
    }

    /// Writes configuration, source and Release; returns the Release.
    fn state(&self, conf: &str, options: &str, label: &str) -> Release {
        let line =
            format!("deb [trusted=yes {options}] file:{}/repo ./\n", self.root.path().display());
        self.write("etc/apt/sources.list.d/a.list", &line);
        self.write("etc/apt/apt.conf", conf);
        let text = format!(
            "Origin: A\n{label}Date: {}\nSHA256:\n {} 0 Packages\n",
            rfc2822(self.now - 3 * DAY),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        self.write("repo/Release", &text);
        self.write("repo/Packages", "");
        Release::parse(&text).expect("reads")
    }

    /// True if `apt-get update` accepts the archive.
    fn accepted_by_apt(&self) -> bool {
        let dir = self.root.path().display();
        self.write("status", "");
        self.write(
            "root.conf",
            &format!(
                "Dir \"{dir}\"; Dir::State::status \"{dir}/status\"; APT::Sandbox::User \"root\";\n"
            ),
        );
        let mut apt = Command::new("apt-get");
        apt.arg("update").env("APT_CONFIG", self.root.path().join("root.conf")).env("LC_ALL", "C");
        let output = apt.output().expect("apt-get runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() != text.contains("is expired"), "{text}");
        output.status.success()
    }

    fn checked(&self, release: &Release) -> Result<(), Failure> {
        let root = self.root.path();
        let found = apt_sources::read(root, "amd64");
        assert_eq!(found.sources.len(), 1, "{:?}", found.problems);
        let apt = Arc::new(AptMaxAges::read(root));
        let limits = AgeLimits::of_host(MaxAge::default(), &apt, &found.sources[0]);
        limits.check(URL, release, Rules { now: self.now, frozen: false })
    }
}

const DAYS_1: &str = "Acquire::Max-ValidTime \"86400\";";

#[rstest]
#[case::nothing("", "", "", None)]
#[case::short(DAYS_1, "", "", Some("Acquire::Max-ValidTime of /etc/apt/apt.conf is 1d"))]
#[case::long("Acquire::Max-ValidTime \"864000\";", "", "", None)]
#[case::other_case("acquire::max-validtime \"86400s\";", "", "", Some("is 1d"))]
#[case::hex("Acquire::Max-ValidTime \"0x10\";", "", "", Some("is 16s"))]
#[case::no_number("Acquire::Max-ValidTime \"soon\";", "", "", None)]
#[case::negative("Acquire::Max-ValidTime \"-5\";", "", "", Some("is 0s"))]
#[case::label(
    "Acquire::Max-ValidTime { \"My Label\" \"86400\"; };",
    "",
    "Label: My Label\n",
    Some("Acquire::Max-ValidTime::my label of")
)]
#[case::another_label("Acquire::Max-ValidTime::Other \"86400\";", "", "Label: My Label\n", None)]
#[case::no_label("Acquire::Max-ValidTime::Other \"86400\";", "", "", None)]
#[case::label_lifts(
    "Acquire::Max-ValidTime \"86400\"; Acquire::Max-ValidTime::A \"0\";",
    "",
    "Label: A\n",
    None
)]
#[case::label_without_number(
    "Acquire::Max-ValidTime \"86400\"; Acquire::Max-ValidTime::A \"x\";",
    "",
    "Label: A\n",
    Some("is 1d")
)]
#[case::source(
    "",
    "valid-until-max=86400",
    "",
    Some("Valid-Until-Max of /etc/apt/sources.list.d/a.list is 1d")
)]
#[case::source_goes_over(DAYS_1, "valid-until-max=864000", "", None)]
#[case::source_of_zero(DAYS_1, "valid-until-max=0", "", Some("is 1d"))]
#[case::source_without_check(DAYS_1, "check-valid-until=no", "", None)]
#[case::source_with_unknown_check(DAYS_1, "check-valid-until=maybe", "", None)]
#[case::no_check(
    "Acquire::Max-ValidTime \"86400\"; Acquire::Check-Valid-Until \"off\";",
    "",
    "",
    None
)]
#[case::unknown_check(
    "Acquire::Max-ValidTime \"86400\"; Acquire::Check-Valid-Until \"maybe\";",
    "",
    "",
    Some("is 1d")
)]
#[case::source_checks_all_the_same(
    "Acquire::Max-ValidTime \"86400\"; Acquire::Check-Valid-Until \"no\";",
    "check-valid-until=yes",
    "",
    Some("is 1d")
)]
fn apts_own_limits_are_those_of_apt(
    #[case] conf: &str,
    #[case] options: &str,
    #[case] label: &str,
    #[case] refused: Option<&str>,
) {
    let host = Host::new();
    let release = host.state(conf, options, label);
    let checked = host.checked(&release);
    assert_eq!(host.accepted_by_apt(), refused.is_none(), "apt");
    match (checked, refused) {
        (Ok(()), None) => {}
        (Err(failure), Some(setting)) => {
            let cause = failure.to_string();
            assert!(cause.contains(setting) && cause.contains("3d old"), "{cause}");
            assert!(failure.remedy_or_default().contains("apt refuses it, too"));
        }
        (checked, _) => panic!("{checked:?}"),
    }
}

#[test]
fn a_stanzas_options_are_read() {
    let host = Host::new();
    let stanza = "Types: deb\nURIs: http://a.example.com\nSuites: ./\nValid-Until-Max: 86400\nCheck-Valid-Until: yes\n";
    host.write("etc/apt/sources.list.d/a.sources", stanza);
    let valid_until = &apt_sources::read(host.root.path(), "amd64").sources[0].valid_until;
    assert_eq!((valid_until.max, valid_until.check), (86_400, Some(true)));
    assert_eq!(valid_until.file, Path::new("/etc/apt/sources.list.d/a.sources"));
}
