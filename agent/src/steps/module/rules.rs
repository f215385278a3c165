//! Modules that an agent can have loaded: the host's own by their files, the driver's by their
//! digests.

use std::ffi::OsStr;
use std::path::{Component, Path};

use super::super::bounds::{is_hex, is_written_plainly};
use super::{LoadModule, ModuleOrigin};
use longshore_host::facts::modules::is_of_driver;

/// MODULE_NAME_LEN of the kernel (include/linux/moduleparam.h) with 64-bit longs, less its end.
const MODULE_NAME: usize = 55;
/// Limit of a module's parameters, in bytes: sysfs would show at most a page of each.
const PARAMETERS: usize = 64 << 10;

/// Checks the module's name and file, and that its parameters and versions are single lines.
pub(in crate::steps) fn check(step: &LoadModule) -> Result<(), String> {
    let LoadModule { name, origin, parameters, version, srcversion } = step;
    module(name, origin)?;
    let versions = [version, srcversion].into_iter().flatten().map(String::as_str);
    [parameters.as_str()].into_iter().chain(versions).try_for_each(one_line)
}

/// Accepts the host's own module by its file, or one of the driver's by its digest.
fn module(name: &str, origin: &ModuleOrigin) -> Result<(), String> {
    let is_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let plain = !name.is_empty() && name.len() <= MODULE_NAME && name.bytes().all(is_byte);
    let fits = plain
        && match origin {
            ModuleOrigin::Driver { sha256 } => is_of_driver(name) && is_hex(sha256, 64),
            ModuleOrigin::Kernel { file } => !is_of_driver(name) && is_module_file(file, name),
        };
    if fits { Ok(()) } else { Err(format!("no module is loaded as {name:?} is")) }
}

/// True if a path below /lib/modules/RELEASE is that of the module's file.
fn is_module_file(file: &Path, name: &str) -> bool {
    let Some(last) = file.file_name().and_then(OsStr::to_str) else { return false };
    let stem = last.split_once(".ko").map(|(stem, _)| stem.replace('-', "_"));
    stem.as_deref() == Some(name)
        && file.components().all(|part| matches!(part, Component::Normal(_)))
        && is_written_plainly(file)
}

fn one_line(text: &str) -> Result<(), String> {
    if text.len() <= PARAMETERS && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err("no module is given such parameters".to_owned())
}
