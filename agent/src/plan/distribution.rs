//! Distributions that bring NVIDIA's driver themselves, and kernels that gcc's modules do not fit: told from
//! os-release and the kernel before anything is changed.

use super::signing;
use super::values::{Inputs, Supply};
use longshore_core::finding::{Code, Finding};
use longshore_host::HostFacts;
use longshore_host::facts::{OsRelease, Probe};
use longshore_modules::module_signing::Signer;
use longshore_sources::headers::AvailableHeaders;

/// A distribution that brings NVIDIA's driver itself.
struct Own {
    /// `ID` of its os-release.
    id: &'static str,
    name: &'static str,
    /// Reason why modules compiled here are no way.
    why: &'static str,
    /// Its own mechanism.
    mechanism: &'static str,
    /// True if modules compiled here are a way as long as the kernel requires no signature.
    compiles: bool,
}

const OWN: [Own; 5] = [
    Own {
        id: "cos",
        name: "Container-Optimized OS",
        why: "clang builds its kernel, and by default the kernel accepts modules of its own image only \
              (module.sig_enforce, LoadPin)",
        mechanism: "install Google's modules for exactly this image (`cos-extensions install gpu`; in GKE its \
                    driver installer)",
        compiles: false,
    },
    Own {
        id: "bottlerocket",
        name: "Bottlerocket",
        why: "its kernel is locked down, and accepts modules of its own build only",
        mechanism: "boot the -nvidia variant of this Bottlerocket, which links and loads its own modules at boot \
                    (driverdog)",
        compiles: false,
    },
    Own {
        id: "talos",
        name: "Talos",
        why: "its kernel accepts only modules signed with a key that is thrown away after each build",
        mechanism: "add Talos' system extensions for NVIDIA's modules, of exactly this Talos version, to the \
                    installation image, and name the modules in the machine configuration",
        compiles: false,
    },
    Own {
        id: "flatcar",
        name: "Flatcar under Secure Boot",
        why: "its kernel then accepts modules of Flatcar's own build only",
        mechanism: "use Flatcar's signed system extension (sysext) with NVIDIA's driver of exactly this version",
        compiles: true,
    },
    Own {
        id: "ubuntu-core",
        name: "Ubuntu Core",
        why: "kernel and modules come out of one signed snap, without headers",
        mechanism: "use a kernel snap that has NVIDIA's modules",
        compiles: false,
    },
];

/// Returns the distribution's name if it brings NVIDIA's driver itself, always or under Secure Boot.
pub(crate) fn brings_driver(os: &OsRelease) -> Option<&'static str> {
    own(os).map(|own| own.name)
}

fn own(os: &OsRelease) -> Option<&'static Own> {
    OWN.iter().find(|own| own.id == os.id)
}

/// Refuses modules that cannot be made for this host, or that its kernel would not accept. It is asked only where
/// modules are to be loaded: a driver that the host's own mechanism loaded is adopted.
pub(super) fn finding(inputs: Inputs<'_>, supply: &Supply<'_>) -> Option<Finding> {
    brought(inputs, supply).or_else(|| built_by_clang(inputs, supply))
}

fn brought(inputs: Inputs<'_>, supply: &Supply<'_>) -> Option<Finding> {
    let Inputs { facts, catalog, .. } = inputs;
    let own = own(&facts.os)?;
    let signer = catalog.signer.as_ref();
    let may_load = match supply.set {
        Some(set) => signing::standing(&set.key, facts, signer).may_load(),
        None => own.compiles && accepts_compiled(facts, signer),
    };
    // The store is never on the file system of an image, from which alone LoadPin accepts modules.
    let pinned = facts.security.load_pin == Probe::Read(true);
    if may_load && !pinned {
        return None;
    }
    let pinned = if pinned { "; LoadPin is enforced" } else { "" };
    let loaded = facts.live_driver.as_ref().map_or_else(String::new, |live| {
        format!("; driver {} is loaded, and not all of the wanted modules are", live.version)
    });
    let detail = format!("{} brings NVIDIA's driver itself: {}{pinned}{loaded}", own.name, own.why);
    let remedy = format!(
        "{}; longshore adopts the driver once it is loaded. A prebuilt set that this kernel accepts works as well",
        own.mechanism
    );
    Some(Finding::refusal(Code::HostBringsDriver, detail).remedy(remedy))
}

/// True if the kernel accepts modules compiled here. Under Secure Boot with an unknown lockdown mode it is taken
/// to require signatures, as the distributions' kernels do.
fn accepts_compiled(facts: &HostFacts, signer: Option<&Signer>) -> bool {
    let security = &facts.security;
    let locked = security.secure_boot == Probe::Read(true)
        && matches!(security.lockdown, Probe::Unreadable(_));
    signing::may_load_compiled(facts, signer) && (signer.is_some() || !locked)
}

/// A build root has a compiler of its own, which is compared with the kernel's when it is used.
fn built_by_clang(inputs: Inputs<'_>, supply: &Supply<'_>) -> Option<Finding> {
    let Inputs { facts, catalog, .. } = inputs;
    let in_root = matches!(catalog.headers, Probe::Read(AvailableHeaders::BuildRoot { .. }));
    if !supply.builds || in_root || !facts.kernel.is_built_by_clang() {
        return None;
    }
    let compiler = facts.kernel.compiler.as_deref().unwrap_or_default();
    let detail = format!("kernel {} was built by {compiler}", facts.kernel.release);
    Some(Finding::refusal(Code::KernelByClang, detail))
}

/// Distributions whose packages longshore does not read: `ID`s, and the contents of a build root.
const BY_BUILD_ROOT: [(&[&str], &str); 5] = [
    (
        &["rhel", "rhcos", "rocky", "almalinux", "ol", "centos", "fedora"],
        "kernel-devel-RELEASE, gcc and make (dnf install)",
    ),
    (
        &["amzn"],
        "kernel-devel of RELEASE (kernelX.Y-devel for kernels beside 6.1), gcc and make (dnf install)",
    ),
    (
        &["sles", "sles_sap", "sle-micro", "sl-micro", "opensuse-leap"],
        "kernel-default-devel of RELEASE (or of its flavour), gcc and make (zypper install)",
    ),
    (&["azurelinux", "mariner"], "kernel-devel-RELEASE, gcc and make (tdnf install)"),
    (
        &["flatcar"],
        "headers of RELEASE and compiler: the contents of its developer container of this version",
    ),
];

/// Replaces the remedy of a finding about missing headers where a build root is this distribution's way to them.
pub(super) fn with_build_root(finding: Finding, facts: &HostFacts) -> Finding {
    match build_root(&facts.os, &facts.kernel.release) {
        Some(way) => finding.remedy(format!("set build-root to {way}; or give a prebuilt set")),
        None => finding,
    }
}

fn build_root(os: &OsRelease, release: &str) -> Option<String> {
    // Since OpenShift 4.19 the ID of its nodes is rhel.
    if os.openshift_version.is_some() || os.id == "rhcos" {
        let tag = os.ostree_version.as_ref();
        let tag = tag.map_or_else(String::new, |tag| format!(", tag {tag}"));
        return Some(format!(
            "the driver toolkit of this OpenShift release, by its digest (`oc adm release info \
             --image-for=driver-toolkit`, or the ImageStream openshift/driver-toolkit{tag})"
        ));
    }
    // A distribution that is not named is built like the nearest that it names itself (ID_LIKE).
    let ids = std::iter::once(&os.id).chain(&os.id_like);
    let named = |id: &String| BY_BUILD_ROOT.iter().find(|(ids, _)| ids.contains(&id.as_str()));
    let (_, packages) = ids.into_iter().find_map(named)?;
    let packages = packages.replace("RELEASE", release);
    Some(format!(
        "an image, a directory or a tarball in which the distribution itself put {packages}"
    ))
}
