//! `supported-gpus/supported-gpus.json`: the GPUs a driver supports, and the flavours that do.
//!
//! ```json
//! {"chips": [{"devid": "0x1EB8", "name": "Tesla T4", "features": ["kernelopen", ...]},
//!            {"devid": "0x102D", "name": "Tesla K80", "legacybranch": "470.xx", ...}]}
//! ```
//!
//! A chip with a `legacybranch` is no longer supported by this driver. `kernelopen` marks chips
//! that the open modules support, `gsp_proprietary_supported` (newer files) those that the
//! proprietary ones support too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use longshore_core::driver_version::DriverVersion;
use longshore_core::flavour::Flavour;

/// The GPUs that one driver lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportedGpus {
    /// PCI device id -> its entry.
    chips: BTreeMap<u16, Chip>,
}

/// A driver's entry for a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chip {
    /// Marketing name.
    pub name: String,
    /// The last branch that supports it, if this driver does not.
    pub last_branch: Option<u64>,
    /// True if the open modules support it; None where the file does not state it for any chip.
    pub open: Option<bool>,
    /// True if the proprietary modules support it; None where the file does not state it for any
    /// chip.
    pub proprietary: Option<bool>,
}

impl Chip {
    /// True if modules of `flavour` support it; None where the driver does not state it.
    pub fn takes(&self, flavour: Flavour) -> Option<bool> {
        match flavour {
            Flavour::Open => self.open,
            Flavour::Proprietary => self.proprietary,
        }
    }
}

#[derive(Deserialize)]
struct File {
    chips: Vec<ChipEntry>,
}

#[derive(Deserialize)]
struct ChipEntry {
    devid: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    features: Vec<String>,
    legacybranch: Option<String>,
}

impl SupportedGpus {
    /// Parses the file. Boards of one chip differ by name alone, so the first one stands for all.
    ///
    /// # Errors
    /// An error where it is not of the form above.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        let file: File = serde_json::from_slice(text)?;
        let says =
            |feature: &str| file.chips.iter().any(|c| c.features.iter().any(|f| f == feature));
        let (says_open, says_both) = (says("kernelopen"), says("gsp_proprietary_supported"));
        let mut chips = BTreeMap::new();
        for entry in &file.chips {
            let Some(device) = device_of(&entry.devid) else { continue };
            let has = |feature: &str| entry.features.iter().any(|f| f == feature);
            let open = has("kernelopen");
            chips.entry(device).or_insert_with(|| Chip {
                name: entry.name.clone(),
                last_branch: entry
                    .legacybranch
                    .as_deref()
                    .and_then(|text| DriverVersion::new(text).branch()),
                open: says_open.then_some(open),
                proprietary: says_both.then_some(!open || has("gsp_proprietary_supported")),
            });
        }
        Ok(Self { chips })
    }

    /// Returns a device's entry; None where the driver does not list it.
    pub fn chip(&self, device: u16) -> Option<&Chip> {
        self.chips.get(&device)
    }
}

fn device_of(text: &str) -> Option<u16> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    u16::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[u8] = br#"{"chips": [
        {"devid": "0x1EB8", "name": "Tesla T4", "features": ["dpycbcr420", "kernelopen"]},
        {"devid": "0x1EB8", "subdevid": "0x1", "name": "another board", "features": []},
        {"devid": "0x1DB4", "name": "Tesla V100", "features": []},
        {"devid": "0x102D", "name": "Tesla K80", "legacybranch": "470.xx", "features": []},
        {"devid": "*", "name": "no device", "features": []}]}"#;

    #[test]
    fn a_chip_says_its_branch_and_its_flavours() {
        let gpus = SupportedGpus::parse(OLD).expect("read");
        let t4 = gpus.chip(0x1eb8).expect("known");
        assert_eq!((t4.name.as_str(), t4.open, t4.proprietary), ("Tesla T4", Some(true), None));
        assert_eq!(gpus.chip(0x1db4).expect("known").takes(Flavour::Open), Some(false));
        assert_eq!(gpus.chip(0x102d).expect("known").last_branch, Some(470));
        assert_eq!(gpus.chip(0x2330), None);
    }

    #[test]
    fn newer_files_tell_what_only_open_modules_drive() {
        let text = br#"{"chips": [
            {"devid": "0x1EB8", "features": ["kernelopen", "gsp_proprietary_supported"]},
            {"devid": "0x1DB4", "features": []},
            {"devid": "0x2901", "features": ["kernelopen"]}]}"#;
        let gpus = SupportedGpus::parse(text).expect("read");
        let takes = |device| gpus.chip(device).expect("known").takes(Flavour::Proprietary);
        assert_eq!(takes(0x1eb8), Some(true));
        assert_eq!(takes(0x1db4), Some(true));
        assert_eq!(takes(0x2901), Some(false));
    }

    #[test]
    fn a_file_that_does_not_speak_of_flavours_decides_none() {
        let gpus = SupportedGpus::parse(br#"{"chips": [{"devid": "0x1EB8"}]}"#).expect("read");
        let chip = gpus.chip(0x1eb8).expect("known");
        assert_eq!((chip.open, chip.proprietary), (None, None));
    }

    #[test]
    fn another_form_is_refused() {
        for text in ["", "[]", r#"{"chips": {}}"#, r#"{"chips": [{"name": "x"}]}"#] {
            SupportedGpus::parse(text.as_bytes()).expect_err(text);
        }
    }
}
