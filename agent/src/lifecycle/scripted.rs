//! Plans and the simulated host for agents of tests.

use std::path::Path;

use crate::catalog::Catalog;
use crate::plan::{Plan, Replaced};
use crate::provider::Gathered;
use crate::steps::{
    Bind, LoadModule, MakeDir, MakeNodes, ModuleOrigin, MountRoot, MountSysfs, MountTmpfs, Step,
    WriteParameter,
};
use longshore_core::flavour::Flavour;
use longshore_host::HostFacts;
use longshore_host::fake::{FakeHost, FakeModule, FakeState};
use longshore_host::values::{Node, Owner};

/// Driver root.
pub const ROOT: &str = "/run/driver";
/// Parameter with the directory of the firmware.
pub const FIRMWARE: &str = "/sys/module/firmware_class/parameters/path";

/// Returns a host on which these drivers can be installed, by [`plan`]: their files are there, and their
/// modules can be loaded.
pub fn host(drivers: &[&str]) -> FakeHost {
    let dirs = ["/dev", "/run/driver/dev"].map(str::to_owned).into_iter();
    let dirs: Vec<_> = dirs.chain(drivers.iter().map(|v| format!("/store/{v}/usr"))).collect();
    let host = FakeHost::with_dirs(dirs.iter().map(String::as_str));
    host.change(|state| state.parameters.insert(FIRMWARE.into(), "/theirs".to_owned()));
    let node = Node { major: 195, minor: 255, mode: 0o666, owner: Owner::default() };
    let nodes = vec![("nvidiactl".into(), node)];
    host.knows("nvidia", FakeModule { nodes, ..FakeModule::default() });
    let depends = vec!["nvidia".to_owned()];
    host.knows("nvidia_uvm", FakeModule { depends, ..FakeModule::default() });
    host
}

/// Returns the loaded driver.
pub fn loaded_driver(state: &FakeState) -> Option<String> {
    let given = state.loaded.get("nvidia");
    given.map(|given| given.replace("NVreg_ModifyDeviceFiles=0 driver=", ""))
}

/// Returns any facts and no sources, where plans are made without them.
///
/// # Panics
/// Without /proc.
pub fn gathered() -> Gathered {
    let facts = HostFacts::read(Path::new("/"), Path::new("/")).expect("facts");
    Gathered { facts, catalog: Catalog::without_sources("not looked up"), plan: None }
}

/// Returns the loaded modules that the plan replaces or does not want, as the planner finds them
/// where all are ours.
pub fn replaced(state: &FakeState, plan: &Plan) -> Vec<Replaced> {
    let stays = |(name, given): (&String, &String)| {
        let mut loads = plan.install.iter().filter_map(LoadModule::from_step);
        loads.any(|module| module.name == *name && module.given() == *given)
    };
    let going = state.loaded.iter().filter(|loaded| !stays(*loaded));
    going
        .map(|(name, _)| Replaced { module: name.clone(), reason: format!("{name} is another") })
        .collect()
}

/// Returns the load of a driver's module: its version is a parameter, because the fake's modules
/// have none.
pub fn load(name: &str, version: &str) -> Step {
    Step::LoadModule(LoadModule {
        name: name.to_owned(),
        origin: ModuleOrigin::Driver { sha256: "0".repeat(64) },
        parameters: format!("driver={version}"),
        version: None,
        srcversion: None,
    })
}

/// Returns the plan for a driver. The fault of `refused` is its module, which no kernel takes.
pub fn plan(version: &str) -> Plan {
    planned(
        version,
        vec![
            Step::MountRoot(MountRoot { target: ROOT.into(), label: None }),
            show(version),
            Step::MountTmpfs(MountTmpfs { target: "/run/driver/dev".into(), label: None }),
            Step::MountSysfs(MountSysfs { target: "/run/driver/sys".into() }),
        ],
    )
}

/// Returns the mount of a directory of a driver's tree.
pub fn show(version: &str) -> Step {
    let source = format!("/store/{version}/usr").into();
    Step::Bind(Bind { source, target: "/run/driver/usr".into() })
}

/// Returns the plan for a driver with these mounts.
pub fn planned(version: &str, mounts: Vec<Step>) -> Plan {
    let mut install = vec![
        Step::MakeDir(MakeDir { path: ROOT.into() }),
        Step::WriteParameter(WriteParameter {
            path: FIRMWARE.into(),
            value: "/run/driver/fw".to_owned(),
        }),
        load("nvidia", version),
        load("nvidia_uvm", version),
    ];
    install.extend(mounts);
    install.push(Step::MakeNodes(MakeNodes { dirs: vec!["/dev".into()], left_to_admin: false }));
    let plan = Plan {
        driver_version: version.to_owned(),
        flavour: Flavour::Open,
        kernel_release: "6.1".to_owned(),
        reasons: Vec::new(),
        acquire: Vec::new(),
        replaces: Vec::new(),
        install,
        exact: true,
        undecided: false,
        idle: false,
        findings: Vec::new(),
        next_kernel: None,
    };
    if version == "refused" { with_refused_module(plan) } else { plan }
}

/// Returns a plan with a module that no kernel takes.
pub fn with_refused_module(mut plan: Plan) -> Plan {
    plan.install.insert(4, load("nvidia_refused", &plan.driver_version));
    plan
}
