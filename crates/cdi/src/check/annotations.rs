//! Annotations of a spec or device (internal/validation/validate.go, internal/validation/k8s): keys are
//! qualified names of Kubernetes, and all of them together have a limit.

use std::collections::BTreeMap;

use super::Refusal;

/// Limit of keys and values together, in bytes.
const LARGEST: usize = 256 << 10;
/// Longest name, and longest prefix before its slash.
const LONGEST_NAME: usize = 63;
const LONGEST_PREFIX: usize = 253;

/// Checks annotations as readers do.
pub(crate) fn check(annotations: &BTreeMap<String, String>) -> Result<(), Refusal> {
    // Readers compare the keys in lower case.
    if let Some(key) = annotations.keys().find(|key| !is_qualified(&key.to_lowercase())) {
        return Err(Refusal::AnnotationKey(key.clone()));
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > LARGEST { Err(Refusal::LargeAnnotations(size)) } else { Ok(()) }
}

fn is_qualified(key: &str) -> bool {
    match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= LONGEST_NAME && is_word(name, b"-_.")
}

fn is_subdomain(prefix: &str) -> bool {
    prefix.len() <= LONGEST_PREFIX && prefix.split('.').all(|label| is_word(label, b"-"))
}

/// True for letters and digits, with `others` between them.
fn is_word(text: &str, others: &[u8]) -> bool {
    let (bytes, ends) = (text.as_bytes(), [text.as_bytes().first(), text.as_bytes().last()]);
    ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || others.contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a", true)]
    #[case("A_b-c.d", true)]
    #[case("nvidia.com/Driver.Version", true)]
    #[case("NVIDIA.com/x", true)]
    #[case("0/0", true)]
    #[case("", false)]
    #[case("/", false)]
    #[case("/a", false)]
    #[case("a/", false)]
    #[case("a/b/c", false)]
    #[case("a_b/c", false)]
    #[case("a..b/c", false)]
    #[case(".a/b", false)]
    #[case("-a", false)]
    #[case("a-", false)]
    #[case("a b", false)]
    #[case("grün", false)]
    #[case(&"a".repeat(63), true)]
    #[case(&"a".repeat(64), false)]
    #[case(&format!("{}/a", "a".repeat(253)), true)]
    #[case(&format!("{}/a", "a".repeat(254)), false)]
    fn keys(#[case] key: &str, #[case] accepted: bool) {
        let checked = check(&[(key.to_owned(), String::new())].into());
        let refused = Err(Refusal::AnnotationKey(key.to_owned()));
        assert_eq!(checked, if accepted { Ok(()) } else { refused });
    }

    #[rstest]
    #[case(1, Ok(()))]
    #[case(LARGEST - 2, Ok(()))]
    #[case(LARGEST - 1, Err(Refusal::LargeAnnotations(LARGEST + 1)))]
    fn sizes(#[case] value: usize, #[case] checked: Result<(), Refusal>) {
        let annotations = [("a".into(), "x".repeat(value)), ("b".into(), String::new())].into();
        assert_eq!(check(&annotations), checked);
    }
}
