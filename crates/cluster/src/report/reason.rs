//! Reasons of conditions and events.

use std::fmt;

/// Reason of a condition or event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The driver is installed, verified and exposed.
    DriverReady,
    /// The driver is being acquired, installed or replaced.
    DriverChanging,
    /// A change or removal waits for the driver's users.
    DriverInUse,
    /// The agent failed, or the driver is not whole.
    DriverFailed,
    /// The driver was uninstalled.
    DriverRemoved,
    /// The node has no GPU, and the agent waits for one.
    NoGpu,
    /// The node was cordoned.
    Cordoned,
    /// A pod was evicted.
    Evicted,
    /// A pod could not be evicted.
    EvictionBlocked,
    /// The node was uncordoned.
    Uncordoned,
    /// A pod holds a driver that is to be changed.
    HoldsDriver,
    /// The modules for the kernel of the next boot could not be prepared.
    NextKernelUnprepared,
}

impl Reason {
    /// Returns the reason as conditions and events spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DriverReady => "DriverReady",
            Self::DriverChanging => "DriverChanging",
            Self::DriverInUse => "DriverInUse",
            Self::DriverFailed => "DriverFailed",
            Self::DriverRemoved => "DriverRemoved",
            Self::NoGpu => "NoGpu",
            Self::Cordoned => "Cordoned",
            Self::Evicted => "Evicted",
            Self::EvictionBlocked => "EvictionBlocked",
            Self::Uncordoned => "Uncordoned",
            Self::HoldsDriver => "HoldsDriver",
            Self::NextKernelUnprepared => "NextKernelUnprepared",
        }
    }

    /// Reasons of the node's condition; the others are those of events alone.
    const OF_CONDITION: [Self; 6] = [
        Self::DriverReady,
        Self::DriverChanging,
        Self::DriverInUse,
        Self::DriverFailed,
        Self::DriverRemoved,
        Self::NoGpu,
    ];

    /// True for the reason of a condition that an agent can have written.
    pub(crate) fn is_of_condition(text: &str) -> bool {
        Self::OF_CONDITION.iter().any(|reason| reason.as_str() == text)
    }

    /// True where an event of this reason needs a person's attention.
    pub fn is_warning(self) -> bool {
        matches!(
            self,
            Self::DriverInUse
                | Self::DriverFailed
                | Self::EvictionBlocked
                | Self::HoldsDriver
                | Self::NextKernelUnprepared
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
