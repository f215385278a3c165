//! PCI vendor and device ids.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::value::BadValue;

/// PCI vendor and device id, `1d0f:efa2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciId {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
}

/// Parses one of the two: four hexadecimal digits.
pub fn parse_half(text: &str) -> Option<u16> {
    let is_half = text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_half.then(|| u16::from_str_radix(text, 16).ok()).flatten()
}

impl FromStr for PciId {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || BadValue::new(text, "a PCI vendor and device id such as 1d0f:efa2");
        let (vendor, device) = text.split_once(':').ok_or_else(bad)?;
        let number = |half| parse_half(half).ok_or_else(bad);
        Ok(Self { vendor: number(vendor)?, device: number(device)? })
    }
}

crate::from_string!(PciId);

impl From<PciId> for String {
    fn from(id: PciId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("1d0f:efa2", true)]
    #[case("1d0f", false)]
    #[case("1d0f:efa", false)]
    #[case("1d0f:efa2:", false)]
    #[case("+d0f:efa2", false)]
    fn texts(#[case] text: &str, #[case] is_one: bool) {
        let parsed: Result<PciId, BadValue> = text.parse();
        assert_eq!(parsed.map(|id| id.to_string()).ok().as_deref(), is_one.then_some(text));
    }
}
