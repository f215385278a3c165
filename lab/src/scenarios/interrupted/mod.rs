//! TERM while the agent installs (script.sh).

use crate::cell::Cell;
use crate::judge::checks::{self, Expected};
use crate::judge::records::Records;
use crate::scenarios::scenario::Scenario;

#[derive(Debug)]
pub(super) struct Interrupted;

impl Scenario for Interrupted {
    fn name(&self) -> &'static str {
        "interrupted"
    }

    fn script(&self) -> Option<&'static str> {
        Some(include_str!("script.sh"))
    }

    fn wrong(&self, _: &Cell, _: &Expected, records: &Records) -> Vec<String> {
        checks::interrupted(records)
    }
}
