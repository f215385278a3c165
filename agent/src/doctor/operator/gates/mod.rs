//! The gates, in the order in which the operator asks them.

mod driver_manager;
mod side_containers;
mod startup_probe;
mod toolkit;
mod validator;

use std::io;

use super::inputs::GateInputs;
use super::{AskedBy, Gate, GateOutcome};

/// Answer, or the reason why a file could not be read: that is a failure, as it is in the operator.
type Read = io::Result<GateOutcome>;

/// Definition of a gate.
struct Definition {
    asked_by: AskedBy,
    name: &'static str,
    ask: fn(&GateInputs) -> Read,
}

const fn gate(asked_by: AskedBy, name: &'static str, ask: fn(&GateInputs) -> Read) -> Definition {
    Definition { asked_by, name, ask }
}

/// All gates.
const ALL: [Definition; 20] = [
    gate(AskedBy::DriverManager, "no driver of the host", driver_manager::host_driver),
    gate(AskedBy::DriverManager, "digest of the last pod", driver_manager::digest),
    gate(AskedBy::DriverManager, "unload of the modules", driver_manager::unload),
    gate(AskedBy::DriverManager, "unload of nouveau", driver_manager::nouveau),
    gate(AskedBy::StartupProbe, "nvidia is loaded", startup_probe::refcnt),
    gate(AskedBy::StartupProbe, "daemons are ready", startup_probe::daemons),
    gate(AskedBy::StartupProbe, "nvidia-smi in the image", startup_probe::nvidia_smi),
    gate(AskedBy::Validator, "no driver of the host", validator::host_driver),
    gate(AskedBy::Validator, "startup probe has passed", validator::container_ready),
    gate(AskedBy::Validator, "libnvidia-ml.so.1", validator::library),
    gate(AskedBy::Validator, "nvidia-smi", validator::nvidia_smi),
    gate(AskedBy::Validator, "features of the pod", validator::features),
    gate(AskedBy::Validator, "majors of the driver", validator::majors),
    gate(AskedBy::Validator, "GPUs in the device root", validator::gpus),
    gate(AskedBy::Validator, "links in /dev/char", validator::dev_char),
    gate(AskedBy::Toolkit, "driver library with its version", toolkit::library),
    gate(AskedBy::Toolkit, "other libraries of the same version", toolkit::versions),
    gate(AskedBy::SideContainers, "sources for GDS and GDRCopy", side_containers::sources),
    gate(AskedBy::SideContainers, "nvidia_peermem loads", side_containers::peermem),
    gate(AskedBy::SideContainers, "nvidia_peermem stays", side_containers::peermem_stays),
];

/// Answers every gate.
pub(super) fn answers(seen: &GateInputs) -> Vec<Gate> {
    ALL.iter().map(|gate| gate.answer(seen)).collect()
}

impl Definition {
    fn answer(&self, seen: &GateInputs) -> Gate {
        let unread = |e: io::Error| {
            fails(format!("not readable: {e}"), "make the files below /run/nvidia readable")
        };
        let answer = (self.ask)(seen).unwrap_or_else(unread);
        Gate { asked_by: self.asked_by, name: self.name, answer }
    }
}

fn passes(fact: impl Into<String>) -> GateOutcome {
    GateOutcome::Passes { fact: fact.into() }
}

fn not_asked(why: impl Into<String>) -> GateOutcome {
    GateOutcome::NotAsked { fact: why.into() }
}

/// A failure that an installed driver does not cure.
fn fails(fact: impl Into<String>, remedy: impl Into<String>) -> GateOutcome {
    GateOutcome::Fails { fact: fact.into(), remedy: remedy.into(), until_ready: false }
}

/// A failure that ends once a driver is Ready.
fn fails_until_ready(fact: impl Into<String>, remedy: impl Into<String>) -> GateOutcome {
    GateOutcome::Fails { fact: fact.into(), remedy: remedy.into(), until_ready: true }
}

const HIDDEN: &str = "the host's own files are not accessible";
const NOT_LOADED: &str = "no driver is loaded";
const INSTALL: &str = "`longshore run` installs a driver";
const EXPOSE: &str = "`longshore run` exposes the driver that it installs";

/// Driver root of the pod, or the answer where there is none.
macro_rules! driver_root {
    ($seen:expr) => {
        match &$seen.driver_root {
            Ok(root) => root,
            Err(why) => {
                let fact = format!("{} {why}", $seen.driver_root_path.display());
                return Ok($crate::doctor::operator::gates::fails_until_ready(
                    fact,
                    $crate::doctor::operator::gates::EXPOSE,
                ));
            }
        }
    };
}
use driver_root;
