//! SIGKILL at many points, one agent run after the other (script.sh).

use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::records::Records;
use crate::judge::trials;
use crate::scenarios::{Killed, Scenario};

impl Scenario for Killed {
    /// Checks that every kill was recovered from.
    fn wrong(&self, _: &Expected, records: &Records) -> Vec<String> {
        let trials = match trials::read(records) {
            Ok(trials) => trials,
            Err(missing) => return vec![missing],
        };
        let mut wrong = end::differences(records, "after-0");
        if trials.len() < trials::LEAST {
            wrong.push(format!("only {} kills, not {}", trials.len(), trials::LEAST));
        }
        wrong.extend(trials::missing(&trials));
        for trial in trials {
            wrong.extend(checks::under(&trial.point, trial.wrong));
        }
        wrong
    }
}
