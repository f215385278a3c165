//! Probes: `longshore status --ready` and `--alive`, run as a command in the agent's container.

use std::time::Duration;

use crate::endpoint::client;
use crate::journal;
use crate::journal::phase::Phase;
use longshore_core::paths::Paths;

/// Time limit for the agent's answer: it gives its own task five seconds.
const LIMIT: Duration = Duration::from_secs(8);

/// Question of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Readiness: the driver is ready for use.
    Ready,
    /// Liveness: the agent runs and is not stuck.
    Alive,
}

/// Queries the agent that holds the lock; if it has no listener, its journal has to do. Returns the
/// answer and the reason.
pub fn probe(paths: &Paths, question: Question) -> (bool, String) {
    match journal::holder(&paths.state) {
        Ok(Some(_)) => {}
        Ok(None) => return (false, "no agent runs".to_owned()),
        Err(why) => return (false, why),
    }
    let path = match question {
        Question::Ready => "/readyz",
        Question::Alive => "/healthz",
    };
    match client::find(&paths.state) {
        Some(address) => match client::ask(&address, path, LIMIT) {
            Ok(answer) => (answer.status == 200, answer.body.trim_end().to_owned()),
            Err(error) => {
                (false, format!("the agent does not answer on {}: {error}", address.listen))
            }
        },
        None => written_down(paths, question),
    }
}

fn written_down(paths: &Paths, question: Question) -> (bool, String) {
    let phase = match journal::read_state(paths) {
        Ok(state) => state.map(|state| state.phase),
        Err(failure) => return (false, failure.one_line()),
    };
    let phase = phase.map_or_else(|| "none".to_owned(), |phase| phase.to_string());
    let says = format!("an agent runs without a listener; its journal has phase {phase}");
    (question == Question::Alive || phase == Phase::Ready.to_string(), says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use longshore_core::disk::Disk;

    #[test]
    fn without_an_agent_nothing_lives_and_nothing_is_ready() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = Paths::below(dir.path());
        assert!(!probe(&paths, Question::Alive).0 && !probe(&paths, Question::Ready).0);
        // The journal of one that has ended.
        drop(Journal::open(&paths, Disk::default()).expect("journal"));
        assert_eq!(probe(&paths, Question::Ready), (false, "no agent runs".to_owned()));
    }

    #[test]
    fn an_agent_that_serves_nowhere_is_known_by_its_journal() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = Paths::below(dir.path());
        let mut journal = Journal::open(&paths, Disk::default()).expect("journal");
        for phase in [Phase::Planning, Phase::Installing, Phase::Ready] {
            if phase == Phase::Planning {
                journal.begin(Phase::Probing).expect("begins");
            }
            let (ready, why) = probe(&paths, Question::Ready);
            assert!(!ready, "{why}");
            assert!(probe(&paths, Question::Alive).0);
            journal.enter(phase).expect("enters");
        }
        let (ready, why) = probe(&paths, Question::Ready);
        assert!(ready && why.ends_with("phase ready"), "{why}");
    }
}
