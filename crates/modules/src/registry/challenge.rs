//! Challenges of a registry in `WWW-Authenticate` (RFC 9110, section 11.6.1).

use std::collections::BTreeMap;

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

/// Parses the challenges of a header's value, in its order; unknown schemes are skipped.
pub(super) fn parse(value: &str) -> Vec<Challenge> {
    let mut challenges = Vec::new();
    let mut current: Option<(String, BTreeMap<String, String>)> = None;
    for part in split(value) {
        let (first, rest) = match part.split_once([' ', '\t']) {
            // "Bearer realm=..." begins a challenge; "a = b" does not.
            Some((word, rest)) if !word.contains('=') && !rest.trim_start().starts_with('=') => {
                (Some(word), rest.trim())
            }
            _ if !part.contains('=') => (Some(part.as_str()), ""),
            _ => (None, part.as_str()),
        };
        if let Some(scheme) = first {
            challenges.extend(current.take().and_then(challenge));
            current = Some((scheme.to_ascii_lowercase(), BTreeMap::new()));
        }
        if let (Some((_, parameters)), Some((name, text))) = (&mut current, rest.split_once('=')) {
            parameters.insert(name.trim().to_ascii_lowercase(), unquote(text.trim()));
        }
    }
    challenges.extend(current.and_then(challenge));
    challenges
}

fn challenge((scheme, mut parameters): (String, BTreeMap<String, String>)) -> Option<Challenge> {
    match scheme.as_str() {
        "basic" => Some(Challenge::Basic),
        "bearer" => Some(Challenge::Bearer {
            realm: parameters.remove("realm")?,
            service: parameters.remove("service"),
            scope: parameters.remove("scope"),
        }),
        _ => None,
    }
}

/// Splits at commas outside of quotes.
fn split(value: &str) -> Vec<String> {
    let (mut parts, mut quoted, mut escaped) = (vec![String::new()], false, false);
    for c in value.chars() {
        match c {
            ',' if !quoted => {
                parts.push(String::new());
                continue;
            }
            '"' if !escaped => quoted = !quoted,
            _ => {}
        }
        escaped = quoted && c == '\\' && !escaped;
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts.iter().map(|p| p.trim().to_owned()).filter(|p| !p.is_empty()).collect()
}

fn unquote(text: &str) -> String {
    let Some(inner) = text.strip_prefix('"') else { return text.to_owned() };
    let mut out = String::new();
    let mut chars = inner.strip_suffix('"').unwrap_or(inner).chars();
    while let Some(c) = chars.next() {
        out.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    out
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
    #[case::open_quote(r#"Bearer realm="https://a/t"#, vec![bearer("https://a/t", None, None)])]
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
