//! Probes: `longshore status --ready` and `--alive`, run as a command in the agent's container; those of a builder
//! likewise.
//!
//! They believe no port: any user of the host can listen on one before the agent does.

use std::time::Duration;

use crate::config::SOCKET;
use crate::endpoint::client::{self, Unanswered};
use crate::journal;
use longshore_core::paths::Paths;

/// Time limit for the agent's answer: it gives its own task five seconds.
const LIMIT: Duration = Duration::from_secs(8);

/// The process that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// An agent.
    Agent,
    /// A builder.
    Builder,
}

impl Asked {
    /// Returns the article and the name in messages.
    fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Agent => ("an", "agent"),
            Self::Builder => ("a", "builder"),
        }
    }
}

/// Question of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Readiness: the driver is ready for use.
    Ready,
    /// Liveness: the agent runs and is not stuck.
    Alive,
}

/// Queries the agent, or the builder, that holds the lock of the state directory, over its own socket. Returns the answer and the reason.
///
/// One that has none yet, or is of a version that had none, is alive by its lock; it is not ready.
pub fn probe(paths: &Paths, asked: Asked, question: Question) -> (bool, String) {
    let (article, name) = asked.name();
    match journal::holder(&paths.state) {
        Ok(Some(_)) => {}
        Ok(None) => return (false, format!("no {name} runs")),
        Err(why) => return (false, why),
    }
    let path = match question {
        Question::Ready => "/readyz",
        Question::Alive => "/healthz",
    };
    match client::ask(&paths.state, path, LIMIT) {
        Ok(answer) => (answer.status == 200, answer.body.trim_end().to_owned()),
        Err(why @ Unanswered::NotServed) => {
            (question == Question::Alive, format!("{article} {name} runs, and {why}"))
        }
        Err(Unanswered::Failed(error)) => {
            let socket = paths.state.join(SOCKET);
            (false, format!("the {name} does not answer on {}: {error}", socket.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::journal::phase::Phase;
    use longshore_core::disk::Disk;

    #[test]
    fn without_an_agent_nothing_lives_and_nothing_is_ready() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = Paths::below(dir.path());
        assert!(
            !probe(&paths, Asked::Agent, Question::Alive).0
                && !probe(&paths, Asked::Agent, Question::Ready).0
        );
        // The journal of one that has ended.
        drop(Journal::open(&paths, Disk::default()).expect("journal"));
        assert_eq!(
            probe(&paths, Asked::Agent, Question::Ready),
            (false, "no agent runs".to_owned())
        );
    }

    /// Also where its journal has the phase in which an earlier one died.
    #[test]
    fn an_agent_without_a_socket_is_alive_by_its_lock_and_not_ready() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = Paths::below(dir.path());
        let mut journal = Journal::open(&paths, Disk::default()).expect("journal");
        journal.begin(Phase::Probing).expect("begins");
        for phase in [Phase::Planning, Phase::Installing, Phase::Ready] {
            journal.enter(phase).expect("enters");
            let (ready, why) = probe(&paths, Asked::Agent, Question::Ready);
            assert!(!ready && why.contains("has no socket"), "{why}");
            assert!(probe(&paths, Asked::Agent, Question::Alive).0);
        }
    }
}
