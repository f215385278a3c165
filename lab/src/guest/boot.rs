//! One boot of a guest.

/// One boot of a guest.
pub struct Boot {
    /// Prefix of the names of its phases and logs.
    pub name: String,
    /// Script that the guest runs.
    pub script: &'static str,
    /// True if its power goes off when the driver is Ready.
    pub loses_power: bool,
    /// Point at which the last boot's power went off.
    pub after: &'static str,
    /// Point at which this boot's power goes off.
    pub cut: &'static str,
    /// Number of processors. Scenarios that wait for a point in the agent's run need exactly one
    /// (guest/scripts/events.sh).
    pub processors: u32,
    /// True if its clock counts instructions.
    pub counts: bool,
    /// Number of measured rounds; 0 leaves it to the scenario.
    pub rounds: u32,
}

impl Boot {
    /// Returns the single boot of a cell that boots once.
    pub fn new(script: &'static str) -> Self {
        Self {
            name: String::new(),
            script,
            loses_power: false,
            after: "",
            cut: "",
            processors: 1,
            counts: false,
            rounds: 0,
        }
    }
}
