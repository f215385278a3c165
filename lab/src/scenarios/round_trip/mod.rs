//! Start, Ready, TERM (script.sh): the driver, its answers, and the containers that get the GPUs by CDI.

mod cdi;
mod confinement;
mod drm;
mod reload;
mod roots;
mod selinux;

use crate::cell::Cell;
use crate::judge::answers;
use crate::judge::checks::{self, Expected};
use crate::judge::records::Records;
use crate::scenarios::{RoundTrip, Scenario};

impl Scenario for RoundTrip {
    fn wrong_in(&self, cell: &Cell, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = checks::ready(expected, records, "ready");
        if records.phases.iter().any(|phase| phase == "ready") {
            wrong.extend(answers::wrong(cell, expected, records));
            wrong.extend(cdi::wrong(cell, records));
            wrong.extend(checks::store_of_host(records));
        }
        wrong.extend(confinement::wrong(cell, records));
        wrong.extend(drm::wrong(cell, records));
        wrong.extend(cell.selinux.then(|| selinux::wrong(records)).into_iter().flatten());
        wrong
    }
}
