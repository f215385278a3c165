//! Gates of the startup probe in the driver's container.

use super::{INSTALL, Read, driver_root, fails_until_ready, passes};
use crate::doctor::operator::confined::{ResolvedEntry, shown};
use crate::doctor::operator::inputs::{GateInputs, VALIDATIONS};

/// Path below the driver root that longshore's image has in its PATH.
const TOOL: &str = "usr/bin/nvidia-smi";

pub(super) fn refcnt(seen: &GateInputs) -> Read {
    Ok(match seen.loaded {
        true => passes("/sys/module/nvidia/refcnt exists"),
        false => fails_until_ready("/sys/module/nvidia/refcnt does not exist", INSTALL),
    })
}

pub(super) fn daemons(seen: &GateInputs) -> Read {
    let path = format!("{VALIDATIONS}/.driver-daemons-status");
    Ok(match seen.root.text(&path)? {
        None => passes(format!("/{path} does not exist, so it is not compared")),
        // The shell's `$(cat ...)` drops newlines at the end alone.
        Some(text) if text.trim_end_matches('\n') == "Ready" => {
            passes(format!("/{path} has `Ready`"))
        }
        Some(text) => fails_until_ready(
            format!("/{path} has {}", shown(&text)),
            "wait until the agent is Ready; remove the file where none runs",
        ),
    })
}

pub(super) fn nvidia_smi(seen: &GateInputs) -> Read {
    let root = driver_root!(seen);
    let path = seen.driver_root_path.join(TOOL);
    let path = path.display();
    let version = seen.version.as_deref().unwrap_or("unknown");
    Ok(match root.entry(TOOL)? {
        ResolvedEntry::File { executable: true, empty: false } => passes(format!(
            "{path} exists, for the loaded driver {}; not run here, because it opens the devices",
            shown(version)
        )),
        ResolvedEntry::LeadsOut => {
            fails_until_ready(format!("{path} is a link that leads out"), INSTALL)
        }
        _ => fails_until_ready(format!("{path} is no executable file"), INSTALL),
    })
}
