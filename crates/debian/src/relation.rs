//! Relations between packages: `name[:arch] [(operator version)] | ...` (deb-control(5)).

use std::fmt;

use super::version;

/// Comparison of versions, as fields write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Operator {
    /// Before the bound.
    #[display("<<")]
    Earlier,
    /// Before the bound, or the bound.
    #[display("<=")]
    EarlierOrEqual,
    /// The bound.
    #[display("=")]
    Equal,
    /// The bound, or after it.
    #[display(">=")]
    LaterOrEqual,
    /// After the bound.
    #[display(">>")]
    Later,
}

impl Operator {
    /// True if `version` compares so to `bound`.
    pub fn holds(self, version: &str, bound: &str) -> bool {
        let order = version::compare(version, bound);
        match self {
            Self::Earlier => order.is_lt(),
            Self::EarlierOrEqual => order.is_le(),
            Self::Equal => order.is_eq(),
            Self::LaterOrEqual => order.is_ge(),
            Self::Later => order.is_gt(),
        }
    }
}

/// One required package, perhaps in some versions only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Package name, real or virtual.
    pub name: String,
    /// Architecture qualifier, for example `any` or `amd64`.
    pub arch: Option<String>,
    /// Accepted versions; None for any.
    pub version: Option<(Operator, String)>,
}

impl Requirement {
    /// Requires any version of `name`.
    pub fn any(name: impl Into<String>) -> Self {
        Self { name: name.into(), arch: None, version: None }
    }

    /// Requires exactly this version of `name`.
    pub fn exact(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self::versioned(name, Operator::Equal, version)
    }

    /// Requires versions of `name` that compare so to `version`.
    pub fn versioned(
        name: impl Into<String>,
        operator: Operator,
        version: impl Into<String>,
    ) -> Self {
        Self { name: name.into(), arch: None, version: Some((operator, version.into())) }
    }

    /// Parses one requirement, for example `libc6 (>= 2.36)` or `python3:any`.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = |what: &str| Err(format!("{what} in the relation {text:?}"));
        // Build profiles and architecture lists occur in source packages only; they end the
        // relevant part.
        let end =
            text.find(['[', '<']).filter(|&at| !text[..at].contains('(')).unwrap_or(text.len());
        let (target, version) = match text.find('(') {
            Some(open) if open < end => {
                let Some(close) = text[open..].find(')') else { return bad("unclosed bracket") };
                (&text[..open], Some(&text[open + 1..open + close]))
            }
            _ => (&text[..end], None),
        };
        let target = target.trim();
        let (name, arch) = match target.split_once(':') {
            Some((name, arch)) => (name, Some(arch.to_owned())),
            None => (target, None),
        };
        if !is_name(name) {
            return bad("no package name");
        }
        let version = match version.map(parse_version) {
            Some(None) => return bad("no version"),
            Some(version) => version,
            None => None,
        };
        Ok(Self { name: name.to_owned(), arch, version })
    }

    /// True if a package of this name with `version` satisfies it.
    pub(crate) fn accepts(&self, version: &str) -> bool {
        self.version.as_ref().is_none_or(|(operator, bound)| operator.holds(version, bound))
    }

    /// True if a provided name satisfies it: an unversioned Provides satisfies only an unversioned
    /// requirement (Debian policy 7.5).
    pub(crate) fn accepts_provided(&self, version: Option<&str>) -> bool {
        match (&self.version, version) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some((operator, bound)), Some(version)) => operator.holds(version, bound),
        }
    }

    /// True if the architecture qualifier, if any, allows a package for `arch`.
    pub(crate) fn allows_arch(&self, arch: &str) -> bool {
        self.arch.as_deref().is_none_or(|wanted| wanted == "any" || wanted == arch)
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(arch) = &self.arch {
            write!(f, ":{arch}")?;
        }
        if let Some((operator, version)) = &self.version {
            write!(f, " ({operator} {version})")?;
        }
        Ok(())
    }
}

/// Alternatives, in order of preference: one of them must be there.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{}", _0.iter().map(Requirement::to_string).collect::<Vec<_>>().join(" | "))]
pub struct Clause(pub Vec<Requirement>);

/// Parses a Depends or Pre-Depends field.
///
/// # Errors
/// A text that describes the fault.
pub fn parse_clauses(field: &str) -> Result<Vec<Clause>, String> {
    field
        .split(',')
        .filter(|clause| !clause.trim().is_empty())
        .map(|clause| {
            clause.split('|').map(Requirement::parse).collect::<Result<_, _>>().map(Clause)
        })
        .collect()
}

/// A name that a package provides, with its version if given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provided {
    /// Name of the virtual package.
    pub name: String,
    /// Its version.
    pub version: Option<String>,
}

/// Parses a Provides field. Unreadable parts are left out: they satisfy no requirement.
pub fn parse_provides(field: &str) -> Vec<Provided> {
    field
        .split(',')
        .filter_map(|one| Requirement::parse(one).ok())
        .filter_map(|one| match one.version {
            None => Some(Provided { name: one.name, version: None }),
            Some((Operator::Equal, version)) => {
                Some(Provided { name: one.name, version: Some(version) })
            }
            Some(_) => None,
        })
        .collect()
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.' | b'_'))
}

fn parse_version(text: &str) -> Option<(Operator, String)> {
    const OPERATORS: [(&str, Operator); 7] = [
        ("<<", Operator::Earlier),
        ("<=", Operator::EarlierOrEqual),
        (">=", Operator::LaterOrEqual),
        (">>", Operator::Later),
        ("=", Operator::Equal),
        // deb-control(5): obsolete spellings of <= and >=.
        ("<", Operator::EarlierOrEqual),
        (">", Operator::LaterOrEqual),
    ];
    let text = text.trim();
    let (operator, version) = OPERATORS
        .iter()
        .find_map(|(sign, operator)| Some((*operator, text.strip_prefix(sign)?.trim())))?;
    (!version.is_empty() && !version.contains(char::is_whitespace))
        .then(|| (operator, version.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::process::Command;

    use proptest::collection::vec;
    use proptest::option;
    use proptest::sample::select;
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("libc6", "libc6")]
    #[case(" libc6 (>= 2.36) ", "libc6 (>= 2.36)")]
    #[case("libc6(>=2.36)", "libc6 (>= 2.36)")]
    #[case("python3:any (>= 3.11~)", "python3:any (>= 3.11~)")]
    #[case("gcc-12 (= 12.2.0-14)", "gcc-12 (= 12.2.0-14)")]
    #[case("a (<< 2)", "a (<< 2)")]
    #[case("a (< 2)", "a (<= 2)")]
    #[case("a (>> 1:2)", "a (>> 1:2)")]
    #[case("a [amd64 i386]", "a")]
    #[case("a (= 1) [amd64] <!nocheck>", "a (= 1)")]
    #[case("libstdc++6", "libstdc++6")]
    fn requirements_are_read(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(Requirement::parse(text).expect("reads").to_string(), expected);
    }

    #[rstest]
    #[case("")]
    #[case("(>= 1)")]
    #[case("a (>= 1")]
    #[case("a (1)")]
    #[case("a (>=)")]
    #[case("a b")]
    fn nonsense_is_refused(#[case] text: &str) {
        assert!(Requirement::parse(text).is_err(), "{text:?}");
    }

    #[test]
    fn clauses_keep_alternatives_in_order() {
        let clauses = parse_clauses("mawk | gawk (>= 1) | awk,\n libc6 (>= 2.36),").expect("reads");
        let text: Vec<String> = clauses.iter().map(Clause::to_string).collect();
        assert_eq!(text, ["mawk | gawk (>= 1) | awk", "libc6 (>= 2.36)"]);
    }

    #[rstest]
    #[case("a", None, true)]
    #[case("a", Some("1"), true)]
    #[case("a (>= 2)", None, false)]
    #[case("a (>= 2)", Some("1"), false)]
    #[case("a (>= 2)", Some("2"), true)]
    fn versioned_requirements_want_versioned_provides(
        #[case] requirement: &str,
        #[case] provided: Option<&str>,
        #[case] expected: bool,
    ) {
        let requirement = Requirement::parse(requirement).expect("reads");
        assert_eq!(requirement.accepts_provided(provided), expected);
    }

    #[test]
    fn provides_are_read_with_their_versions() {
        let provided = parse_provides("awk, linux-compiler (= 12), odd (>= 3)");
        assert_eq!(provided.len(), 2);
        assert_eq!(provided[1].version.as_deref(), Some("12"));
    }

    #[test]
    fn foreign_architectures_are_not_ours() {
        let requirement = Requirement::parse("libc6:i386").expect("reads");
        assert!(!requirement.allows_arch("amd64"));
        assert!(Requirement::parse("libc6:any").expect("reads").allows_arch("amd64"));
    }

    const OPERATORS: [Operator; 5] = [
        Operator::Earlier,
        Operator::EarlierOrEqual,
        Operator::Equal,
        Operator::LaterOrEqual,
        Operator::Later,
    ];

    proptest::prop_compose! {
        fn any_requirement()(
            name in "[a-z0-9][a-z0-9+.-]{1,9}",
            arch in option::of("any|native|amd64|arm64"),
            version in option::of((select(&OPERATORS[..]), "([0-9]:)?[0-9][0-9a-zA-Z.+~-]{0,9}")),
        ) -> Requirement {
            Requirement { name, arch, version }
        }
    }

    /// Reads fields with dpkg's own parser, one a line, and returns them as it writes them.
    fn by_dpkg(fields: &[String]) -> Vec<String> {
        const SCRIPT: &str = "while (<>) { chomp; print deps_parse($_) // die($_), qq(\\n) }";
        let mut input = tempfile::tempfile().expect("a file");
        input.write_all(fields.join("\n").as_bytes()).expect("written");
        input.rewind().expect("rewound");
        let mut perl = Command::new("perl");
        let found = perl.args(["-MDpkg::Deps", "-e", SCRIPT]).stdin(input).output().expect("perl");
        assert!(found.status.success() && found.stderr.is_empty(), "{found:?}");
        String::from_utf8(found.stdout).expect("text").lines().map(str::to_owned).collect()
    }

    #[test]
    fn dpkg_itself_reads_a_sample_of_fields_alike() {
        let mut runner = TestRunner::deterministic();
        let space = || "[ \t]{0,2}";
        let version = "([0-9]:)?[0-9][0-9a-z.+~]{0,6}(-[0-9a-z+.~]{1,3})?";
        let bound = (space(), select(vec!["<<", "<=", "=", ">=", ">>"]), space(), version);
        let bound =
            bound.prop_map(|(a, sign, b, version)| format!("{a}({a}{sign}{b}{version}{b})"));
        let qualifier = option::of(":(any|amd64)").prop_map(Option::unwrap_or_default);
        let bound = option::of(bound).prop_map(Option::unwrap_or_default);
        let one = ("[a-z0-9][a-z0-9+.-]{1,9}", qualifier, bound, space())
            .prop_map(|(name, qualifier, bound, space)| format!("{name}{qualifier}{bound}{space}"));
        let clause = (vec(one, 1..4), space(), space())
            .prop_map(|(all, a, b)| all.join(&format!("{a}|{b}")));
        let field =
            (vec(clause, 1..5), space()).prop_map(|(all, space)| all.join(&format!(",{space}")));
        let fields: Vec<String> =
            (0..1000).map(|_| field.new_tree(&mut runner).expect("a field").current()).collect();
        let wanted = by_dpkg(&fields);
        assert_eq!(wanted.len(), fields.len());
        for (field, wanted) in fields.iter().zip(&wanted) {
            let clauses = parse_clauses(field).unwrap_or_else(|e| panic!("{field:?}: {e}"));
            let found: Vec<String> = clauses.iter().map(Clause::to_string).collect();
            assert_eq!(found.join(", "), *wanted, "{field:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read_the_same(
            clauses in vec(vec(any_requirement(), 1..4), 0..5),
            comma in " {0,2},[ \n]{0,2}",
        ) {
            let clauses: Vec<Clause> = clauses.into_iter().map(Clause).collect();
            let field: Vec<String> = clauses.iter().map(Clause::to_string).collect();
            let field = field.join(&comma);
            proptest::prop_assert_eq!(parse_clauses(&field), Ok(clauses.clone()), "{}", field);
            let provided: Vec<Provided> = clauses
                .iter()
                .filter_map(|clause| match &clause.0[..] {
                    [Requirement { name, version: None, .. }] => {
                        Some(Provided { name: name.clone(), version: None })
                    }
                    [Requirement { name, version: Some((Operator::Equal, version)), .. }] => {
                        Some(Provided { name: name.clone(), version: Some(version.clone()) })
                    }
                    _ => None,
                })
                .collect();
            let single: Vec<&Clause> = clauses.iter().filter(|clause| clause.0.len() == 1).collect();
            let field: Vec<String> = single.iter().map(ToString::to_string).collect();
            proptest::prop_assert_eq!(parse_provides(&field.join(&comma)), provided);
        }

        #[test]
        fn no_text_makes_it_panic_and_what_it_reads_is_read_again(
            text in "[a-z:()<>=|, \\[\\]0-9]{0,20}",
        ) {
            // Most of these texts are no relations; the others are in the test above.
            if let Ok(clauses) = parse_clauses(&text) {
                for clause in clauses {
                    proptest::prop_assert_eq!(parse_clauses(&clause.to_string()), Ok(vec![clause]));
                }
            }
            parse_provides(&text);
        }
    }
}
