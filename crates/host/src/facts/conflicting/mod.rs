//! Drivers of the kernel's own that are bound to NVIDIA's GPUs, and their users.
//!
//! A module that nobody uses can be unloaded for NVIDIA's. References count open devices of the
//! module (drivers/gpu/drm/drm_file.c and the `owner` of its file operations), but not the console on
//! a frame buffer: the kernel detaches that when the module goes
//! (drivers/gpu/drm/drm_fbdev_generic.c, `drm_fbdev_generic_fb_open`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::facts::process_files::Looker;
use crate::facts::{LoadedModule, PciDevice, holders, known_holders, pci};
use crate::values::DriverUsers;
use longshore_core::deadlines::LOOK;
use longshore_core::root::{Root, if_there};

/// The kernel's own drivers of NVIDIA's GPUs, by module.
pub const MODULES: [&str; 2] = ["nouveau", "nova_core"];

const CONSOLES: &str = "sys/class/vtconsole";
/// Limit of one parameter's value, in bytes: a page of sysfs.
const VALUE: usize = 4096;

/// Returns the module of a PCI driver that is one of [`MODULES`].
pub fn module_of(driver: &str) -> Option<&'static str> {
    match driver {
        "nouveau" => Some("nouveau"),
        // The name differs between kernels.
        "NovaCore" | "nova-core" | "nova_core" => Some("nova_core"),
        _ => None,
    }
}

/// Parameters and users of a loaded module that is bound to GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictingModule {
    /// Modules that hold it.
    pub holders: Vec<String>,
    /// References that no module accounts for.
    pub references: i64,
    /// Consoles on one of its GPUs, for example `vtcon1 (frame buffer device) on fb0`.
    pub consoles: Vec<String>,
    /// Processes with a device of one of its GPUs open or mapped.
    pub users: DriverUsers,
    /// Values of its parameters that sysfs shows, as on insmod's command line.
    pub parameters: String,
}

impl ConflictingModule {
    /// True if no module, process or console uses it.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty()
            && self.references <= 0
            && self.consoles.is_empty()
            && self.users.users.is_empty()
    }
}

impl fmt::Display for ConflictingModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holders, references, consoles, users, .. } = self;
        let mut parts: Vec<String> = holders.iter().map(|name| format!("module {name}")).collect();
        parts.extend(consoles.iter().map(|console| format!("console {console}")));
        parts.extend(users.users.iter().map(|user| match known_holders::program(&user.comm) {
            Some(what) => format!("{user} ({what})"),
            None => user.to_string(),
        }));
        let unnamed = users.users.is_empty() && *references > 0;
        parts.extend(unnamed.then(|| match references {
            1 => "1 reference whose holder is unknown".to_owned(),
            n => format!("{n} references whose holders are unknown"),
        }));
        parts.extend(users.unseen.clone());
        write!(f, "{}", parts.join("; "))
    }
}

/// Reads the [`MODULES`] that are loaded and bound to one of these devices.
///
/// # Errors
/// If the devices' nodes or the consoles cannot be read.
pub(super) fn read(
    root: &Root,
    devices: &[PciDevice],
    loaded: &BTreeMap<String, LoadedModule>,
) -> io::Result<BTreeMap<String, ConflictingModule>> {
    let mut found = BTreeMap::new();
    for name in MODULES {
        let bound: Vec<&PciDevice> =
            devices.iter().filter(|device| is_bound(device, name)).collect();
        if let (Some(module), false) = (loaded.get(name), bound.is_empty()) {
            found.insert(name.to_owned(), read_module(root, name, module, &bound)?);
        }
    }
    Ok(found)
}

/// Reads the consoles that are on a GPU of the loaded module `module` now: references do not count them.
///
/// # Errors
/// If the devices or the consoles cannot be read.
pub fn consoles_of(root: &Path, module: &str) -> io::Result<Vec<String>> {
    let read = || {
        let root = Root::open(root)?;
        let devices = pci::read(&root)?;
        let bound = devices.iter().filter(|device| is_bound(device, module));
        let mut frame_buffers = Vec::new();
        for device in bound {
            frame_buffers.extend(frame_buffers_of(&root, device)?);
        }
        consoles(&root, &frame_buffers)
    };
    // A device, or what is on it, may go away meanwhile.
    Ok(if_there(read())?.unwrap_or_default())
}

/// Returns the command that detaches a console.
pub fn detaching(console: &str) -> String {
    let name = console.split(' ').next().unwrap_or(console);
    format!("echo 0 > /sys/class/vtconsole/{name}/bind")
}

fn frame_buffers_of(root: &Root, device: &PciDevice) -> io::Result<Vec<String>> {
    let mut names = names_in(root, &format!("{}/{}/graphics", pci::DEVICES, device.address))?;
    names.retain(|name| is_frame_buffer(name));
    Ok(names)
}

fn is_bound(device: &PciDevice, module: &str) -> bool {
    device.driver.as_deref().and_then(module_of) == Some(module)
}

fn read_module(
    root: &Root,
    name: &str,
    module: &LoadedModule,
    bound: &[&PciDevice],
) -> io::Result<ConflictingModule> {
    let mut nodes = BTreeSet::new();
    let mut frame_buffers = Vec::new();
    for device in bound {
        nodes.extend(numbers_in(root, &device.address, "drm", |n| {
            n.contains("card") || n.contains("render")
        })?);
        nodes.extend(numbers_in(root, &device.address, "graphics", is_frame_buffer)?);
        frame_buffers.extend(frame_buffers_of(root, device)?);
    }
    // A kernel that counts no references cannot unload the module, either.
    let references = module.refcount.map_or(1, |count| count - module.holders.len() as i64);
    let users = if references > 0 { users(root, nodes) } else { DriverUsers::default() };
    Ok(ConflictingModule {
        holders: module.holders.clone(),
        references,
        consoles: consoles(root, &frame_buffers)?,
        users,
        parameters: parameters(root, name)?,
    })
}

fn is_frame_buffer(name: &str) -> bool {
    name.starts_with("fb")
}

fn users(root: &Root, nodes: BTreeSet<(u32, u32)>) -> DriverUsers {
    holders::users_of(root.path(), nodes, LOOK, &Looker::default()).unwrap_or_else(|e| {
        DriverUsers { users: Vec::new(), unseen: Some(format!("the processes are unknown: {e}")) }
    })
}

/// Reads the device numbers of a device's nodes of one class.
fn numbers_in(
    root: &Root,
    address: &str,
    class: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> io::Result<Vec<(u32, u32)>> {
    let dir = format!("{}/{address}/{class}", pci::DEVICES);
    let mut numbers = Vec::new();
    for name in names_in(root, &dir)?.into_iter().filter(|name| is_wanted(name)) {
        let text = text_of(root, &format!("{dir}/{name}/dev"))?.unwrap_or_default();
        numbers.extend(
            text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?))),
        );
    }
    Ok(numbers)
}

/// Returns the frame buffer consoles that are attached, if the GPUs have frame buffers. The kernel
/// shows in no file which of several frame buffers a console is on.
fn consoles(root: &Root, frame_buffers: &[String]) -> io::Result<Vec<String>> {
    let mut attached = Vec::new();
    if frame_buffers.is_empty() {
        return Ok(attached);
    }
    for name in names_in(root, CONSOLES)? {
        let read = |file: &str| text_of(root, &format!("{CONSOLES}/{name}/{file}"));
        let described = read("name")?.unwrap_or_default();
        if described.contains("frame buffer") && read("bind")?.as_deref() == Some("1") {
            let kind = described.split_once(' ').map_or(described.as_str(), |(_, kind)| kind);
            attached.push(format!("{name} ({kind}) on {}", frame_buffers.join(", ")));
        }
    }
    Ok(attached)
}

/// Reads the values of the parameters. One without a value, as the kernel shows a text that was not
/// given, is left out.
fn parameters(root: &Root, module: &str) -> io::Result<String> {
    let dir = format!("sys/module/{module}/parameters");
    let mut given = Vec::new();
    for name in names_in(root, &dir)? {
        let value = text_of(root, &format!("{dir}/{name}"))?.unwrap_or_default();
        let is_text = value.len() <= VALUE && !value.chars().any(|c| c.is_control() || c == '"');
        if is_text && !value.is_empty() && value != "(null)" {
            given.push(assigned(&name, &value));
        }
    }
    Ok(given.join(" "))
}

fn assigned(name: &str, value: &str) -> String {
    if value.contains(' ') { format!("{name}=\"{value}\"") } else { format!("{name}={value}") }
}

/// Reads a file without its newline; None if it does not exist or may not be read.
fn text_of(root: &Root, path: &str) -> io::Result<Option<String>> {
    match if_there(root.read_to_string(path)) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        text => Ok(text?.map(|text| text.trim_end_matches('\n').to_owned())),
    }
}

fn names_in(root: &Root, dir: &str) -> io::Result<Vec<String>> {
    Ok(if_there(root.read_dir(dir))?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
