//! URLs as shown in logs, failures, records and the status: without user, password, token and
//! query.
//!
//! Tokens occur as the user (`https://TOKEN@host/`), as the password, and in the query
//! (`?X-Amz-Signature=`); a fragment is never sent, and may be one too.

use std::borrow::Cow;

use url::Url;

/// Replacement of a secret.
const MASK: &str = "***";

/// Masks a URL's userinfo and query and removes its fragment. Text that is not a URL may have been
/// meant as one, and is masked alike.
pub fn redacted(url: &str) -> String {
    if let Some((scheme, inner)) = wrapped(url) {
        return format!("{scheme}://{}", redacted(inner));
    }
    match Url::parse(url) {
        Ok(parsed) if !parsed.cannot_be_a_base() => redacted_url(url, parsed),
        _ => masked(url),
    }
}

/// Masks every URL in a text, such as messages of other libraries.
pub fn redacted_text(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '`' | '\'' | '<' | '>');
    let words = text.split_inclusive(is_end).map(|word| {
        let (word, end) = match word.strip_suffix(is_end) {
            Some(inner) => (inner, &word[inner.len()..]),
            None => (word, ""),
        };
        if word.contains("://") { redacted(word) + end } else { format!("{word}{end}") }
    });
    Cow::Owned(words.collect())
}

/// Returns the outer scheme and the URL of a repository with its own scheme: `oci://http://HOST/REPOSITORY`.
fn wrapped(url: &str) -> Option<(&str, &str)> {
    let (outer, inner) = url.split_once("://")?;
    let (scheme, _) = inner.split_once("://")?;
    let is_scheme = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric());
    (is_scheme(outer) && is_scheme(scheme)).then_some((outer, inner))
}

fn redacted_url(text: &str, mut url: Url) -> String {
    let has_user = !url.username().is_empty() || url.password().is_some();
    if !has_user && url.query().is_none() && url.fragment().is_none() {
        return text.to_owned();
    }
    url.set_fragment(None);
    if url.query().is_some() {
        url.set_query(Some(MASK));
    }
    if has_user && (url.set_password(None).is_err() || url.set_username(MASK).is_err()) {
        return masked(text);
    }
    url.to_string()
}

/// Masks the places of userinfo and query.
fn masked(text: &str) -> String {
    let (scheme, rest) = match text.find("://") {
        Some(at) => text.split_at(at + "://".len()),
        None if text.starts_with('/') => return text.to_owned(),
        None => ("", text),
    };
    let (rest, query) = match rest.split_once(['?', '#']) {
        // A password with such a character, or a query with an address.
        Some((_, query)) if query.contains('@') => return format!("{scheme}{MASK}"),
        Some((rest, _)) => (rest, format!("?{MASK}")),
        None => (rest, String::new()),
    };
    let rest = match rest.rsplit_once('@') {
        // The digest of a reference (`HOST/REPOSITORY@sha256:...`) is no secret.
        Some((before, digest)) if digest.starts_with("sha256:") => {
            format!("{}@{digest}", masked(before))
        }
        Some((_, place)) => format!("{MASK}@{place}"),
        None => rest.to_owned(),
    };
    format!("{scheme}{rest}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("http://archive.example.com/x", "http://archive.example.com/x")]
    #[case::bare("http://archive.example.com", "http://archive.example.com")]
    #[case::password(
        "http://user:secret@archive.example.com/x",
        "http://***@archive.example.com/x"
    )]
    #[case::user("https://secret@archive.example.com/x", "https://***@archive.example.com/x")]
    #[case::no_password(
        "https://secret:@archive.example.com/x",
        "https://***@archive.example.com/x"
    )]
    #[case::no_user("https://:secret@archive.example.com/x", "https://***@archive.example.com/x")]
    #[case::query("https://a.example.com/x?sig=secret&a=b", "https://a.example.com/x?***")]
    #[case::fragment("https://a.example.com/x#secret", "https://a.example.com/x")]
    #[case::all(
        "https://secret@a.example.com/x?t=secret#secret",
        "https://***@a.example.com/x?***"
    )]
    #[case::ambiguous("http://user:sec?ret@:99999/x", "http://***")]
    #[case::bad_port("http://user:secret@:99999/x", "http://***@:99999/x")]
    #[case::odd_password("http://user:se/cret@secret@:99999/x", "http://***@:99999/x")]
    #[case::bad_port_query("http://:99999/x?secret", "http://:99999/x?***")]
    #[case::no_scheme("user:secret@archive.example.com/x", "***@archive.example.com/x")]
    #[case::token("secret@archive.example.com/x", "***@archive.example.com/x")]
    #[case::reference("localhost:5000/a@sha256:12", "localhost:5000/a@sha256:12")]
    #[case::reference_token("secret@h.example.com/a@sha256:12", "***@h.example.com/a@sha256:12")]
    #[case::path("/srv/a@b.run", "/srv/a@b.run")]
    #[case::wrapped("oci://http://h.example.com/a", "oci://http://h.example.com/a")]
    #[case::wrapped_user(
        "oci://http://user:secret@h.example.com/a",
        "oci://http://***@h.example.com/a"
    )]
    #[case::wrapped_query(
        "oci://https://h.example.com/a?secret",
        "oci://https://h.example.com/a?***"
    )]
    #[case::word("nonsense", "nonsense")]
    fn secrets_are_not_shown(#[case] url: &str, #[case] expected: &str) {
        assert_eq!(redacted(url), expected);
    }

    #[rstest]
    #[case("no URL at all: a@b", "no URL at all: a@b")]
    #[case(
        "invalid type: string \"https://secret@a.example.com/x\", expected a sequence",
        "invalid type: string \"https://***@a.example.com/x\", expected a sequence"
    )]
    #[case("for url (http://u:secret@h/x?secret)", "for url (http://***@h/x?***")]
    fn urls_in_a_text_are_masked(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(redacted_text(text), expected);
    }

    proptest::proptest! {
        #[test]
        fn no_place_for_a_secret_shows_it(
            user in "[a-z/?#@:]{0,6}",
            host in "(a\\.example\\.com|:99999|\\[|)",
            path in "[a-z/]{0,6}",
        ) {
            // SECRET is in the place of a password or a query.
            for url in [
                format!("https://{user}SECRET@{host}/{path}"),
                format!("https://{host}/{path}?SECRET"),
                format!("https://{host}/{path}?a=b&{user}=SECRET"),
            ] {
                // Userinfo ends at the first of these: every program parses the rest as a path.
                if user.contains(['/', '?', '#']) && url::Url::parse(&url).is_ok() {
                    continue;
                }
                let printed = redacted(&url);
                proptest::prop_assert!(!printed.contains("SECRET"), "{url}: {printed}");
            }
        }
    }
}
