//! Drivers of PCI devices in sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::read;
use crate::facts::pci::{DEVICES, is_address, is_driver_name};
use crate::verbs::{Binding, VerbError};
use longshore_core::root::if_there;

/// Reads the driver of a device; None if there is no such device.
pub(super) fn binding_of(root: &Path, address: &str) -> Result<Option<Binding>, VerbError> {
    check(is_address(address), address)?;
    let dir = root.join(DEVICES).join(address);
    if !dir.exists() {
        return Ok(None);
    }
    let link = dir.join("driver");
    let driver = if_there(fs::read_link(&link));
    let driver = driver.map_err(|e| VerbError::on_path("readlink", &link, &e))?;
    let driver = driver.and_then(|target| Some(target.file_name()?.to_string_lossy().into_owned()));
    let only = read(&dir.join("driver_override"))?.filter(|name| name != "(null)");
    Ok(Some(Binding { driver, only: only.unwrap_or_default() }))
}

/// Returns the file with the only driver that may bind to a device, below the root.
pub(super) fn only_driver(address: &str, driver: &str) -> Result<PathBuf, VerbError> {
    check(is_address(address), address)?;
    check(driver.is_empty() || is_driver_name(driver), driver)?;
    Ok(Path::new("/").join(DEVICES).join(address).join("driver_override"))
}

/// Returns the file that binds a driver to a device, below the root.
pub(super) fn bind(address: &str, driver: &str) -> Result<PathBuf, VerbError> {
    check(is_address(address), address)?;
    check(is_driver_name(driver), driver)?;
    Ok(Path::new("/sys/bus/pci/drivers").join(driver).join("bind"))
}

/// Refuses a word that would lead to another path.
fn check(holds: bool, word: &str) -> Result<(), VerbError> {
    if holds { Ok(()) } else { Err(VerbError::new("write", format!("{word:?}"), Errno::EINVAL)) }
}
