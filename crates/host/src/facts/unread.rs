//! Reasons why facts of a host could not be read.

use serde::{Deserialize, Serialize};

/// Reasons why facts could not be read: one with a reason is unknown, not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Unread {
    /// Of [`HostFacts::autoload`](super::HostFacts::autoload).
    pub autoload: Option<String>,
    /// Of [`HostFacts::available`](super::HostFacts::available).
    pub available: Option<String>,
    /// Of [`HostFacts::builtin`](super::HostFacts::builtin).
    pub builtin: Option<String>,
    /// Of [`HostFacts::conflicting`](super::HostFacts::conflicting).
    pub conflicting: Option<String>,
    /// Of [`HostFacts::gpus`](super::HostFacts::gpus).
    pub gpus: Option<String>,
    /// Of [`HostFacts::installed`](super::HostFacts::installed).
    pub installed: Option<String>,
    /// Of [`HostFacts::installed_kernels`](super::HostFacts::installed_kernels).
    pub installed_kernels: Option<String>,
    /// Of [`HostFacts::loaded`](super::HostFacts::loaded).
    pub loaded: Option<String>,
    /// Of [`HostFacts::mounts`](super::HostFacts::mounts).
    pub mounts: Option<String>,
    /// Of [`HostFacts::network_cards`](super::HostFacts::network_cards).
    pub network_cards: Option<String>,
    /// Of [`HostFacts::os`](super::HostFacts::os).
    pub os_release: Option<String>,
    /// Of [`HostFacts::devices`](super::HostFacts::devices).
    pub pci: Option<String>,
    /// Of [`HostFacts::places`](super::HostFacts::places).
    pub places: Option<String>,
    /// Of [`HostFacts::switch_managers`](super::HostFacts::switch_managers).
    pub switch_managers: Option<String>,
}

impl Unread {
    /// Returns the name and the reason of each that could not be read, by name.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("autoload", &self.autoload),
            ("available", &self.available),
            ("builtin", &self.builtin),
            ("conflicting", &self.conflicting),
            ("gpus", &self.gpus),
            ("installed", &self.installed),
            ("installed-kernels", &self.installed_kernels),
            ("loaded", &self.loaded),
            ("mounts", &self.mounts),
            ("network-cards", &self.network_cards),
            ("os-release", &self.os_release),
            ("pci", &self.pci),
            ("places", &self.places),
            ("switch-managers", &self.switch_managers),
        ];
        all.into_iter().filter_map(|(name, why)| Some((name, why.as_deref()?)))
    }

    /// Returns the reason why the modules of the running kernel, as files or built in, are unknown.
    pub fn modules(&self) -> Option<&String> {
        self.available.as_ref().or(self.builtin.as_ref())
    }
}
