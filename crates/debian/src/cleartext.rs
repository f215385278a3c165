//! The framing of a cleartext-signed message (RFC 9580, section 7).

const BEGIN: &str = "-----BEGIN PGP SIGNED MESSAGE-----";
const BEGIN_SIGNATURE: &str = "-----BEGIN PGP SIGNATURE-----";
const END_SIGNATURE: &str = "-----END PGP SIGNATURE-----";

/// A message extracted from its frame, unverified.
#[derive(Debug)]
pub(super) struct Cleartext<'a> {
    /// The text: dashes unescaped, trailing blanks removed, lines joined by `\n`.
    pub(super) text: String,
    /// The armored signatures.
    pub(super) signatures: &'a str,
}

impl Cleartext<'_> {
    /// The bytes that were signed: lines joined by CR LF, none after the last.
    pub(super) fn signed_bytes(&self) -> Vec<u8> {
        self.text.replace('\n', "\r\n").into_bytes()
    }
}

/// Extracts a message from its frame. Anything before or after the message is refused: it is not
/// signed, and must not be mistaken for signed text.
///
/// # Errors
/// A text that describes the fault in the frame.
pub(super) fn unframe(message: &str) -> Result<Cleartext<'_>, &'static str> {
    let (first, mut rest) = message.split_once('\n').unwrap_or((message, ""));
    if first.trim_end() != BEGIN {
        return Err("it does not begin with a PGP signed message");
    }
    // Armor headers (Hash: ...) up to an empty line; they are hints only.
    loop {
        let (line, after) = rest.split_once('\n').ok_or("it ends in its headers")?;
        rest = after;
        if line.trim_end().is_empty() {
            break;
        }
        if !line.starts_with("Hash:") {
            return Err("it has an unknown header");
        }
    }
    let mut lines: Vec<&str> = Vec::new();
    loop {
        let (line, after) = rest.split_once('\n').ok_or("it is cut off before its signature")?;
        if line.trim_end() == BEGIN_SIGNATURE {
            break;
        }
        if line.starts_with("-----") {
            return Err("a line of it begins with unescaped dashes");
        }
        lines.push(line.strip_prefix("- ").unwrap_or(line).trim_end_matches([' ', '\t', '\r']));
        rest = after;
    }
    let end = rest.find(END_SIGNATURE).ok_or("its signature is cut off")? + END_SIGNATURE.len();
    if !rest[end..].trim().is_empty() {
        return Err("something follows its signature");
    }
    Ok(Cleartext { text: lines.join("\n"), signatures: &rest[..end] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const SIGNATURE: &str = "-----BEGIN PGP SIGNATURE-----\n\nabcd\n-----END PGP SIGNATURE-----\n";

    #[rstest]
    #[case::plain("A: 1\nB: 2\n", "A: 1\nB: 2")]
    #[case::dashes("- -----BEGIN\n- - x\n", "-----BEGIN\n- x")]
    #[case::blanks("A: 1 \t\r\n\nB\n", "A: 1\n\nB")]
    #[case::a_dash_alone("-a\n", "-a")]
    #[case::empty("", "")]
    fn text_is_unescaped(#[case] body: &str, #[case] expected: &str) {
        let message = format!("{BEGIN}\nHash: SHA256\n\n{body}{SIGNATURE}");
        let cleartext = unframe(&message).expect("unframes");
        assert_eq!(cleartext.text, expected);
        assert_eq!(cleartext.signatures.trim(), SIGNATURE.trim());
    }

    #[rstest]
    #[case::html("<html>".to_owned())]
    #[case::empty(String::new())]
    #[case::leading(format!("A: 1\n{BEGIN}\n\nB\n{SIGNATURE}"))]
    #[case::trailing(format!("{BEGIN}\n\nB\n{SIGNATURE}A: 1\n"))]
    #[case::second_message(format!("{BEGIN}\n\nB\n{SIGNATURE}{BEGIN}\n\nB\n{SIGNATURE}"))]
    #[case::within(format!("{BEGIN}\n\nB\n{BEGIN}\n\nC\n{SIGNATURE}"))]
    #[case::odd_header(format!("{BEGIN}\nOrigin: Debian\n\nB\n{SIGNATURE}"))]
    #[case::cut_headers(format!("{BEGIN}\nHash: SHA256\n"))]
    #[case::cut_text(format!("{BEGIN}\n\nB\n"))]
    #[case::cut_signature(format!("{BEGIN}\n\nB\n-----BEGIN PGP SIGNATURE-----\n\nab"))]
    fn a_broken_frame_is_refused(#[case] message: String) {
        assert!(unframe(&message).is_err(), "{message}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_comes_back(text in "[-A-Za-z: \n]{0,60}") {
            let escape = |line: &str| {
                if line.starts_with('-') { format!("- {line}\n") } else { format!("{line}\n") }
            };
            let body: String = text.split('\n').map(escape).collect();
            let message = format!("{BEGIN}\nHash: SHA256\n\n{body}{SIGNATURE}");
            let trimmed: Vec<&str> = text.split('\n').map(|line| line.trim_end_matches(' ')).collect();
            proptest::prop_assert_eq!(unframe(&message).expect("unframes").text, trimmed.join("\n"));
        }
    }
}
