//! Names of kinds and devices (pkg/parser/parser.go).

use super::spec::Spec;

/// Splits `vendor/class` at its first slash; None where one of the two is empty.
pub(crate) fn vendor_and_class(kind: &str) -> Option<(&str, &str)> {
    let (vendor, class) = kind.split_once('/')?;
    (!vendor.is_empty() && !class.is_empty()).then_some((vendor, class))
}

/// True for the name of a vendor or class: a letter, then letters, digits, `_`, `-` and `.`, and a
/// letter or digit at its end.
pub(crate) fn is_vendor_or_class(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && is_identifier(name, b"_-.")
}

/// True for the name of a device: the same, but it may begin with a digit, and have `:` inside.
pub(crate) fn is_device(name: &str) -> bool {
    is_identifier(name, b"_-.:")
}

/// True for letters and digits, with `others` between them.
fn is_identifier(name: &str, others: &[u8]) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    match name.as_bytes() {
        [only] => only.is_ascii_alphanumeric(),
        [first, inner @ .., last] => {
            first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && inner.iter().all(|byte| is_inner(*byte))
        }
        [] => false,
    }
}

impl Spec {
    /// Returns the full names of the devices, `vendor/class=name`, by which users ask for them.
    pub fn full_names(&self) -> impl Iterator<Item = String> {
        self.devices.iter().map(|device| format!("{}={}", self.kind, device.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("nvidia.com", true, true)]
    #[case("gpu", true, true)]
    #[case("g", true, true)]
    #[case("a_b-c.d", true, true)]
    #[case("0", false, true)]
    #[case("0:1", false, true)]
    #[case("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", true, true)]
    #[case("a:b", false, true)]
    #[case("", false, false)]
    #[case("-", false, false)]
    #[case("a-", false, false)]
    #[case("-a", false, false)]
    #[case(":a", false, false)]
    #[case("a/b", false, false)]
    #[case("a=b", false, false)]
    #[case("a b", false, false)]
    #[case("grün", false, false)]
    fn names(#[case] name: &str, #[case] vendor: bool, #[case] device: bool) {
        assert_eq!(is_vendor_or_class(name), vendor, "{name}");
        assert_eq!(is_device(name), device, "{name}");
    }

    #[rstest]
    #[case("nvidia.com/gpu", Some(("nvidia.com", "gpu")))]
    #[case("a/b/c", Some(("a", "b/c")))]
    #[case("nvidia.com", None)]
    #[case("/gpu", None)]
    #[case("nvidia.com/", None)]
    fn kinds(#[case] kind: &str, #[case] parts: Option<(&str, &str)>) {
        assert_eq!(vendor_and_class(kind), parts);
    }
}
