//! The kernel's own drivers that are bound to the GPUs: steps that unload them where nobody uses
//! them, and the reasons why not.

use super::values::Reason;
use crate::config::Config;
use crate::steps::{ReserveDevice, Step, UnloadConflicting};
use longshore_host::HostFacts;
use longshore_host::facts::PciDevice;
use longshore_host::facts::conflicting::{self, ConflictingModule, MODULES, module_of};

/// A module that is unloaded for NVIDIA's driver.
struct Unloaded<'a> {
    name: &'static str,
    devices: Vec<&'a PciDevice>,
    step: UnloadConflicting,
}

fn devices_of<'a>(facts: &'a HostFacts, module: &str) -> Vec<&'a PciDevice> {
    facts.devices.iter().filter(|device| module_behind(device) == Some(module)).collect()
}

fn module_behind(device: &PciDevice) -> Option<&'static str> {
    device.driver.as_deref().and_then(module_of)
}

/// Returns the modules to be unloaded. A driver that is loaded would not take the devices that they
/// release.
fn unloaded<'a>(config: &Config, facts: &'a HostFacts) -> Vec<Unloaded<'a>> {
    let is_wanted = config.conflicting_drivers.unloads_idle() && !is_live(facts);
    let unloaded = |name| {
        let module = facts.conflicting.get(name).filter(|module| module.is_idle())?;
        let file = facts.available.get(name)?.path();
        let parameters = module.parameters.clone();
        let step = UnloadConflicting { name: (name as &str).to_owned(), file, parameters };
        let devices = devices_of(facts, name);
        (!devices.is_empty()).then_some(Unloaded { name, devices, step })
    };
    MODULES.into_iter().filter(|_| is_wanted).filter_map(unloaded).collect()
}

fn is_live(facts: &HostFacts) -> bool {
    facts.loaded.contains_key("nvidia")
}

/// True if the plan unloads the driver that is bound to the device.
pub(super) fn releases(config: &Config, facts: &HostFacts, device: &PciDevice) -> bool {
    let module = module_behind(device);
    unloaded(config, facts).iter().any(|unloaded| Some(unloaded.name) == module)
}

/// Returns the steps that reserve the devices for NVIDIA's driver and unload the others.
pub(super) fn steps(config: &Config, facts: &HostFacts) -> Vec<Step> {
    let mut steps = Vec::new();
    for Unloaded { devices, step, .. } in unloaded(config, facts) {
        steps.extend(devices.into_iter().map(reserve));
        steps.push(Step::UnloadConflicting(step));
    }
    steps
}

fn reserve(device: &PciDevice) -> Step {
    let (address, driver) = (device.address.clone(), device.driver.clone().unwrap_or_default());
    Step::ReserveDevice(ReserveDevice { address, driver })
}

/// Returns the reasons of the unloads.
pub(super) fn reasons(config: &Config, facts: &HostFacts) -> Vec<Reason> {
    let reason = |Unloaded { name, devices, .. }: Unloaded<'_>| {
        let bound: Vec<&str> = devices.iter().map(|device| device.address.as_str()).collect();
        let reason = format!(
            "bound to {}, and nobody uses it; it is loaded again on removal \
             (conflicting-drivers = \"unload-idle\")",
            bound.join(", ")
        );
        Reason::chosen("unload", name, reason)
    };
    unloaded(config, facts).into_iter().map(reason).collect()
}

/// Reason why a driver stays that is bound to a device, and the remedy.
pub(super) struct Stays {
    pub(super) why: String,
    pub(super) remedy: String,
}

/// Returns the reason why the module bound to the device is not unloaded; None if it is not one of
/// the kernel's own drivers of GPUs.
pub(super) fn stays(config: &Config, facts: &HostFacts, device: &PciDevice) -> Option<Stays> {
    let name = module_behind(device)?;
    let by_hand = format!(
        "unload {name} (modprobe -r {name}) and blacklist it: `blacklist {name}` in \
         /etc/modprobe.d, then renew the initramfs"
    );
    if !config.conflicting_drivers.unloads_idle() {
        let why = format!("{name} stays, because conflicting-drivers is `refuse`");
        return Some(Stays { why, remedy: format!("{by_hand}; or set it to `unload-idle`") });
    }
    let module = facts.conflicting.get(name);
    if let Some(module) = module.filter(|module| !module.is_idle()) {
        return Some(Stays {
            why: format!("{name} is in use: {module}"),
            remedy: end_users(module, &by_hand),
        });
    }
    let release = &facts.kernel.release;
    let why = match (&facts.unread.conflicting, module) {
        (Some(unread), _) => format!("the users of {name} are unknown: {unread}"),
        (None, None) => format!("{name} is not loaded as a module"),
        (None, Some(_)) if is_live(facts) => format!("{name} stays while nvidia is loaded"),
        (None, Some(_)) => {
            format!(
                "{name} stays, because /lib/modules/{release} has no file to load it again from"
            )
        }
    };
    Some(Stays { why, remedy: by_hand })
}

fn end_users(module: &ConflictingModule, by_hand: &str) -> String {
    let detach = module.consoles.first().map_or_else(String::new, |console| {
        format!(", then detach the console (`{}`)", conflicting::detaching(console))
    });
    format!(
        "end its users, as a display manager{detach}, and start longshore again, which unloads it; or {by_hand}"
    )
}
