//! State that more than one gate asks about.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::Asked;
use super::confined::ConfinedRoot;

/// Directory of the operator's files.
pub(super) const VALIDATIONS: &str = "run/nvidia/validations";
/// File that the startup probe writes.
pub(super) const CONTAINER_READY: &str = "run/nvidia/validations/.driver-ctr-ready";

/// Input of all gates.
#[derive(Debug)]
pub(super) struct GateInputs {
    /// Tree with /proc, /sys and /run/nvidia.
    pub(super) root: ConfinedRoot,
    /// The host's own file system; None where it is not accessible.
    pub(super) host: Option<ConfinedRoot>,
    /// Driver root, or the reason why there is none.
    pub(super) driver_root: Result<ConfinedRoot, String>,
    pub(super) driver_root_path: PathBuf,
    pub(super) asked: Asked,
    /// True if `/sys/module/nvidia/refcnt` is there.
    pub(super) loaded: bool,
    /// Version of the loaded driver.
    pub(super) version: Option<String>,
    /// Switches in `.driver-ctr-ready`: GDS and others.
    pub(super) switches: Result<Option<BTreeMap<String, bool>>, String>,
}

impl GateInputs {
    pub(super) fn read(
        root: ConfinedRoot,
        host: Option<ConfinedRoot>,
        driver_root_path: PathBuf,
        asked: Asked,
    ) -> io::Result<Self> {
        let loaded = root.has_file("sys/module/nvidia/refcnt")?;
        let version = root.text("sys/module/nvidia/version")?.map(|text| text.trim().to_owned());
        let driver_root = match root.tree(&driver_root_path) {
            Ok(tree) => tree.ok_or_else(|| "does not exist".to_owned()),
            Err(e) => Err(format!("cannot be opened: {e}")),
        };
        let switches = match root.text(CONTAINER_READY) {
            Ok(text) => text.map(|text| switches(&text)).transpose(),
            Err(e) => Err(e.to_string()),
        };
        Ok(Self { root, host, driver_root, driver_root_path, asked, loaded, version, switches })
    }

    /// True if a module is loaded.
    pub(super) fn has_module(&self, name: &str) -> io::Result<bool> {
        self.root.has_file(Path::new("sys/module").join(name).join("refcnt"))
    }

    /// True if a feature is on, by the pod's environment or by the startup probe's file.
    pub(super) fn is_on(&self, asked: bool, name: &str) -> bool {
        let switches = self.switches.as_ref().ok().and_then(Option::as_ref);
        asked || switches.is_some_and(|switches| switches.get(name) == Some(&true))
    }

    /// Directory whose `dev` and `sys` the validator reads: the driver root if that has a `dev`.
    pub(super) fn device_root(&self) -> io::Result<(&str, &ConfinedRoot)> {
        let of_driver = match &self.driver_root {
            Ok(root) if root.names("dev")?.is_some() => Some(root),
            _ => None,
        };
        // The validator's `/` is its own container, which has the host's /sys.
        let path = self.driver_root_path.to_str().unwrap_or_default();
        Ok(of_driver.map_or(("/", &self.root), |root| (path, root)))
    }
}

/// Parses the lines that the startup probe writes, a YAML map of booleans.
fn switches(text: &str) -> Result<BTreeMap<String, bool>, String> {
    let switch = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    };
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#') && *line != "---");
    let parsed = lines.map(|line| switch(line).ok_or_else(|| line.to_owned()));
    parsed
        .collect::<Result<_, _>>()
        .map_err(|line| format!("{} is no switch", super::confined::shown(&line)))
}
