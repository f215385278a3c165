//! Places of runtimes: those of a distribution's packages, and those of programs that bring their own.

use std::path::{Path, PathBuf};

use crate::files::Files;
use crate::runtime::Runtime;
use crate::systemd;

/// A runtime as one program brings it: where it and its configuration are, and how it is restarted.
#[derive(Debug, PartialEq, Eq)]
pub struct Distribution {
    /// The runtime.
    pub runtime: Runtime,
    /// Name of what brings it; empty for the runtime's own packages.
    pub name: &'static str,
    /// Paths of the program; empty where it is looked for by its name.
    pub programs: &'static [&'static str],
    /// Configuration that the daemon reads where its command line names no other.
    pub file: &'static str,
    /// Paths of which each shows that this is installed.
    pub marks: &'static [&'static str],
    /// Units that may run it.
    pub units: &'static [&'static str],
    /// Argument of `snap restart`, for a snap.
    pub snap: Option<&'static str>,
    /// Keeping of the configuration.
    pub keeping: Keeping,
}

/// Keeping of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    /// The administrator's file, which is edited.
    Own,
    /// Written anew at each start, from a template: k3s and RKE2 (pkg/agent/templates).
    Rancher,
    /// Written anew by k0s, which adds the files of a directory (its docs/runtime.md).
    K0s,
    /// Written anew from a template beside it, which is edited.
    Template(&'static str),
}

/// Directory of k0s for partial configurations.
pub(crate) const K0S_DROP_INS: &str = "/etc/k0s/containerd.d";

/// All that are known: the runtimes' own first.
pub const ALL: [Distribution; 9] = [
    Distribution {
        runtime: Runtime::Docker,
        name: "",
        programs: &[],
        file: "/etc/docker/daemon.json",
        marks: &["/etc/docker/daemon.json"],
        units: &["docker.service"],
        snap: None,
        keeping: Keeping::Own,
    },
    Distribution {
        runtime: Runtime::Docker,
        name: "snap",
        programs: &["/snap/docker/current/bin/dockerd"],
        file: "/var/snap/docker/current/config/daemon.json",
        marks: &["/snap/bin/docker", "/snap/docker/current", "/var/snap/docker/current"],
        units: &["snap.docker.dockerd.service"],
        snap: Some("docker"),
        keeping: Keeping::Own,
    },
    Distribution {
        runtime: Runtime::Containerd,
        name: "",
        programs: &[],
        file: "/etc/containerd/config.toml",
        marks: &["/etc/containerd/config.toml"],
        units: &["containerd.service", "snap.k8s.containerd.service"],
        snap: None,
        keeping: Keeping::Own,
    },
    Distribution {
        runtime: Runtime::Containerd,
        name: "k3s",
        programs: &["/var/lib/rancher/k3s/data/current/bin/containerd"],
        file: "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        marks: &[
            "/var/lib/rancher/k3s/agent",
            "/usr/local/bin/k3s",
            "/usr/bin/k3s",
            "/opt/bin/k3s",
        ],
        units: &["k3s.service", "k3s-agent.service"],
        snap: None,
        keeping: Keeping::Rancher,
    },
    Distribution {
        runtime: Runtime::Containerd,
        name: "rke2",
        programs: &["/var/lib/rancher/rke2/bin/containerd"],
        file: "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        marks: &[
            "/var/lib/rancher/rke2/agent",
            "/usr/local/bin/rke2",
            "/usr/bin/rke2",
            "/opt/rke2/bin/rke2",
        ],
        units: &["rke2-server.service", "rke2-agent.service"],
        snap: None,
        keeping: Keeping::Rancher,
    },
    Distribution {
        runtime: Runtime::Containerd,
        name: "k0s",
        programs: &["/var/lib/k0s/bin/containerd"],
        file: "/etc/k0s/containerd.toml",
        marks: &["/etc/k0s/containerd.toml", "/var/lib/k0s", "/usr/local/bin/k0s", "/usr/bin/k0s"],
        units: &["k0scontroller.service", "k0sworker.service"],
        snap: None,
        keeping: Keeping::K0s,
    },
    Distribution {
        runtime: Runtime::Containerd,
        name: "microk8s",
        programs: &["/snap/microk8s/current/bin/containerd"],
        file: "/var/snap/microk8s/current/args/containerd-template.toml",
        marks: &["/snap/bin/microk8s", "/snap/microk8s/current", "/var/snap/microk8s/current"],
        units: &["snap.microk8s.daemon-containerd.service"],
        snap: Some("microk8s.daemon-containerd"),
        keeping: Keeping::Template("/var/snap/microk8s/current/args/containerd.toml"),
    },
    Distribution {
        runtime: Runtime::Crio,
        name: "",
        programs: &[],
        file: "/etc/crio/crio.conf",
        marks: &["/etc/crio/crio.conf", "/etc/crio/crio.conf.d"],
        units: &["crio.service", "cri-o.service"],
        snap: None,
        keeping: Keeping::Own,
    },
    Distribution {
        runtime: Runtime::Podman,
        name: "",
        programs: &[],
        file: "/etc/containers/containers.conf",
        marks: &["/etc/containers/containers.conf"],
        units: &["podman.service"],
        snap: None,
        keeping: Keeping::Own,
    },
];

impl Distribution {
    /// Returns that of a runtime's own packages.
    pub fn usual(runtime: Runtime) -> &'static Self {
        static FIRST: &Distribution = &ALL[0];
        ALL.iter().find(|one| one.runtime == runtime && one.name.is_empty()).unwrap_or(FIRST)
    }

    /// Returns the one to which a file of a runtime belongs, by its directory.
    pub fn of_file(runtime: Runtime, file: &Path) -> &'static Self {
        let owns = |one: &&Self| {
            let dirs: &[&str] = match one.name {
                "snap" => &["/var/snap/docker/"],
                "k3s" => &["/var/lib/rancher/k3s/"],
                "rke2" => &["/var/lib/rancher/rke2/"],
                "k0s" => &["/etc/k0s/", "/var/lib/k0s/", "/run/k0s/"],
                "microk8s" => &["/var/snap/microk8s/"],
                _ => &[],
            };
            one.runtime == runtime && dirs.iter().any(|dir| file.starts_with(dir))
        };
        ALL.iter().find(owns).unwrap_or_else(|| Self::usual(runtime))
    }

    /// Returns its name among the runtimes of a host.
    pub fn label(&self) -> String {
        match self.name {
            "" => self.runtime.to_string(),
            name => format!("{} ({name})", self.runtime),
        }
    }

    /// Returns the directory of drop-ins in which a file is, where such files add to the configuration, with
    /// the file that reads them.
    pub fn top_of(&self, file: &Path) -> Option<PathBuf> {
        let dir = file.parent()?;
        match self.keeping {
            Keeping::K0s if dir == Path::new(K0S_DROP_INS) => Some(PathBuf::from(self.file)),
            Keeping::Rancher => {
                let name = dir.file_name()?.to_str()?;
                let is_drop_ins = matches!(name, "config.toml.d" | "config-v3.toml.d");
                is_drop_ins.then(|| dir.with_file_name("config.toml"))
            }
            _ => None,
        }
    }

    /// Returns the units that this host has, in the order of [`Distribution::units`].
    pub fn units_of(&self, files: &dyn Files) -> Vec<&'static str> {
        self.units.iter().copied().filter(|unit| systemd::exists(files, unit)).collect()
    }
}
