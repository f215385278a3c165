//! Reservation of a GPU for NVIDIA's driver, while another driver of the kernel's is bound to it.
//!
//! `driver_override` keeps every other driver from the device, also one that udev loads between the
//! unload of the bound driver and the load of NVIDIA's. The bound driver stays until its module is
//! unloaded: that the kernel refuses while it is in use, while an unbind of a device in use succeeds.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bounds::given;
use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, Next, Progress, Properties,
    Recheck, StepKind, Tools, UndoResult, Watch, exposing,
};
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::Host;
use longshore_host::facts::conflicting;
use longshore_host::facts::pci::{is_address, is_driver_name};

/// Name of NVIDIA's PCI driver (kernel-open/nvidia/nv-pci.c).
const NVIDIA: &str = "nvidia";

/// Reserve a GPU for NVIDIA's driver; undone by binding it to its earlier driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("reserve GPU {address} for {}, now bound to {driver}", NVIDIA)]
pub struct ReserveDevice {
    /// PCI address.
    pub address: String,
    /// Driver that is bound to it.
    pub driver: String,
}

/// The device was bound to another driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundElsewhere {
    /// Only driver that could bind to it (driver_override); empty for any.
    pub only: String,
}

impl StepKind for ReserveDevice {
    type Before = BoundElsewhere;
    const WAS: &'static str = "bound-elsewhere";

    fn subject(&self) -> String {
        self.address.clone()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.address == other.address
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            // A second entry would take the reservation for the host's own.
            resumed: true,
            verified: true,
            optional: None,
            recheck: Recheck::Never,
            carries_daemons: false,
            next: Next::AnyDriver,
            content: None,
            watch: Watch::Nothing,
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<BoundElsewhere>, Failure> {
        let found = host.binding(&self.address).map_err(exposing)?;
        let Some(found) = found.filter(|found| found.only != NVIDIA) else { return Ok(None) };
        // Another driver's reservation, as for a virtual machine.
        if !found.only.is_empty() && found.only != self.driver {
            let Self { address, .. } = self;
            let cause = format!("{address} is reserved for {} (driver_override)", found.only);
            let remedy = format!("clear it: echo > /sys/bus/pci/devices/{address}/driver_override");
            return Err(Failure::new(FailureKind::Preflight, cause).remedy(remedy));
        }
        Ok(Some(BoundElsewhere { only: found.only }))
    }

    fn apply(&self, _: &BoundElsewhere, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        tools.host.set_only_driver(&self.address, NVIDIA).map_err(exposing)?;
        if self.observe(tools.host)?.is_none() {
            return Ok(intent.done());
        }
        let cause = format!("{self}: its driver_override does not keep the value");
        Err(Failure::new(FailureKind::Expose, cause))
    }

    fn undo(&self, before: &BoundElsewhere, _: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        let Self { address, driver } = self;
        let Some(found) = tools.host.binding(address)? else { return Ok(EntryState::Undone) };
        if found.only == NVIDIA {
            tools.host.set_only_driver(address, &before.only)?;
        }
        match found.driver {
            Some(bound) if bound == *driver => Ok(EntryState::Undone),
            Some(bound) => Ok(EntryState::Kept(format!("{address} is bound to {bound}"))),
            None => bind_back(address, driver, tools.host),
        }
    }

    fn seen(&self, now: &BoundElsewhere) -> Deviation {
        Deviation::gone(format!("{}: its driver_override is {:?}", self.address, now.only))
    }

    fn check(&self, _: &Bounds) -> Result<(), String> {
        let holds = is_address(&self.address) && conflicting::module_of(&self.driver).is_some();
        given(holds, Path::new(&self.address))
    }

    fn check_before(&self, before: &BoundElsewhere, _: &Bounds) -> Result<(), String> {
        let only = before.only.as_str();
        given(only.is_empty() || is_driver_name(only), Path::new(only))
    }
}

/// Binds the device to its earlier driver, if that is loaded.
fn bind_back(address: &str, driver: &str, host: &dyn Host) -> UndoResult {
    let module = conflicting::module_of(driver).unwrap_or(driver);
    if host.module(module)?.is_none() {
        return Ok(EntryState::Kept(format!("{module} is not loaded")));
    }
    host.bind_device(address, driver)?;
    Ok(EntryState::Undone)
}
