//! Versions of runtimes, as their programs print them.

/// A runtime's version; suffixes of distributions are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{major}.{minor}.{patch}")]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number; 0 where there is none.
    pub patch: u32,
}

impl Version {
    /// Returns the version with these numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Finds the first version in the output of `PROGRAM --version`.
    pub fn find(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(Self::of_word)
    }

    fn of_word(word: &str) -> Option<Self> {
        let word = word.strip_prefix('v').unwrap_or(word);
        let mut parts = word.splitn(3, '.');
        let major = parts.next()?.parse().ok()?;
        let minor = leading_number(parts.next()?)?;
        let patch = parts.next().and_then(leading_number).unwrap_or(0);
        Some(Self { major, minor, patch })
    }
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("Docker version 20.10.24+dfsg1, build 297e128", Some((20, 10, 24)))]
    #[case("Docker version 26.1.5+dfsg1, build a72d7cd", Some((26, 1, 5)))]
    #[case("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6+b4", Some((1, 7, 24)))]
    #[case("containerd github.com/containerd/containerd/v2 v2.1.9 c1b2", Some((2, 1, 9)))]
    #[case("podman version 5.4", Some((5, 4, 0)))]
    #[case("crio version 1.30.1-dev\nVersion: 2.0.0", Some((1, 30, 1)))]
    #[case("4294967296.1.1", None)]
    #[case("exec format error", None)]
    #[case("", None)]
    fn versions_are_found(#[case] text: &str, #[case] wanted: Option<(u32, u32, u32)>) {
        let wanted = wanted.map(|(major, minor, patch)| Version::new(major, minor, patch));
        assert_eq!(Version::find(text), wanted);
    }
}
