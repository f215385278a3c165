//! Row format of the table of finding codes: area, severity, exit code and texts.

use serde::Serialize;

use super::Severity;
use crate::failure::FailureKind;
use crate::source_id::SourceId;

/// Area of a code; findings are grouped by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// Machine, architecture and the devices on its bus.
    Devices,
    /// Version, configuration and abilities of the kernel.
    Kernel,
    /// Privileges of this process.
    Privileges,
    /// Module signatures that the kernel requires.
    Signatures,
    /// Other drivers, and other installers, of the same devices.
    OtherDrivers,
    /// Mounts, directories and their free space.
    Places,
    /// Sources of driver, modules and headers.
    Sources,
    /// Settings without effect.
    Configuration,
    /// The store, the record, and earlier agents.
    Agent,
}

impl Area {
    /// All areas, in display order.
    pub const ALL: [Area; 9] = [
        Area::Devices,
        Area::Kernel,
        Area::Privileges,
        Area::Signatures,
        Area::OtherDrivers,
        Area::Places,
        Area::Sources,
        Area::Configuration,
        Area::Agent,
    ];

    /// Returns the heading over the area's findings.
    pub fn title(self) -> &'static str {
        match self {
            Area::Devices => "Devices",
            Area::Kernel => "Kernel",
            Area::Privileges => "Privileges",
            Area::Signatures => "Signatures",
            Area::OtherDrivers => "Other drivers",
            Area::Places => "Places",
            Area::Sources => "Sources",
            Area::Configuration => "Configuration",
            Area::Agent => "Agent",
        }
    }
}

/// Severities that findings of a code can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severities {
    /// Refusal only.
    Refuses,
    /// Refusal, or a warning where the plan may still succeed.
    RefusesOrWarns,
    /// Refusal, or a note where the agent waits.
    RefusesOrNotes,
    /// Warning only.
    Warns,
    /// Warning, or a note where nothing is lost by it.
    WarnsOrNotes,
    /// Note only.
    Notes,
}

impl Severities {
    /// True if a finding can have this severity.
    pub fn has(self, severity: Severity) -> bool {
        match severity {
            Severity::Refusal => {
                matches!(self, Self::Refuses | Self::RefusesOrWarns | Self::RefusesOrNotes)
            }
            Severity::Warning => {
                matches!(self, Self::Warns | Self::RefusesOrWarns | Self::WarnsOrNotes)
            }
            Severity::Note => {
                matches!(self, Self::Notes | Self::WarnsOrNotes | Self::RefusesOrNotes)
            }
        }
    }

    /// Returns the text for the page about all codes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refuses => "refusal",
            Self::RefusesOrWarns => "refusal or warning",
            Self::RefusesOrNotes => "refusal or note",
            Self::WarnsOrNotes => "warning or note",
            Self::Warns => "warning",
            Self::Notes => "note",
        }
    }
}

/// Row of the table of finding codes.
#[derive(Debug, Clone, Copy)]
pub struct FindingCodeEntry {
    /// Name, for example `no-device`; its meaning never changes.
    pub name: &'static str,
    /// Area of the code.
    pub area: Area,
    /// Severities of its findings.
    pub severities: Severities,
    /// Exit code of a command that it refuses.
    pub kind: FailureKind,
    /// Meaning of the code.
    pub means: &'static str,
    /// Reason why it matters.
    pub matters: &'static str,
    /// Default remedy, where the finding itself has none.
    pub remedy: &'static str,
    /// Relations to the sources of a driver.
    pub about: &'static [About],
}

/// Relation of a code to the sources of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// No source has the modules, for whichever kernel; other codes are about the host that would load them.
    Modules,
    /// A set of a registry would prevent it.
    Set,
    /// A set that a registry gets later would mend it.
    LaterSet,
    /// Known only after a query to a source.
    Query,
    /// The archives did not answer, or something is unknown for it.
    Archives,
    /// The failure of this kind of source is the cause, and has more detail.
    FailureOf(SourceId),
}

impl FindingCodeEntry {
    /// True if the code has this relation to the sources.
    pub fn is_about(&self, about: About) -> bool {
        self.about.contains(&about)
    }

    /// Returns the kind of source whose failure is the cause.
    pub fn failure_of(&self) -> Option<SourceId> {
        self.about.iter().find_map(|about| match about {
            About::FailureOf(source) => Some(*source),
            _ => None,
        })
    }
}
