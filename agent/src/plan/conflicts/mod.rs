//! Findings about other driver installers: NVIDIA's driver container and its leftovers, foreign
//! mounts on the driver root, and a driver installed on the host itself.

use std::path::Path;

use crate::config::Config;
use crate::steps::{Leftover, RemoveLeftover, Step};
use longshore_core::driver_modules;
use longshore_core::finding::{Code, Finding};
use longshore_host::HostFacts;
use longshore_host::facts::modules::is_of_driver;
use longshore_host::facts::places::FIRMWARE_PATH;
use longshore_host::facts::{Installer, PlacedFile, RootKind, RootMount, RootMountOwner};

/// Number of modules or libraries that a finding names.
const NAMED: usize = 4;

/// Returns the findings that do not depend on the modules to be loaded.
pub(super) fn findings(config: &Config, facts: &HostFacts, host_hidden: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(odd_root(config, facts));
    found.extend(alive(config, facts));
    found.extend(taken(config, facts));
    found.extend(leftovers_found(config, facts));
    // With the host's files hidden, the visible ones are the container's own.
    if !host_hidden {
        found.extend(host_driver(config, facts));
        found.extend(autoloads(facts));
    }
    found
}

fn odd_root(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let path = config.paths.driver_root.display();
    let seen = match &facts.places.kind {
        RootKind::Absent | RootKind::Directory => return None,
        RootKind::Symlink(to) => format!("{path} is a symlink to {}", to.display()),
        RootKind::Other => format!("{path} is not a directory"),
    };
    Some(Finding::refusal(Code::DriverRootOdd, seen))
}

fn alive(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let Installer::Alive(why) = &facts.places.installer else { return None };
    // A foreign container may have its root there as well; the mount's finding covers it.
    let theirs = facts.places.mounts.iter().all(|m| m.owner != RootMountOwner::Unknown);
    let root = config.paths.driver_root.display();
    let seen = format!("NVIDIA's driver container is running on {root}: {why}");
    theirs.then(|| Finding::refusal(Code::OtherInstallerAlive, seen))
}

fn taken(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let places = &facts.places;
    let root = &config.paths.driver_root;
    let unknown = |m: &&RootMount| m.owner == RootMountOwner::Unknown;
    let mixed = leftover_mounts(facts).is_none_or(|mounts| mounts.is_empty())
        && places.mounts.iter().any(|m| m.owner == RootMountOwner::Installer)
        && places.installer == Installer::NotSeen;
    let first = places.mounts.iter().find(unknown).or(places.mounts.first().filter(|_| mixed))?;
    let alive = match &places.installer {
        Installer::Alive(why) => format!("; {why}"),
        Installer::NotSeen => String::new(),
    };
    let seen = format!(
        "{} ({}) is mounted on {}, and is neither longshore's nor provably left by NVIDIA's driver \
         container{alive}",
        first.source,
        first.fstype,
        first.target.display()
    );
    let remedy = format!(
        "find its owner (`findmnt -R {0}`) and unmount it (`umount -R {0}`), or set \
         driver-root to another directory",
        root.display()
    );
    Some(Finding::refusal(Code::DriverRootTaken, seen).remedy(remedy))
}

/// Returns the mounts of NVIDIA's dead container that can be unmounted; None where another mount is
/// among them, or the container is alive. Several are one container's root, mounted more than once.
fn leftover_mounts(facts: &HostFacts) -> Option<&[RootMount]> {
    let mounts = facts.places.mounts.as_slice();
    let first = mounts.first().map(|m| (&m.source, &m.fstype));
    let same = |m: &RootMount| {
        m.owner == RootMountOwner::Installer && first == Some((&m.source, &m.fstype))
    };
    let is_dead = facts.places.installer == Installer::NotSeen;
    (is_dead && mounts.iter().all(same)).then_some(mounts)
}

/// Returns the leftovers of NVIDIA's dead container in the order of their removal. The proof of its
/// ownership comes last, so that after a crash the next agent finds it again.
pub(super) fn leftovers(config: &Config, facts: &HostFacts) -> Vec<Leftover> {
    let places = &facts.places;
    let ours = places.mounts.iter().any(|m| m.owner == RootMountOwner::Ours);
    let mounts = if ours { Some(&[][..]) } else { leftover_mounts(facts) };
    let Some(mounts) = mounts else { return Vec::new() };
    let is_proof = |file: &PlacedFile| {
        file.path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("nvidia-driver."))
    };
    if places.installer != Installer::NotSeen
        || (mounts.is_empty() && !places.files.iter().any(is_proof))
    {
        return Vec::new();
    }
    let mut left = Vec::new();
    if let Some(mount) = mounts.first()
        && let Some((device, inode)) = mount.dir
    {
        left.push(Leftover::Mount { target: mount.target.clone(), device, inode });
    }
    let firmware = config.paths.driver_root.join("lib/firmware");
    if places.firmware_path.as_deref().is_some_and(|path| Path::new(path) == firmware) {
        let value = firmware.display().to_string();
        left.push(Leftover::Value { path: FIRMWARE_PATH.into(), value });
    }
    let file = |file: &PlacedFile| Leftover::File { path: file.path.clone(), id: Some(file.id) };
    left.extend(places.files.iter().map(file));
    left
}

/// Returns the steps that remove the leftovers.
pub(super) fn take_over(config: &Config, facts: &HostFacts) -> impl Iterator<Item = Step> {
    leftovers(config, facts).into_iter().map(|what| Step::RemoveLeftover(RemoveLeftover { what }))
}

fn leftovers_found(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let left = leftovers(config, facts);
    let names: Vec<String> = left.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    let seen = format!("left by NVIDIA's driver container, which is dead: {names}");
    (!left.is_empty()).then(|| Finding::note(Code::Leftovers, seen))
}

/// Returns the driver's modules among the kernel's module files.
fn host_modules(facts: &HostFacts) -> Vec<(String, &str)> {
    let is_driver = |(name, file): &(String, &str)| {
        // The kernel's own modules with such names (nvidiafb, nvidia_wmi_ec_backlight) are below
        // drivers/.
        let elsewhere = || !file.starts_with("kernel/drivers/");
        driver_modules::is_one(name) || (name.starts_with("nvidia_") && elsewhere())
    };
    // Only the few of thousands with such a name are formatted.
    let all = facts.available.iter().filter(|module| module.stem.starts_with("nvidia"));
    let mut found: Vec<_> =
        all.map(|module| (module.name(), module.file)).filter(is_driver).collect();
    found.sort();
    found
}

fn host_driver(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let installed = &facts.installed;
    let modules = host_modules(facts);
    if config.modules_only && modules.is_empty() && installed.dkms.is_empty() {
        // Libraries and services are what the host has to have then.
        return None;
    }
    let package = modules.iter().find_map(|(_, file)| package_of(facts, file));
    let mut parts = Vec::new();
    if !modules.is_empty() {
        let files = modules.iter().map(|(_, file)| (*file).to_owned());
        let release = &facts.kernel.release;
        let of = package.map_or_else(String::new, |package| format!(" ({})", package.name));
        parts.push(format!("modules in /lib/modules/{release}: {}{of}", some(files.collect())));
    }
    if !installed.libraries.is_empty() {
        let version = installed.version.as_deref().unwrap_or("of unknown version");
        let files = installed.libraries.iter().map(|path| path.display().to_string());
        parts.push(format!("libraries {version}: {}", some(files.collect())));
    }
    if !installed.dkms.is_empty() {
        parts.push(format!("DKMS compiles {}", installed.dkms.join(", ")));
    }
    if !installed.services.is_empty() {
        parts.push(format!("enabled: {}", installed.services.join(", ")));
    }
    if parts.is_empty() {
        return None;
    }
    let loaded = match &facts.live_driver {
        Some(live) if installed.version.as_ref() == Some(&live.version) => {
            format!("; the driver loaded now ({}) is of its version", live.version)
        }
        _ => String::new(),
    };
    let seen = format!("the host has a driver of its own: {}{loaded}", parts.join("; "));
    let found = Finding::warning(Code::HostDriverInstalled, seen);
    if config.modules_only {
        let remove = match package {
            Some(Package { remove, .. }) => remove,
            None if !installed.dkms.is_empty() => "that of DKMS",
            None => "that of the files named here",
        };
        return Some(found.remedy(format!(
            "uninstall the package of its modules alone ({remove}), renew the initramfs and reboot, so that they are not \
             loaded before longshore's; keep its user-mode files, which modules-only needs"
        )));
    }
    Some(match package {
        Some(Package { remove, .. }) => found.remedy(format!(
            "uninstall it ({remove}), renew the initramfs and reboot; or leave the driver to it and do not run \
             longshore on this node"
        )),
        None => found,
    })
}

/// A kind of package with the driver's modules, by their place below /lib/modules/RELEASE.
#[derive(Debug, Clone, Copy)]
struct Package {
    place: &'static str,
    /// Begins of the `ID`s of the distributions that use the place so; empty for all.
    of: &'static [&'static str],
    name: &'static str,
    /// Command that removes it.
    remove: &'static str,
}

/// Begins of the `ID`s of distributions whose packages dnf manages.
const BY_DNF: &[&str] = &["rhel", "rhcos", "rocky", "alma", "ol", "centos", "fedora", "amzn"];
/// Begins of the `ID`s of SUSE's distributions.
const OF_SUSE: &[&str] = &["sle", "sl-", "opensuse"];

const PACKAGES: [Package; 5] = [
    Package {
        place: "extra/",
        of: BY_DNF,
        name: "kmod package of RPM",
        remove: "dnf remove 'kmod-nvidia*'",
    },
    // Links to modules of another release of the kernel, of which its symbols are taken to be the same.
    Package {
        place: "weak-updates/",
        of: BY_DNF,
        name: "kmod package of RPM for another release of the kernel",
        remove: "dnf remove 'kmod-nvidia*'",
    },
    Package {
        place: "weak-updates/",
        of: OF_SUSE,
        name: "kernel module package of SUSE for another release of the kernel",
        remove: "zypper remove 'nvidia*-kmp-*'",
    },
    Package {
        place: "updates/",
        of: OF_SUSE,
        name: "kernel module package of SUSE",
        remove: "zypper remove 'nvidia*-kmp-*'",
    },
    Package {
        place: "kernel/nvidia-",
        of: &[],
        name: "linux-modules-nvidia of Ubuntu",
        remove: "apt purge 'linux-modules-nvidia-*' 'linux-objects-nvidia-*'",
    },
];

/// Returns the kind of package that a module is of. DKMS, which is named by itself, puts modules into some of the
/// same places.
fn package_of(facts: &HostFacts, file: &str) -> Option<Package> {
    if !facts.installed.dkms.is_empty() || file.starts_with("updates/dkms/") {
        return None;
    }
    let os = facts.os.id.as_str();
    let may_be =
        |package: &Package| package.of.is_empty() || package.of.iter().any(|id| os.starts_with(id));
    PACKAGES.into_iter().find(|package| may_be(package) && file.starts_with(package.place))
}

fn some(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let list = names.join(", ");
    if more > 0 { format!("{list} and {more} more") } else { list }
}

/// Finds drivers that the host loads by itself; only modules that modprobe can find are.
fn autoloads(facts: &HostFacts) -> Option<Finding> {
    let modules = host_modules(facts);
    if modules.is_empty() {
        return None;
    }
    let rules = &facts.autoload;
    let mut why = Vec::new();
    let by_device = modules.iter().filter(|(name, _)| !rules.kept_out.contains(name));
    let by_device: Vec<&str> =
        by_device.map(|(name, _)| name.as_str()).filter(|name| serves_device(name)).collect();
    if let Some(unread) = &facts.unread.autoload {
        why.push(format!("the blacklist for {} could not be read: {unread}", by_device.join(", ")));
    } else if !by_device.is_empty() {
        why.push(format!("udev loads {} when it finds the device", by_device.join(", ")));
    }
    let named = rules.at_boot.iter().filter(|rule| is_of_driver(&rule.module));
    why.extend(named.map(|rule| format!("{} names {}", rule.file.display(), rule.module)));
    if why.is_empty() {
        return None;
    }
    let options = rules.options.iter().filter(|rule| is_of_driver(&rule.module));
    why.extend(options.map(|rule| format!("{} gives `{}`", rule.file.display(), rule.text)));
    let names: Vec<String> =
        modules.iter().map(|(name, _)| format!("`blacklist {name}`")).collect();
    let remedy = format!(
        "prevent it: {} in /etc/modprobe.d and no such module in /etc/modules-load.d, then renew \
         the initramfs",
        names.join(", ")
    );
    Some(Finding::warning(Code::DriverAutoloads, why.join("; ")).remedy(remedy))
}

/// True for nvidia.ko, by any name: only it has the devices' aliases.
fn serves_device(module: &str) -> bool {
    let part = ["_uvm", "_modeset", "_drm", "_peermem", "_fs"];
    !part.iter().any(|part| module.ends_with(part))
}

#[cfg(test)]
mod tests;
