//! Phases of an agent run, and the table of their legal transitions.

use serde::{Deserialize, Serialize};

/// Phase of an agent run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum Phase {
    /// Reading the host and the available files.
    Probing,
    /// Deciding.
    Planning,
    /// Acquiring into the store what the plan needs; the host is not changed.
    Acquiring,
    /// Changing the host.
    Installing,
    /// Replacing one driver by another: the old one is uninstalled, then the new one installed, or
    /// the old one again.
    Changing,
    /// The driver is loaded, verified and exposed to the host.
    Ready,
    /// Undoing the changes that the journal has.
    Removing,
    /// Nothing of ours is on the host.
    Removed,
    /// The agent failed; its changes are undone, or the journal has what is left.
    Failed,
    /// The driver is in use, or stays for the next agent: driver, mounts and journal were left as they
    /// are. Not two phases: a record of this agent is to be read by an earlier one, too, which an upgrade
    /// that is taken back starts.
    InUse,
    /// No GPU is here, and the agent waits for one. Only telemetry has it: the record has `removed`, which says the
    /// same of the host and which earlier agents know.
    Idle,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Phase; 11] = [
        Phase::Probing,
        Phase::Planning,
        Phase::Acquiring,
        Phase::Installing,
        Phase::Changing,
        Phase::Ready,
        Phase::Removing,
        Phase::Removed,
        Phase::Failed,
        Phase::InUse,
        Phase::Idle,
    ];

    /// Returns the phases that may follow this one within one agent run.
    ///
    /// A new agent begins at Probing or Removing, in whichever phase the last one ended: see
    /// [`Phase::begins_a_life`].
    pub fn next(self) -> &'static [Phase] {
        use Phase::*;
        match self {
            Probing => &[Planning, Removing, Removed, InUse, Failed],
            Planning => &[Acquiring, Installing, Changing, Removing, Removed, InUse, Failed],
            Acquiring => &[Planning, Removing, Removed, InUse, Failed],
            Installing => &[Ready, Removing, Failed],
            Changing => &[Ready, Removing, InUse, Failed],
            Ready => &[Changing, Removing, InUse],
            Removing => &[Removed, InUse, Failed],
            Removed => &[Probing],
            // Its users may end, or another driver be wanted.
            InUse => &[Planning, Removing],
            Failed => &[Removing],
            Idle => &[Probing, Removed],
        }
    }

    /// True if a new agent may begin with this phase, in whichever phase its predecessor died.
    pub fn begins_a_life(self) -> bool {
        matches!(self, Phase::Probing | Phase::Removing)
    }

    /// Returns `next` if the transition is in the table.
    ///
    /// # Errors
    /// [`IllegalTransition`] if it is not.
    pub fn to(self, next: Phase) -> Result<Phase, IllegalTransition> {
        let is_legal = self.next().contains(&next);
        is_legal.then_some(next).ok_or(IllegalTransition { from: self, to: next })
    }
}

/// A transition that is not in the table: a fault in longshore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("phase {from} may not be followed by {to}")]
pub struct IllegalTransition {
    /// The phase it was in.
    pub from: Phase,
    /// The requested phase.
    pub to: Phase,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_reaches_removed_and_names_itself_as_serde_does() {
        for phase in Phase::ALL {
            let mut reached = vec![phase];
            let mut at = 0;
            while at < reached.len() {
                for next in reached[at].next() {
                    if !reached.contains(next) {
                        reached.push(*next);
                    }
                }
                at += 1;
            }
            assert!(reached.contains(&Phase::Removed), "{phase} never ends in removed");
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.to_string());
        }
    }

    #[test]
    fn an_illegal_transition_is_an_error() {
        assert_eq!(Phase::Probing.to(Phase::Planning), Ok(Phase::Planning));
        let error = Phase::Removed.to(Phase::Ready).unwrap_err();
        assert_eq!(error.to_string(), "phase removed may not be followed by ready");
    }

    #[test]
    fn nothing_changes_the_host_before_planning() {
        for phase in [Phase::Probing, Phase::Acquiring, Phase::Removed] {
            assert!(phase.to(Phase::Installing).is_err(), "{phase}");
            assert!(phase.to(Phase::Changing).is_err(), "{phase}");
        }
    }
}
