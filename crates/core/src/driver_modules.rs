//! Kernel modules of NVIDIA's driver, in load order.

/// Module of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverModule {
    /// The kernel's name, for example `nvidia_uvm`.
    pub name: &'static str,
    /// Name of its sources' directory and of its file without `.ko`, for example `nvidia-uvm`.
    pub stem: &'static str,
    /// True if every driver is installed with it.
    pub always: bool,
}

/// All modules of the driver.
pub const ALL: [DriverModule; 5] = [
    DriverModule { name: "nvidia", stem: "nvidia", always: true },
    DriverModule { name: "nvidia_uvm", stem: "nvidia-uvm", always: true },
    DriverModule { name: "nvidia_modeset", stem: "nvidia-modeset", always: true },
    DriverModule { name: "nvidia_drm", stem: "nvidia-drm", always: false },
    DriverModule { name: "nvidia_peermem", stem: "nvidia-peermem", always: false },
];

/// Kernel names of all modules.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().map(|module| module.name)
}

/// Kernel names of the modules that every driver is installed with.
pub fn always() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().filter(|module| module.always).map(|module| module.name)
}

/// True if a kernel name is that of a module of the driver itself.
pub fn is_one(name: &str) -> bool {
    names().any(|of_driver| of_driver == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_stems_as_the_kernel_writes_them() {
        for module in ALL {
            assert_eq!(module.stem.replace('-', "_"), module.name);
            assert!(is_one(module.name));
        }
        assert_eq!(always().collect::<Vec<_>>(), ["nvidia", "nvidia_uvm", "nvidia_modeset"]);
        assert!(!is_one("nvidia_fs") && !is_one("nvidia_cspmu"));
    }
}
