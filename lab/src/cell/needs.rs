//! Needs of a scenario that are known before its guest is made.

/// Keys of matrix.toml that a scenario's cells have and no others, and parts of its guest that take long to make.
#[derive(Debug, Clone, Copy, Default)]
pub struct Needs {
    /// True if the driver is changed to the cell's next one.
    pub next_driver: bool,
    /// True if the cell's next kernel is installed and booted.
    pub next_kernel: bool,
    /// True if the guest is a node of a real Kubernetes cluster.
    pub cluster: bool,
    /// Module that is compiled for the guest's kernel beside the driver's.
    pub stand_in: Option<&'static StandIn>,
    /// True if a guest that compiles lacks some objects of earlier compiles, so that it takes a while.
    pub lacks_objects: bool,
}

/// Source of a module of the guest's own.
#[derive(Debug)]
pub struct StandIn {
    /// Name of the module.
    pub module: &'static str,
    /// Its source in C.
    pub source: &'static str,
    /// Header in `rdma/` of MOFED's headers, by name: drivers are compiled against it.
    pub header: Option<(&'static str, &'static str)>,
}
