//! Checks of the process' own rights, and of the signatures that the kernel asks for.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;

use super::{CAPTURED, Checked, Input, found_or, passed, skipped};
use crate::doctor::Look;
use crate::plan;
use longshore_core::finding::{Code, Finding};
use longshore_host::facts::Probe;

pub(super) fn capabilities(_: &Input<'_>) -> Checked {
    passed(format!("root, with {}", plan::NEEDED.join(", ")))
}

pub(super) fn user_namespace(input: &Input<'_>) -> Checked {
    match &input.look.facts.initial_user_namespace {
        Probe::Read(_) => passed("the host's"),
        Probe::Unreadable(why) => skipped(why),
    }
}

pub(super) fn device_access(input: &Input<'_>) -> Checked {
    match input.look.captured() {
        true => skipped(CAPTURED),
        false => found_or(denied_device(input.look), || "/dev/kmsg is not denied".to_owned()),
    }
}

/// Opens a device that no container runtime allows by itself: where /dev/kmsg cannot be opened in spite
/// of the capability, the cgroup's device rules deny it.
fn denied_device(look: &Look<'_>) -> Option<Finding> {
    let Probe::Read(have) = &look.facts.capabilities else { return None };
    let may = have.contains("CAP_SYSLOG") || have.contains("CAP_SYS_ADMIN");
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(look.root.display("dev/kmsg"));
    match opened {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && may => {
            let detail = format!("/dev/kmsg cannot be opened ({e}) though capabilities allow it");
            Some(Finding::warning(Code::DeviceAccessDenied, detail))
        }
        _ => None,
    }
}

pub(super) fn signatures(input: &Input<'_>) -> Checked {
    passed(plan::security_line(input.look.facts))
}
