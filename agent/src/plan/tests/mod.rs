//! Plans for every host tree.

mod capabilities;
mod cdi;
mod coherent;
mod daemons;
mod decisions;
mod distributions;
pub(super) mod finished;
mod in_tree;
mod json;
mod labels;
mod live;
mod mofed;
mod next_kernel;
mod operator;
mod prebuilt;
mod preflight;
mod reports;
mod run_files;
mod signing;
mod source_trees;
mod sources;
mod steps;
mod support;
mod whole;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::catalog::{AvailableSet, Item, Offers, SetPlace, SourceFailure};
use crate::config::{self, Fragment};
use crate::console::Form;
use crate::steps::{LoadModule, ModuleOrigin, Step};
use longshore_core::failure::FailureKind;
use longshore_core::finding::{Code, Severity};
use longshore_core::package_origin::PackageOrigin;
use longshore_core::source_id::SourceId;
use longshore_host::facts::{DeviceKind, FreeSpace, ModuleLoading, PciDevice, Probe};
use longshore_modules::artifact::{HeadersFrom, ModuleEntry, ModuleKey, ModuleSet};
use longshore_sources::driver::{AvailableDriver, DriverOrigin};
use longshore_sources::headers::AvailableHeaders;
use longshore_sources::userspace::AvailableUserspace;
use longshore_support::SupportTable;

/// Facts of a captured tree, on the day of the built-in support table.
pub(super) fn facts(tree: &str) -> HostFacts {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(tree);
    let today = Some(built_in().issued());
    HostFacts { today, ..HostFacts::read(&path, &path).unwrap() }
}

pub(super) fn built_in() -> &'static SupportTable {
    SupportTable::built_in().unwrap()
}

/// Configuration with a support table that has nothing against a driver: what it says is not what most tests are about.
pub(super) fn config(driver: &str, flavour: &str) -> Config {
    let mut config = judging(driver, flavour);
    config.support.table = Arc::new(built_in().without_judgements());
    config
}

/// Configuration with the built-in support table.
pub(super) fn judging(driver: &str, flavour: &str) -> Config {
    let flags = Fragment {
        driver: Some(driver.parse().unwrap()),
        flavour: Some(flavour.parse().unwrap()),
        ..Fragment::default()
    };
    let mut config = config::load(flags, &|_| None, None).unwrap();
    config.paths.root = PathBuf::from("/");
    config.paths.host_root = PathBuf::from("/");
    config
}

fn offered(version: &str, flavour: Flavour) -> AvailableDriver {
    AvailableDriver {
        version: version.into(),
        flavour,
        origin: DriverOrigin::Package {
            name: "nvidia-kernel-source".into(),
            version: format!("{version}-1"),
            origin: PackageOrigin::named("bookworm"),
        },
        sha256: "0".repeat(64),
    }
}

/// Returns a driver of a flat source of the host.
fn in_host_flat(version: &str, flavour: Flavour) -> AvailableDriver {
    let origin = DriverOrigin::Package {
        name: "nvidia-kernel-source-open".into(),
        version: format!("{version}-1ubuntu1"),
        origin: PackageOrigin {
            is_added: true,
            ..PackageOrigin::named("https://archive.example.com/cuda")
        },
    };
    AvailableDriver { origin, ..offered(version, flavour) }
}

/// Returns the drivers of all Debian suites together.
pub(super) fn archives() -> Catalog {
    use Flavour::{Open, Proprietary};
    catalog(vec![
        offered("570.133.20", Open),
        offered("570.133.20", Proprietary),
        offered("550.163.01", Open),
        offered("550.163.01", Proprietary),
        offered("535.261.03", Open),
        offered("535.261.03", Proprietary),
        offered("470.256.02", Proprietary),
    ])
}

fn catalog(drivers: Vec<AvailableDriver>) -> Catalog {
    Catalog {
        sets: Vec::new(),
        refused: Vec::new(),
        denied: Vec::new(),
        userspace: Vec::new(),
        drivers: Probe::Read(drivers),
        switch_programs: Probe::Unreadable("not read".into()),
        finished: Vec::new(),
        run_files: Probe::Read(Vec::new()),
        source_trees: Vec::new(),
        core_objects: Vec::new(),
        headers: Probe::Read(AvailableHeaders::Archive {
            package: "linux-headers-6.1.0-50-amd64".into(),
            version: "6.1.176-1".into(),
            compiler: Some("gcc-12".into()),
            passed_over: Vec::new(),
        }),
        mofed: Probe::Read(None),
        signer: None,
        no_sign_file: None,
        fits: BTreeMap::new(),
        failures: Vec::new(),
        apt: Default::default(),
    }
}

fn entry(name: &str, depends: &[&str]) -> ModuleEntry {
    ModuleEntry {
        name: name.into(),
        file: format!("{}.ko", name.replace('_', "-")),
        sha256: format!("{:0>64}", name.len()),
        size: 1,
        vermagic: "6.1.0-50-amd64 SMP preempt mod_unload modversions ".into(),
        version: Some("535.261.03".into()),
        srcversion: Some(format!("SRC{name}")),
        depends: depends.iter().map(|d| (*d).to_owned()).collect(),
    }
}

/// Makes a set for the kernel of `facts`, with the module dependencies of Debian 12's kernel.
pub(super) fn set(facts: &HostFacts, flavour: Flavour, place: SetPlace) -> AvailableSet {
    let key = ModuleKey {
        driver_version: "535.261.03".into(),
        flavour,
        driver_digest: "0".repeat(64),
        kernel_release: facts.kernel.release.clone(),
        kernel_version: facts.kernel.version.clone(),
        arch: facts.kernel.arch.clone(),
        headers: BTreeMap::new(),
        compiler: "gcc-12".into(),
        options: Vec::new(),
        patches: BTreeMap::new(),
        signed_by: None,
    };
    let modules = vec![
        entry("nvidia", &["drm"]),
        entry("nvidia_uvm", &["nvidia"]),
        entry("nvidia_modeset", &["nvidia", "video"]),
        entry("nvidia_drm", &["nvidia_modeset", "drm", "drm_kms_helper"]),
    ];
    AvailableSet { set: ModuleSet { key, headers_from: HeadersFrom::Archive, modules }, place }
}

fn stocked(facts: &HostFacts, flavour: Flavour) -> Catalog {
    let mut catalog = archives();
    catalog.sets.push(set(facts, flavour, SetPlace::store()));
    catalog.userspace.push(AvailableUserspace {
        driver_version: "535.261.03".into(),
        arch: "x86_64".into(),
        root: "/var/lib/longshore/userspace/x/root".into(),
        sources: None,
        tools: Vec::new(),
    });
    catalog
}

fn codes(plan: &Plan, severity: Severity) -> Vec<&str> {
    let of = plan.findings.iter().filter(|f| f.severity == severity);
    of.map(|f| f.code.as_str()).collect()
}

/// Formats a plan in lines that are never broken.
fn render(plan: &Plan, facts: &HostFacts) -> String {
    super::render(plan, facts, View { form: Form::UNBROKEN, steps: true, table: built_in() })
}

fn why(plan: &Plan, what: &str) -> String {
    let reason = plan.reasons.iter().find(|r| r.heading().starts_with(what));
    reason.map(|r| format!("{}: {}", r.heading(), r.reason)).unwrap_or_default()
}

fn loads(plan: &Plan) -> Vec<String> {
    let loads = plan.install.iter().filter_map(LoadModule::from_step);
    loads.map(|module| module.name.clone()).collect()
}
