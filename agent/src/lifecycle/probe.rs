//! `longshore status --ready` and `--alive`: for probes that run a command in the agent's container.

use std::time::Duration;

use crate::endpoint::client;
use crate::journal;
use crate::journal::phase::Phase;
use crate::paths::Paths;

/// How long the agent may take to answer: it gives its own task five seconds.
const LIMIT: Duration = Duration::from_secs(8);

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Whether the driver is ready for use.
    Ready,
    /// Whether the agent lives and is not stuck.
    Alive,
}

/// Asks the agent that holds the lock; where it serves nowhere, what it wrote down has to do. Returns
/// the answer and why.
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
    let says = format!("an agent runs and serves nowhere; its journal says phase {phase}");
    (question == Question::Alive || phase == Phase::Ready.to_string(), says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    #[test]
    fn without_an_agent_nothing_lives_and_nothing_is_ready() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = Paths::below(dir.path());
        assert!(!probe(&paths, Question::Alive).0 && !probe(&paths, Question::Ready).0);
        // The journal of one that has ended.
        drop(Journal::open(&paths).expect("journal"));
        assert_eq!(probe(&paths, Question::Ready), (false, "no agent runs".to_owned()));
    }

    #[test]
    fn an_agent_that_serves_nowhere_is_known_by_its_journal() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = Paths::below(dir.path());
        let mut journal = Journal::open(&paths).expect("journal");
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
