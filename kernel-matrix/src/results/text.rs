//! Texts in results: bounded, and without control characters.

use std::io::{self, Read};

use longshore_core::digest;
use longshore_core::sanitize::in_line;
use serde::{Deserialize, Serialize};

/// Largest size of a [`Line`] in bytes.
pub(crate) const LINE_BYTES: usize = 2048;

/// One line of text: a name, a reason, or a line of a log.
#[derive(
    Debug,
    Clone,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    derive_more::Display,
)]
#[serde(try_from = "String", into = "String")]
pub struct Line(String);

impl Line {
    /// Returns `text` as one line: tabs as spaces, control characters escaped, cut off at
    /// [`LINE_BYTES`] with its size.
    pub fn new(text: &str) -> Self {
        // Enough of it for a line: a log's line may have a gigabyte.
        let head = beginning(text, LINE_BYTES + 1);
        let spaced = head.replace('\t', "    ");
        let shown = in_line(&spaced);
        if head.len() == text.len() && shown.len() <= LINE_BYTES {
            return Self(shown.into_owned());
        }
        let note = format!("… (cut off, {} bytes)", text.len());
        Self(format!("{}{note}", beginning(&shown, LINE_BYTES - note.len())))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the text is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns several texts in one, with `between` between them.
    pub fn list(lines: &[Self], between: &str) -> String {
        lines.iter().map(Self::as_str).collect::<Vec<_>>().join(between)
    }
}

impl TryFrom<String> for Line {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.len() > LINE_BYTES {
            return Err(format!("a text has {} bytes, {LINE_BYTES} are allowed", text.len()));
        }
        Ok(Self::new(&text))
    }
}

impl From<&str> for Line {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<Line> for String {
    fn from(line: Line) -> Self {
        line.0
    }
}

/// Returns the longest beginning of `text` of at most `bytes` bytes.
fn beginning(text: &str, bytes: usize) -> &str {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    &text[..ends.take_while(|end| *end <= bytes).last().unwrap_or(0)]
}

/// A sha256 in lower-case hex.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// Takes the 32 bytes of a sha256.
    pub fn from_sha256(bytes: &[u8; 32]) -> Self {
        Self(digest::hex(bytes))
    }

    /// Returns the digest of all bytes of `reader`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_all(reader: impl Read) -> io::Result<Self> {
        digest::digest_of(reader).map(Self)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if digest::is_sha256(&text) {
            return Ok(Self(text));
        }
        Err(format!("{} is no sha256 of 64 lower-case hex digits", Line::new(&text)))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

#[cfg(test)]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{Digest, LINE_BYTES, Line};

    impl JsonSchema for Line {
        fn schema_name() -> Cow<'static, str> {
            "Line".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "string", "maxLength": LINE_BYTES })
        }
    }

    impl JsonSchema for Digest {
        fn schema_name() -> Cow<'static, str> {
            "Digest".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("plain", "plain")]
    #[case("a\x1b[2Jb", "a\\u{1b}[2Jb")]
    #[case("a\r\nb", "a\\r\\nb")]
    #[case("\tmake", "    make")]
    #[case("a\u{202e}b", "a\\u{202e}b")]
    #[case("</script>", "</script>")]
    fn a_line_has_no_control_characters(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(Line::new(text).as_str(), shown);
        assert_eq!(Line::new(Line::new(text).as_str()), Line::new(text));
    }

    #[rstest]
    #[case("x".repeat(1_000_000), "(cut off, 1000000 bytes)")]
    #[case("\x1b".repeat(1000), "(cut off, 1000 bytes)")]
    #[case("ü".repeat(2000), "(cut off, 4000 bytes)")]
    fn a_long_line_is_cut_with_its_size(#[case] text: String, #[case] end: &str) {
        let line = Line::new(&text);
        assert!(line.as_str().len() <= LINE_BYTES, "{}", line.as_str().len());
        assert!(line.as_str().ends_with(end), "{line}");
    }

    #[test]
    fn a_text_that_is_too_long_is_refused_when_read() {
        let json = format!("\"{}\"", "x".repeat(LINE_BYTES + 1));
        let error = serde_json::from_str::<Line>(&json).unwrap_err().to_string();
        assert!(error.contains("2049 bytes"), "{error}");
    }
}
