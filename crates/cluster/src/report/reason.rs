//! Reasons of conditions and events.

/// Reason of a condition or event. A variant's name is its text in the API, which other programs read: it stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
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
        Self::OF_CONDITION.iter().any(|reason| reason.to_string() == text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_in_the_api_stay_as_they_are() {
        for (reason, text) in [
            (Reason::DriverReady, "DriverReady"),
            (Reason::DriverChanging, "DriverChanging"),
            (Reason::DriverInUse, "DriverInUse"),
            (Reason::DriverFailed, "DriverFailed"),
            (Reason::DriverRemoved, "DriverRemoved"),
            (Reason::NoGpu, "NoGpu"),
            (Reason::Cordoned, "Cordoned"),
            (Reason::Evicted, "Evicted"),
            (Reason::EvictionBlocked, "EvictionBlocked"),
            (Reason::Uncordoned, "Uncordoned"),
            (Reason::HoldsDriver, "HoldsDriver"),
            (Reason::NextKernelUnprepared, "NextKernelUnprepared"),
        ] {
            assert_eq!(reason.to_string(), text);
        }
    }
}
