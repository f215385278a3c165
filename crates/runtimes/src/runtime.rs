//! The runtimes: names and programs.

/// A container runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{}", self.name())]
pub enum Runtime {
    /// Docker's daemon.
    Docker,
    /// containerd with its CRI plugin, as Kubernetes uses it.
    Containerd,
    /// CRI-O.
    Crio,
    /// podman.
    Podman,
}

impl Runtime {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Docker, Self::Containerd, Self::Crio, Self::Podman];

    /// Returns its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Crio => "crio",
            Self::Podman => "podman",
        }
    }

    /// Returns the program that reads the configuration. Of docker it is the daemon: a client can be
    /// another program's, podman's for example.
    pub fn program(self) -> &'static str {
        match self {
            Self::Docker => "dockerd",
            other => other.name(),
        }
    }
}
