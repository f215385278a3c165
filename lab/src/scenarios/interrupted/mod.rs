//! TERM while the agent installs (script.sh).

use crate::judge::checks::{self, Expected};
use crate::judge::records::Records;
use crate::scenarios::{Interrupted, Scenario};

impl Scenario for Interrupted {
    fn wrong(&self, _: &Expected, records: &Records) -> Vec<String> {
        checks::interrupted(records)
    }
}
