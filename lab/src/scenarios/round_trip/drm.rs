//! Judges nvidia_drm on a host whose driver is Ready (`drm` of guest/scripts/ready.sh), in cells that load it.

use crate::cell::Cell;
use crate::judge::answers;
use crate::judge::records::Records;

const MODULE: &str = "nvidia_drm";
/// Line of the kernel's log for each GPU that the module found (nvidia-drm-drv.c).
const FOUND: &str = "Loading driver";

/// Returns the faults: a parameter that it was not loaded with, a GPU that it did not find.
pub(super) fn wrong(cell: &Cell, records: &Records) -> Vec<String> {
    if !cell.extra_modules.iter().any(|name| name.replace('-', "_") == MODULE) {
        return Vec::new();
    }
    let seen = records.section("ready.drm").unwrap_or_default();
    let mut wrong = Vec::new();
    for parameter in &cell.parameters {
        let Some((name, value)) = of_module(parameter) else { continue };
        // As sysfs shows a boolean.
        let shown = if value == "1" { "Y" } else { value };
        if !seen.contains(&format!("parameter {name} {shown}")) {
            wrong.push(format!("{MODULE} was not loaded with {name}={value}: {seen:?}"));
        }
    }
    let found = seen.iter().filter(|line| line.contains(FOUND)).count();
    let (_, bound) = answers::gpus(cell);
    if found != bound {
        wrong.push(format!("{MODULE} found {found} GPUs, not {bound}: {seen:?}"));
    }
    wrong
}

/// Divides a parameter of the module into its name and its value.
fn of_module(parameter: &str) -> Option<(&str, &str)> {
    parameter.strip_prefix(MODULE)?.strip_prefix('.')?.split_once('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(modules: &str, lines: &[&str]) -> String {
        let cell: Cell = toml::from_str(&format!(
            "name = 'a'\nscenario = 'round-trip'\ngpus = ['t4', 't4:off-bus']\n\
             extra-modules = [{modules}]\nparameters = ['nvidia.A=1', 'nvidia_drm.modeset=1']\n\
             kernel = {{ suite = 's', package = 'p' }}\n\
             driver = {{ branch = '535', flavour = 'open' }}"
        ))
        .unwrap();
        let mut records = Records::default();
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        records.sections.insert("ready.drm".into(), lines);
        wrong(&cell, &records).join("; ")
    }

    #[test]
    fn a_parameter_and_each_gpu_have_to_be_there_where_the_module_is() {
        let (set, found) =
            ("parameter modeset Y", "kernel [drm] [nvidia-drm] [GPU ID 0x00000001] Loading driver");
        for module in ["'nvidia-drm'", "'nvidia_drm'"] {
            assert_eq!(why(module, &[set, found]), "");
            assert!(why(module, &[found]).contains("not loaded with modeset=1"));
            assert!(why(module, &["parameter modeset N", found]).contains("modeset=1"));
            assert!(why(module, &[set]).contains("found 0 GPUs, not 1"));
            assert!(why(module, &[set, found, found]).contains("found 2 GPUs, not 1"));
        }
        assert_eq!(why("", &[]), "");
    }
}
