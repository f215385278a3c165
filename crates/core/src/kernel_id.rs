//! Identity of a kernel, as `uname` prints it.

/// Size of `uname -r`, with the zero byte that ends it (struct new_utsname).
const LONGEST_RELEASE: usize = 65;

/// True for a kernel release: as long as uname(2) can hold, and of the characters that distributions put into the
/// names of packages and files.
pub fn is_release(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._+~-".contains(&byte);
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    begins && text.len() < LONGEST_RELEASE && text.bytes().all(is_valid)
}

/// Kernel that modules are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelId<'a> {
    /// `uname -r`.
    pub release: &'a str,
    /// `uname -v`; None where it is not known, so that any build of the release fits.
    pub version: Option<&'a str>,
    /// `uname -m`. A release such as `5.15.0-100-generic` is the same on two architectures.
    pub arch: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("6.1.0-51-cloud-amd64", true)]
    #[case("5.14.0-427.13.1.el9_4.x86_64+rt", true)]
    #[case("6.17~rc1-amd64", true)]
    #[case("", false)]
    #[case("-6.1", false)]
    #[case(".", false)]
    #[case("..", false)]
    #[case("6.1/..", false)]
    #[case("6.1 0", false)]
    #[case("6.1\n", false)]
    fn releases(#[case] text: &str, #[case] wanted: bool) {
        assert_eq!(is_release(text), wanted);
    }

    #[test]
    fn a_release_is_as_long_as_uname_can_hold() {
        assert!(is_release(&"6".repeat(64)));
        assert!(!is_release(&"6".repeat(65)));
    }
}
