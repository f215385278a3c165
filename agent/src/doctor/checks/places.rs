//! Checks of the paths that a driver is exposed at, and of the space for it.

use std::path::Path;

use super::{CAPTURED, Checked, HIDDEN, Input, passed, skipped};
use crate::cdi;
use crate::config::CdiSpecs;
use longshore_host::facts::{FreeSpace, RootKind};

pub(super) fn driver_root(input: &Input<'_>) -> Checked {
    let path = input.look.config.paths.driver_root.display();
    match (input.unread_places(), &input.look.facts.places.kind) {
        (Some(why), _) => skipped(why),
        (None, RootKind::Absent) => passed(format!("{path} does not exist yet; `run` makes it")),
        (None, _) => passed(format!("{path} is a directory")),
    }
}

pub(super) fn propagation(input: &Input<'_>) -> Checked {
    let look = input.look;
    let here = look.config.paths.host_root == Path::new("/") || look.captured();
    passed(if here { "on the host itself" } else { "mounts propagate to the host" })
}

pub(super) fn selinux(input: &Input<'_>) -> Checked {
    match &input.look.facts.security.selinux {
        None => skipped("the host has no SELinux"),
        Some(selinux) if selinux.enforcing => passed("the policy has each, and is enforced"),
        Some(_) => passed("the policy has each, and is not enforced"),
    }
}

pub(super) fn space(input: &Input<'_>) -> Checked {
    let room =
        |room: &FreeSpace| format!("{} MiB for {}", room.free_bytes >> 20, room.path.display());
    let places = &input.look.facts.places;
    let rooms = [&places.state_room, &places.store_room].into_iter().flatten();
    let rooms: Vec<String> = rooms.map(room).collect();
    if rooms.is_empty() { skipped(CAPTURED) } else { passed(rooms.join(", ")) }
}

pub(super) fn cdi_spec(input: &Input<'_>) -> Checked {
    let look = input.look;
    let rivals = if look.hidden { Vec::new() } else { cdi::rivals(look.host.path()) };
    match look.config.cdi_spec {
        _ if !rivals.is_empty() => Checked::Found(rivals),
        CdiSpecs::Off => skipped("cdi-spec is off"),
        CdiSpecs::Auto if look.hidden => skipped(HIDDEN),
        CdiSpecs::Auto => passed("no other spec has devices of nvidia.com/gpu"),
    }
}
