use super::*;
use crate::relation;
use longshore_core::failure::ExitCode;
use longshore_core::package_origin::PackageOrigin;
use rstest::rstest;

#[test]
fn an_exact_version_may_be_part_of_a_virtual_name() {
    let mini = mini(&[
        "nvidia-fabricmanager-615 615.71.09-0ubuntu1 noble Depends: nvidia-kernel-common-615-server-615.71.09",
        "nvidia-kernel-common-615-server 615.71.09-0ubuntu1 noble Provides: nvidia-kernel-common, nvidia-kernel-common-615-server-615.71.09",
        "nvidia-kernel-common-615-server 615.80.01-0ubuntu1 noble Provides: nvidia-kernel-common, nvidia-kernel-common-615-server-615.80.01",
    ]);
    let found = closure(&mini, &[Requirement::any("nvidia-fabricmanager-615")]).expect("resolves");
    assert_eq!(found[1].version, "615.71.09-0ubuntu1");
}

/// Packages in the form `name version [suite] [Depends: ...] [Provides: ...]`.
struct Mini(Vec<Package>);

impl Universe for Mini {
    fn named(&self, name: &str) -> Vec<Package> {
        self.0.iter().filter(|p| p.name == name).cloned().collect()
    }

    fn providing(&self, name: &str) -> Vec<Package> {
        let provides = |p: &&Package| p.provides.iter().any(|one| one.name == name);
        self.0.iter().filter(provides).cloned().collect()
    }

    fn arch(&self) -> &str {
        "amd64"
    }
}

fn mini(lines: &[&str]) -> Mini {
    let package = |line: &&str| {
        let (line, provides) = line.split_once("Provides:").unwrap_or((line, ""));
        let (line, depends) = line.split_once("Depends:").unwrap_or((line, ""));
        let words: Vec<&str> = line.split_whitespace().collect();
        Package {
            name: words[0].to_owned(),
            version: words[1].to_owned(),
            arch: "amd64".to_owned(),
            source: None,
            origin: PackageOrigin::named(*words.get(2).unwrap_or(&"stable")),
            component: "main".to_owned(),
            filename: String::new(),
            size: 0,
            sha256: words.join(" "),
            depends: relation::parse_clauses(depends).expect("depends"),
            provides: relation::parse_provides(provides),
            base_url: "https://archive.example.com".into(),
        }
    };
    Mini(lines.iter().map(package).collect())
}

fn resolved(lines: &[&str], roots: &[&str]) -> Result<Vec<String>, Unsatisfiable> {
    let roots: Vec<Requirement> =
        roots.iter().map(|root| Requirement::parse(root).expect("root")).collect();
    let picks = closure(&mini(lines), &roots)?;
    Ok(picks.iter().map(|p| format!("{} {} {}", p.name, p.version, p.origin.text)).collect())
}

#[rstest]
#[case::chain(&["a 1 s Depends: b", "b 1 s Depends: c", "c 1 s"], &["a"], &["a 1 s", "b 1 s", "c 1 s"])]
#[case::cycle(&["a 1 s Depends: b", "b 1 s Depends: a"], &["a"], &["a 1 s", "b 1 s"])]
#[case::highest(&["a 1 s", "a 3 s", "a 2 s"], &["a"], &["a 3 s"])]
#[case::pinned(&["a 1 s", "a 3 s", "a 2 s"], &["a (= 2)"], &["a 2 s"])]
#[case::bounded(&["a 1 s Depends: b (<< 2)", "b 1 s", "b 2 s"], &["a"], &["a 1 s", "b 1 s"])]
#[case::first_alternative(&["a 1 s Depends: b | c", "b 1 s", "c 1 s"], &["a"], &["a 1 s", "b 1 s"])]
#[case::available_alternative(&["a 1 s Depends: b | c", "b 1 s", "c 1 s"], &["a", "c"], &["a 1 s", "c 1 s"])]
#[case::only_alternative(&["a 1 s Depends: b | c", "c 1 s"], &["a"], &["a 1 s", "c 1 s"])]
#[case::virtual_package(&["a 1 s Depends: v", "b 1 s Provides: v"], &["a"], &["a 1 s", "b 1 s"])]
#[case::versioned_provides(
    &["a 1 s Depends: v (>= 2)", "b 1 s Provides: v", "c 1 s Provides: v (= 2)"],
    &["a"], &["a 1 s", "c 1 s"])]
#[case::real_before_virtual(&["a 1 s Depends: v", "b 9 s Provides: v", "v 1 s"], &["a"], &["a 1 s", "v 1 s"])]
#[case::same_release_before_higher_version(
    &["a 1 old Depends: b", "b 1 old", "b 2 old-security", "b 9 new"],
    &["a"], &["a 1 old", "b 2 old-security"])]
#[case::another_release_where_it_must_be(
    &["a 1 old Depends: b (>= 5)", "b 1 old", "b 9 new"],
    &["a"], &["a 1 old", "b 9 new"])]
#[case::no_backport_unless_a_backport_asks(
    &["a 1 old Depends: b", "b 1 old", "b 2 old-backports", "c 1 old-backports Depends: d", "d 1 old", "d 2 old-backports"],
    &["a", "c"], &["a 1 old", "c 1 old-backports", "b 1 old", "d 2 old-backports"])]
#[case::a_backport_before_another_release(
    &["a 1 old Depends: b (>= 2)", "b 1 old", "b 2 old-backports", "b 3 new"],
    &["a"], &["a 1 old", "b 2 old-backports"])]
#[case::the_same_version_in_two_releases(
    &["a 1 new Depends: b", "b 1 old", "b 2 old-security", "b 1 new"],
    &["a"], &["a 1 new", "b 1 new"])]
#[case::later_roots_follow_the_first(
    &["a 1 old", "b 1 old", "b 9 new"],
    &["a (= 1)", "b"], &["a 1 old", "b 1 old"])]
#[case::a_later_demand_changes_an_earlier_pick(
    &["a 1 s Depends: b, c", "b 1 s", "b 2 s", "c 1 s Depends: b (= 1)"],
    &["a"], &["a 1 s", "b 1 s", "c 1 s"])]
#[case::a_version_whose_needs_are_not_there_is_passed_over(
    &["a 1 s Depends: b", "b 2 s Depends: gone", "b 1 s"],
    &["a"], &["a 1 s", "b 1 s"])]
#[case::an_alternative_whose_needs_are_not_there_is_passed_over(
    &["a 1 s Depends: b | c", "b 1 s Depends: gone", "c 1 s"],
    &["a"], &["a 1 s", "c 1 s"])]
#[case::qualified(&["a 1 s Depends: b:any, c:amd64", "b 1 s", "c 1 s"], &["a"], &["a 1 s", "b 1 s", "c 1 s"])]
#[case::nothing(&["a 1 s"], &[], &[])]
fn closures(#[case] lines: &[&str], #[case] roots: &[&str], #[case] expected: &[&str]) {
    assert_eq!(resolved(lines, roots).expect("resolves"), expected);
}

#[rstest]
#[case::no_root(&["a 1"], &["b"], "b", &[])]
#[case::no_version(&["a 1"], &["a (= 2)"], "a (= 2)", &[])]
#[case::deep(&["a 1 s Depends: b", "b 1 s Depends: c (>= 2) | d", "c 1 s"], &["a"], "c (>= 2) | d", &["a (1)", "b (1)"])]
#[case::foreign(&["a 1 s Depends: b:i386", "b 1 s"], &["a"], "b:i386", &["a (1)"])]
#[case::contradiction(
    &["a 1 s Depends: b (= 1), c", "b 1 s", "b 2 s", "c 1 s Depends: b (= 2)"],
    &["a"], "b (= 1)", &["a (1)"])]
fn what_cannot_be_had_is_named_with_its_chain(
    #[case] lines: &[&str],
    #[case] roots: &[&str],
    #[case] what: &str,
    #[case] chain: &[&str],
) {
    let error = resolved(lines, roots).expect_err("unsatisfiable");
    assert_eq!(error.what, what);
    assert_eq!(error.chain, chain);
    assert_eq!(error.clone().failure(FailureKind::Toolchain).code(), ExitCode::Toolchain);
    assert_eq!(Failure::from(error).code(), ExitCode::Download);
}

#[rstest]
#[case("bookworm", "bookworm")]
#[case("bookworm-security", "bookworm")]
#[case("bookworm-backports-sloppy", "bookworm")]
#[case("buster/updates", "buster")]
#[case("sid", "sid")]
fn pockets_belong_to_their_release(#[case] suite: &str, #[case] expected: &str) {
    assert_eq!(release_of(suite), expected);
}

#[test]
fn a_contradiction_names_both_sides() {
    let lines = ["a 1 s Depends: b (= 1), c", "b 1 s", "b 2 s", "c 1 s Depends: b (= 2)"];
    let error = resolved(&lines, &["a"]).expect_err("unsatisfiable");
    assert!(error.remedy.starts_with("c (1) needs b (= 2)"), "{}", error.remedy);
}

#[test]
fn what_useless_packages_asked_for_is_forgotten() {
    let lines = [
        "a 1 s Depends: b, c",
        "b 1 s",
        "b 2 s",
        "c 2 s Depends: b (= 1), gone",
        "c 1 s Depends: b (= 2)",
    ];
    assert_eq!(resolved(&lines, &["a"]).expect("resolves"), ["a 1 s", "b 2 s", "c 1 s"]);
}
