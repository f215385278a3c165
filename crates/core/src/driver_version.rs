//! Versions of NVIDIA's driver: order, branch, validity.

use std::cmp::Ordering;

/// First branch with open kernel modules, and with firmware for the GPU System Processor.
pub const FIRST_OPEN_BRANCH: u64 = 515;

/// Longest version that is accepted, in bytes; NVIDIA's have less than a dozen.
const LONGEST: usize = 32;

/// Version or branch of a driver, for example `535.261.03`, `535.261` or `535`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverVersion<'a>(&'a str);

impl<'a> DriverVersion<'a> {
    /// A version from a trusted place; see [`parse`](Self::parse) for others.
    pub fn new(text: &'a str) -> Self {
        Self(text)
    }

    /// Reads a version: two numbers or more with dots between them, and so safe in paths.
    pub fn parse(text: &'a str) -> Option<Self> {
        let is_number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
        let is_one = text.contains('.') && text.len() <= LONGEST && text.split('.').all(is_number);
        is_one.then_some(Self(text))
    }

    /// Branch: the first number.
    pub fn branch(self) -> Option<u64> {
        self.0.split('.').next()?.parse().ok()
    }

    /// True if it is `selected` or within that branch: 535.261.03 is within 535 and 535.261.
    pub fn is_within(self, selected: &str) -> bool {
        self.0.strip_prefix(selected).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// True if it has three numbers or more, and so is certainly a version: of two numbers 470.82 is
    /// one, and 535.261 a branch.
    pub fn is_complete(self) -> bool {
        self.0.split('.').count() >= 3
    }

    /// True if its numbers are those of `minimum`, a version or branch, or greater: 535.261.03 is at least 535.261.3.
    pub fn is_at_least(self, minimum: Self) -> bool {
        self.numbers().cmp(minimum.numbers()).is_ge()
    }

    fn numbers(self) -> impl Iterator<Item = u64> + 'a {
        self.0.split('.').map(|n| n.parse().unwrap_or(0))
    }
}

/// Number by number; of equal numbers (`3` and `03`) by text.
impl Ord for DriverVersion<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers().cmp(other.numbers()).then_with(|| self.0.cmp(other.0))
    }
}

impl PartialOrd for DriverVersion<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("535.261.03", "535", true)]
    #[case("535.261.03", "535.261", true)]
    #[case("535.261.03", "535.261.03", true)]
    #[case("535.261.03", "53", false)]
    #[case("535.261.03", "535.26", false)]
    #[case("535", "535.261.03", false)]
    fn within(#[case] version: &str, #[case] selected: &str, #[case] wanted: bool) {
        assert_eq!(DriverVersion::new(version).is_within(selected), wanted);
    }

    #[rstest]
    #[case("535.261.03", "550.163.01", Ordering::Less)]
    #[case("535.99", "535.261.03", Ordering::Less)]
    #[case("535.261.03", "535.261.3", Ordering::Less)]
    #[case("535.261", "535.261", Ordering::Equal)]
    fn order(#[case] a: &str, #[case] b: &str, #[case] wanted: Ordering) {
        assert_eq!(DriverVersion::new(a).cmp(&DriverVersion::new(b)), wanted);
    }

    #[rstest]
    #[case("535.261.03", "535.261.3", true)]
    #[case("535.261.3", "535.261.03", true)]
    #[case("535.261.03", "535", true)]
    #[case("550.90.07", "535.261.03", true)]
    #[case("535.261.03", "535.261.04", false)]
    #[case("535.99", "535.261", false)]
    #[case("535.261.03", "550", false)]
    fn minima(#[case] version: &str, #[case] minimum: &str, #[case] wanted: bool) {
        let minimum = DriverVersion::new(minimum);
        assert_eq!(DriverVersion::new(version).is_at_least(minimum), wanted);
    }

    #[rstest]
    #[case("535.261.03", true, Some(535))]
    #[case("470.82", true, Some(470))]
    #[case("535", false, Some(535))]
    #[case("../535.1", false, None)]
    #[case("535.", false, Some(535))]
    #[case("535.x", false, Some(535))]
    #[case("", false, None)]
    #[case("newest", false, None)]
    #[case("11111111111111111111111111111111.1", false, None)]
    fn what_is_a_version(#[case] text: &str, #[case] is_one: bool, #[case] branch: Option<u64>) {
        assert_eq!(DriverVersion::parse(text).is_some(), is_one);
        assert_eq!(DriverVersion::new(text).branch(), branch);
    }
}
