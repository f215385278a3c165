//! The digest of everything that a build depends on, as longshore states it: packages of the build root and of the
//! driver, headers, options, patches, and the sources of longshore that decide how they are compiled.

use serde::Deserialize;

use crate::results::Digest;

/// longshore's answer to `build --print-inputs`, and its first line of a build's log that has a digest.
#[derive(Debug, Deserialize)]
struct Stated {
    inputs: String,
}

/// Returns the digest in the log of a build, in JSON. A build that ended before it knew its inputs has none.
pub(super) fn of_log(log: &str) -> Option<Digest> {
    log.lines().find_map(|line| of_answer(line).ok())
}

/// Returns the digest in the answer to `build --print-inputs`.
pub(super) fn of_answer(text: &str) -> Result<Digest, String> {
    let stated: Stated = serde_json::from_str(text).map_err(|e| e.to_string())?;
    Digest::try_from(stated.inputs)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const LINE: &str = "{\"level\":\"INFO\",\"inputs\":\"DIGEST\",\"message\":\"building 550.1\"}";

    #[rstest]
    #[case::one("DIGEST", true)]
    #[case::upper_case("ABC", false)]
    #[case::none("", false)]
    fn the_digest_of_a_build_stands_in_its_log(#[case] given: &str, #[case] found: bool) {
        let digest = "a".repeat(64);
        let line = LINE.replace("DIGEST", if given == "DIGEST" { &digest } else { given });
        let log = format!("no JSON\n{{\"message\":\"m\"}}\n{line}\n{}\n", line.replace('a', "b"));
        assert_eq!(of_log(&log).map(|d| d.as_str().to_owned()), found.then_some(digest));
    }

    #[test]
    fn an_answer_of_something_else_is_refused() {
        assert!(of_answer("{}").is_err() && of_answer("").is_err());
    }
}
