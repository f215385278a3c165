//! Root file systems of the guests, and the container engines in them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::host::error::Error;

/// A guest's root file system.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Guest {
    /// Suite.
    pub suite: String,
    /// Packages beyond the essential ones.
    pub packages: Vec<String>,
    /// True if it has container roots of different make in /srv/roots (guest/scripts/roots.sh).
    #[serde(default)]
    pub roots: bool,
    /// True if expired package lists are accepted, as of a driver's suite.
    #[serde(default)]
    pub archive_frozen: bool,
}

/// All declared guests.
#[derive(Debug, Clone)]
pub struct Guests {
    /// Guest of the cells that name none.
    pub default: Guest,
    /// The others, by name.
    pub named: BTreeMap<String, Guest>,
}

impl Guest {
    /// True if it has a policy for SELinux: its files then have the policy's labels.
    pub fn has_policy(&self) -> bool {
        self.packages.iter().any(|package| package == "selinux-policy-default")
    }
}

impl Guests {
    /// Returns the guest `name`; an empty name is the default guest.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn guest(&self, name: &str) -> Result<&Guest, Error> {
        if name.is_empty() {
            return Ok(&self.default);
        }
        let known = || self.named.keys().cloned().collect::<Vec<_>>().join(", ");
        let unknown = || Error::Matrix(format!("no guest `{name}`; there are: {}", known()));
        self.named.get(name).ok_or_else(unknown)
    }
}

/// Container engine that runs the agent. Its name in the guest's scripts (guest/scripts/engines.sh) is that of
/// matrix.toml.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, derive_more::Display,
)]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum Engine {
    /// podman.
    #[default]
    Podman,
    /// dockerd, with a containerd of its own.
    Docker,
    /// kubelet with containerd, on a node of a [cluster](crate::supply::cluster).
    Kubelet,
}

impl Engine {
    /// Returns the daemons that it needs.
    fn daemons(self) -> &'static [&'static str] {
        match self {
            Self::Podman => &[],
            Self::Docker => &["docker"],
            Self::Kubelet => &["containerd", "kubelet"],
        }
    }
}

/// Process 1 of a guest.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, derive_more::Display,
)]
#[serde(rename_all = "kebab-case")]
pub enum Init {
    /// The guest's script, which has no name in the guest's scripts.
    #[default]
    #[display("")]
    Script,
    /// systemd, which then owns the cgroups.
    #[display("systemd")]
    Systemd,
}

/// Program that gives a container the GPUs of the spec (guest/scripts/consumers.sh). Its name in the guest's scripts and
/// in their sections is that of matrix.toml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum Consumer {
    /// `podman run --device nvidia.com/gpu=all`.
    Podman,
    /// `podman run --device nvidia.com/gpu=0`.
    PodmanByIndex,
    /// podman run ten times with the GPUs and ten times without, timed.
    PodmanRounds,
    /// `docker run --device nvidia.com/gpu=all`.
    Docker,
    /// `docker run` with the spec's nodes and files as options, for a docker without CDI.
    DockerOptions,
    /// `ctr run --device nvidia.com/gpu=0`.
    Ctr,
    /// A pod's container by the Container Runtime Interface, with the request's field for devices.
    CriField,
    /// The same with an annotation.
    CriAnnotation,
    /// podman with each of the guest's roots.
    PodmanRoots,
    /// docker with each of the guest's roots.
    DockerRoots,
    /// docker with systemd's cgroups: systemd reads its units again while the container runs.
    DockerReload,
    /// The same with the spec's nodes and files as options.
    DockerOptionsReload,
}

impl Consumer {
    /// True if CDI is off in its runtime until longshore switches it on.
    pub fn is_configured(self) -> bool {
        let of_docker = matches!(self, Self::Docker | Self::DockerRoots | Self::DockerReload);
        of_docker || matches!(self, Self::CriField | Self::CriAnnotation)
    }

    /// Returns the section that the guest reports of its container.
    pub fn section(self) -> String {
        format!("ready.cdi-{self}")
    }

    /// Returns the daemon that it needs.
    fn daemon(self) -> Option<&'static str> {
        match self {
            Self::Podman | Self::PodmanByIndex | Self::PodmanRounds | Self::PodmanRoots => None,
            Self::Ctr | Self::CriField | Self::CriAnnotation => Some("containerd"),
            Self::Docker
            | Self::DockerOptions
            | Self::DockerRoots
            | Self::DockerReload
            | Self::DockerOptionsReload => Some("docker"),
        }
    }
}

/// Returns the daemons that a guest starts before the agent, each once.
pub fn daemons(engine: Engine, consumers: &[Consumer]) -> Vec<&'static str> {
    let mut daemons = engine.daemons().to_vec();
    daemons.extend(consumers.iter().filter_map(|consumer| consumer.daemon()));
    daemons.sort_unstable();
    daemons.dedup();
    daemons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_daemon_is_started_once() {
        for (engine, consumers, expected) in [
            (Engine::Podman, &[Consumer::Podman][..], ""),
            (Engine::Docker, &[Consumer::Podman], "docker"),
            (Engine::Docker, &[Consumer::DockerOptions, Consumer::Docker], "docker"),
            (Engine::Podman, &[Consumer::Docker, Consumer::Ctr], "containerd docker"),
            (Engine::Kubelet, &[Consumer::CriField], "containerd kubelet"),
        ] {
            assert_eq!(daemons(engine, consumers).join(" "), expected);
        }
    }

    #[test]
    fn a_guest_is_found_by_its_name() {
        let guest = |suite: &str| Guest {
            suite: suite.into(),
            packages: Vec::new(),
            archive_frozen: false,
            roots: false,
        };
        let named = BTreeMap::from([("new".to_owned(), guest("trixie"))]);
        let guests = Guests { default: guest("bookworm"), named };
        assert_eq!(guests.guest("").unwrap().suite, "bookworm");
        assert_eq!(guests.guest("new").unwrap().suite, "trixie");
        let error = guests.guest("other").unwrap_err().to_string();
        assert!(error.contains("`other`") && error.contains("new"), "{error}");
    }
}
