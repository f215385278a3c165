//! An agent that ends by itself (script.sh): exit code and log are judged as in every scenario.

use crate::cell::Cell;
use crate::judge::checks::Expected;
use crate::judge::records::Records;
use crate::scenarios::scenario::Scenario;

#[derive(Debug)]
pub(super) struct Refused;

impl Scenario for Refused {
    fn name(&self) -> &'static str {
        "refused"
    }

    fn script(&self) -> Option<&'static str> {
        Some(include_str!("script.sh"))
    }

    fn wrong(&self, _: &Cell, _: &Expected, _: &Records) -> Vec<String> {
        Vec::new()
    }
}
