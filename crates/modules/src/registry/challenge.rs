//! Challenges of a registry in `WWW-Authenticate` (RFC 9110, section 11.6.1).

use http_auth::ChallengeRef;
use http_auth::parser::ChallengeParser;

/// An authentication scheme that a server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token from a realm, as in the distribution specification's token authentication.
    Bearer {
        /// URL that issues tokens.
        realm: String,
        /// The service that the token is for.
        service: Option<String>,
        /// The requested access, if the server states it.
        scope: Option<String>,
    },
}

/// Parses the challenges of a header's value, in its order. Unknown schemes are skipped, and so is
/// everything from a syntax error on.
pub(super) fn parse(value: &str) -> Vec<Challenge> {
    ChallengeParser::new(value).map_while(Result::ok).filter_map(|found| known(&found)).collect()
}

/// Returns the realm of each challenge; None for Basic.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn realms(value: &str) -> Vec<Option<String>> {
    let realm = |challenge| match challenge {
        Challenge::Basic => None,
        Challenge::Bearer { realm, .. } => Some(realm),
    };
    parse(value).into_iter().map(realm).collect()
}

fn known(found: &ChallengeRef<'_>) -> Option<Challenge> {
    let parameter = |name: &str| {
        let (_, value) = found.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        Some(value.to_unescaped())
    };
    if found.scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    let is_bearer = found.scheme.eq_ignore_ascii_case("bearer");
    let realm = is_bearer.then(|| parameter("realm")).flatten()?;
    Some(Challenge::Bearer { realm, service: parameter("service"), scope: parameter("scope") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        let owned = |t: Option<&str>| t.map(str::to_owned);
        Challenge::Bearer { realm: realm.into(), service: owned(service), scope: owned(scope) }
    }

    #[rstest]
    #[case::hub(
        r#"Bearer realm="https://auth.example.com/token",service="registry.example.com",scope="repository:a/b:pull""#,
        vec![bearer("https://auth.example.com/token", Some("registry.example.com"), Some("repository:a/b:pull"))]
    )]
    #[case::a_comma_within(
        r#"Bearer realm="https://a/t", scope="repository:a:pull,push""#,
        vec![bearer("https://a/t", None, Some("repository:a:pull,push"))]
    )]
    #[case::basic(r#"Basic realm="basic-realm""#, vec![Challenge::Basic])]
    #[case::bare("basic", vec![Challenge::Basic])]
    #[case::two(
        r#"Basic realm="x", Bearer realm="https://a/t",service=s"#,
        vec![Challenge::Basic, bearer("https://a/t", Some("s"), None)]
    )]
    #[case::unknown_first(
        r#"Negotiate, BEARER Realm="https://a/t""#,
        vec![bearer("https://a/t", None, None)]
    )]
    #[case::escaped(r#"Bearer realm="a\"b\\c,d""#, vec![bearer(r#"a"b\c,d"#, None, None)])]
    #[case::no_realm(r#"Bearer service="s""#, vec![])]
    #[case::empty("", vec![])]
    #[case::open_quote(r#"Bearer realm="https://a/t"#, vec![])]
    #[case::an_error_after_a_challenge(
        r#"Basic realm="x", Bearer realm="https://a/t", ="#,
        vec![Challenge::Basic]
    )]
    fn challenges(#[case] value: &str, #[case] expected: Vec<Challenge>) {
        assert_eq!(parse(value), expected);
    }

    proptest::proptest! {
        #[test]
        fn no_header_makes_it_panic(value in "\\PC{0,80}") {
            let _ = parse(&value);
        }
    }
}
