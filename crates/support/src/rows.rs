//! Rows of the table, as the file has them.

use std::fmt;

use serde::{Deserialize, Serialize};

use longshore_core::day::Day;
use longshore_core::driver_version::DriverVersion;
use longshore_core::flavour::Flavour;
use longshore_core::pci_id::PciId;
use longshore_core::value::BadValue;

/// The file as a whole.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Document {
    /// Number of the format, checked before the rest: 1.
    #[serde(rename = "format")]
    pub(crate) _format: i64,
    /// Day of its issue.
    pub(crate) issued: Day,
    /// True if its rows are added to the built-in table, and do not replace it.
    #[serde(default)]
    pub(crate) extends: bool,
    /// First branch for which NVIDIA recommends the open modules; None leaves the built-in one.
    pub(crate) open_recommended_branch: Option<u64>,
    #[serde(default, rename = "generation")]
    pub(crate) generations: Vec<Generation>,
    #[serde(default, rename = "gpu")]
    pub(crate) gpus: Vec<GpuRow>,
    #[serde(default, rename = "branch")]
    pub(crate) branches: Vec<Branch>,
    #[serde(default, rename = "bulletin")]
    pub(crate) bulletins: Vec<Bulletin>,
    #[serde(default, rename = "floor")]
    pub(crate) floors: Vec<Floor>,
    #[serde(default, rename = "exclusion")]
    pub(crate) exclusions: Vec<Exclusion>,
}

/// Source of a row, as two keys of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provenance<'a> {
    /// Thread, page or release that says so.
    pub source: &'a str,
    /// Day on which that was read.
    pub checked: Day,
}

impl fmt::Display for Provenance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source: {}, read on {}", self.source, self.checked)
    }
}

/// Gives rows their source.
macro_rules! with_source {
    ($($row:ty),+) => {$(
        impl $row {
            /// Returns the source of the row.
            pub fn provenance(&self) -> Provenance<'_> {
                Provenance { source: &self.source, checked: self.checked }
            }
        }
    )+};
}

with_source!(Generation, Branch, Bulletin, Floor, Exclusion);

/// Generation of GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Generation {
    /// Name in the table and in settings, for example `grace-hopper`.
    pub name: String,
    /// Name for people, for example `Grace Hopper`.
    pub title: String,
    /// First branch that supports it; None where an older one than any is available, or where none is known.
    pub first_branch: Option<u64>,
    /// Last branch that supports it; None where its support has not ended.
    pub last_branch: Option<u64>,
    /// Flavours of modules that support it.
    pub flavours: Vec<Flavour>,
    /// True if longshore installs no branch that supports it.
    #[serde(default)]
    pub too_old: bool,
    pub(crate) source: String,
    pub(crate) checked: Day,
}

impl Generation {
    /// True if modules of the flavour support it.
    pub fn takes(&self, flavour: Flavour) -> bool {
        self.flavours.contains(&flavour)
    }

    /// True if the branch supports it.
    pub fn is_supported_by(&self, branch: u64) -> bool {
        self.first_branch.is_none_or(|first| branch >= first)
            && self.last_branch.is_none_or(|last| branch <= last)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title)
    }
}

/// GPU of a file other than the built-in table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct GpuRow {
    /// PCI device id: four hexadecimal digits.
    pub(crate) id: String,
    pub(crate) generation: String,
    /// First driver whose list has it.
    pub(crate) first: Option<String>,
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) checked: Day,
}

/// Kind of a branch: the support that NVIDIA gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BranchKind {
    /// Long-term support branch: three years.
    LongSupport,
    /// Production branch: one year.
    Production,
    /// New-feature branch: until the next branch comes.
    NewFeature,
}

impl fmt::Display for BranchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LongSupport => "long-support branch",
            Self::Production => "production branch",
            Self::NewFeature => "new-feature branch",
        })
    }
}

/// Branch of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Branch {
    /// Number, for example 580.
    pub number: u64,
    /// Kind of its support.
    pub kind: BranchKind,
    /// Day of its first release.
    pub first_day: Day,
    /// Last day of its support.
    pub last_day: Day,
    /// Remark about the row.
    pub note: Option<String>,
    pub(crate) source: String,
    pub(crate) checked: Day,
}

/// CVSS base score in tenths: 88 is 8.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "f64")]
pub struct Severity(u8);

impl TryFrom<f64> for Severity {
    type Error = BadValue;

    fn try_from(score: f64) -> Result<Self, BadValue> {
        if (0.0..=10.0).contains(&score) {
            Ok(Self((score * 10.0).round() as u8))
        } else {
            Err(BadValue::new(&score.to_string(), "a CVSS base score from 0.0 to 10.0"))
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

/// Security bulletin.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Bulletin {
    /// NVIDIA's number of it, for example `5821`.
    pub id: String,
    /// Title.
    pub title: String,
    /// Day of its publication.
    pub day: Day,
    /// CVEs that concern the Linux display driver in any of its branches; one branch may lack some of them.
    pub cves: Vec<String>,
    /// Highest base score among them.
    pub severity: Severity,
    /// First fixed version of each branch that has one.
    pub fixed: Vec<String>,
    /// Newest branch that is affected; newer ones are not.
    pub newest_affected: u64,
    /// Branches that were supported on that day, and got no fix.
    #[serde(default)]
    pub no_fix: Vec<u64>,
    /// Branches, not newer than the newest affected one, that are not affected.
    #[serde(default)]
    pub not_affected: Vec<u64>,
    /// Remark about the row.
    pub note: Option<String>,
    pub(crate) source: String,
    pub(crate) checked: Day,
}

impl Bulletin {
    /// Returns the first fixed version of a branch.
    pub fn fixed_in(&self, branch: u64) -> Option<&str> {
        let of = |version: &&String| DriverVersion::new(version).branch() == Some(branch);
        self.fixed.iter().find(of).map(String::as_str)
    }
}

/// Oldest driver of some GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Floor {
    /// Name of the row.
    pub id: String,
    /// PCI device ids of the GPUs.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Generations of GPUs.
    #[serde(default)]
    pub generations: Vec<String>,
    /// Oldest version.
    pub version: String,
    /// Reason.
    pub why: String,
    pub(crate) source: String,
    pub(crate) checked: Day,
}

/// Consequence of an exclusion that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The driver is refused.
    Refuse,
    /// A warning.
    Warn,
}

/// Versions that do not work under all conditions that the row has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Exclusion {
    /// Name of the row.
    pub id: String,
    /// Oldest version or branch that is excluded; None for all older ones.
    pub from: Option<String>,
    /// First version or branch that is not excluded any more; None for all newer ones.
    pub below: Option<String>,
    /// Versions, in place of a range.
    #[serde(default)]
    pub versions: Vec<String>,
    /// Flavours of the modules; empty for each.
    #[serde(default)]
    pub flavours: Vec<Flavour>,
    /// PCI device ids of GPUs; empty for each.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Generations of GPUs; empty for each.
    #[serde(default)]
    pub generations: Vec<String>,
    /// Network cards; empty for any, and for none.
    #[serde(default)]
    pub nics: Vec<PciId>,
    /// Oldest kernel, `6.19`; None for all older ones.
    pub kernel_from: Option<String>,
    /// First kernel that is not excluded any more; None for all newer ones.
    pub kernel_below: Option<String>,
    /// Clouds: aws, azure, gcp, oracle; empty for any, and for none.
    #[serde(default)]
    pub clouds: Vec<String>,
    /// Consequence.
    pub action: Action,
    /// Reason.
    pub why: String,
    pub(crate) source: String,
    pub(crate) checked: Day,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(8.8, Some("8.8"))]
    #[case(10.0, Some("10.0"))]
    #[case(0.05, Some("0.1"))]
    #[case(10.1, None)]
    #[case(-1.0, None)]
    #[case(f64::NAN, None)]
    fn scores(#[case] score: f64, #[case] text: Option<&str>) {
        assert_eq!(Severity::try_from(score).map(|s| s.to_string()).ok().as_deref(), text);
    }
}
