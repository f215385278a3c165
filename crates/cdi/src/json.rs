//! Specs as JSON.

use super::spec::Spec;

/// Text that is no JSON, or JSON of another form than a spec's.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NotJson(#[from] serde_json::Error);

impl Spec {
    /// Parses a spec, which is not checked yet ([`Spec::check`]).
    ///
    /// Field names count as they are written here: Go's readers accept other capitals, too.
    ///
    /// # Errors
    /// The line and column that is no JSON, or has an unknown field or a value of another type.
    pub fn from_json(text: &[u8]) -> Result<Self, NotJson> {
        Ok(serde_json::from_slice(text)?)
    }

    /// Formats the spec as indented JSON; the same spec always gives the same text.
    ///
    /// # Errors
    /// None that a spec can cause; the formatter's type has them.
    pub fn to_json(&self) -> Result<String, NotJson> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Every field of the specification, in the order it is written in.
    const WHOLE: &str = include_str!("json/whole.json");

    #[test]
    fn every_field_is_read_and_written_alike() {
        let spec = Spec::from_json(WHOLE.as_bytes()).expect("a spec");
        spec.check().expect("accepted");
        assert_eq!(spec.to_json().expect("written"), WHOLE);
        assert_eq!(spec.full_names().collect::<Vec<_>>(), ["vendor.com/net=0"]);
    }

    #[rstest]
    #[case::empty("", "EOF")]
    #[case::cut_off("{\"cdiVersion\": \"0.5.0\"", "EOF")]
    #[case::two("{}{}", "trailing characters")]
    #[case::list("[1]", "invalid")]
    #[case::yaml("cdiVersion: 0.5.0\n", "expected value at line 1")]
    #[case::unknown_field("{\"cdiversion\": \"0.5.0\"}", "unknown field `cdiversion`")]
    #[case::twice("{\"kind\": \"a/b\", \"kind\": \"a/c\"}", "duplicate field `kind`")]
    #[case::deep(
        "{\"devices\": [{\"containerEdits\": {\"mounts\": [{\"path\": \"/a\"}]}}]}",
        "unknown field `path`"
    )]
    #[case::another_type("{\"devices\": [{\"name\": 0}]}", "invalid type: integer `0`")]
    #[case::negative_owner(
        "{\"containerEdits\": {\"deviceNodes\": [{\"uid\": -1}]}}",
        "invalid value: integer `-1`"
    )]
    fn texts_that_are_refused(#[case] text: &str, #[case] reason: &str) {
        let error = Spec::from_json(text.as_bytes()).expect_err("refused").to_string();
        assert!(error.contains(reason), "{error}");
    }
}
