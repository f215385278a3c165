//! Installation steps, in order.

use std::path::{Path, PathBuf};

use super::preflight::has_hosts_dev;
use super::values::{Choice, Inputs, Supply};
use super::{conflicts, in_tree, labels, operator};
use crate::config::Config;
use crate::steps::{
    Bind, DEVICE_FILES, LinkNodes, LoadModule, MakeDir, MakeNodes, ModuleOrigin, MountRoot,
    MountSysfs, MountTmpfs, Step, TREE_DIRS, WriteParameter,
};
use longshore_core::finding::{Code, Finding};
use longshore_core::module_parameters;
use longshore_host::HostFacts;
use longshore_host::facts::places::FIRMWARE_PATH;
use longshore_modules::artifact::ModuleEntry;

/// The kernel's modules that NVIDIA's driver uses where they exist, even if no module depends on
/// them.
const ASSISTANTS: [&str; 2] = ["i2c_core", "ipmi_msghandler"];
/// The kernel's module that a subnet manager uses to reach its devices.
const MANAGEMENT: &str = "ib_umad";

/// Installation steps, their completeness, and findings.
#[derive(Debug, Default)]
pub(super) struct Install {
    pub(super) steps: Vec<Step>,
    pub(super) exact: bool,
    pub(super) findings: Vec<Finding>,
}

/// Lists the steps for the available set and tree.
pub(super) fn install(
    inputs: Inputs<'_>,
    choice: &Choice,
    supply: &Supply<'_>,
    wanted: &[&str],
) -> Install {
    let Inputs { config, facts, .. } = inputs;
    let root = &config.paths.driver_root;
    let mut install =
        Install { exact: !(supply.builds || supply.reads || supply.signs), ..Install::default() };
    install.steps.extend(operator::first(config));
    install.steps.extend(conflicts::take_over(config, facts));
    // A host with its own user-mode files has its firmware, too.
    if !config.modules_only {
        install.steps.push(Step::MakeDir(MakeDir { path: root.clone() }));
        install.steps.push(Step::WriteParameter(WriteParameter {
            path: PathBuf::from(FIRMWARE_PATH),
            value: root.join("lib/firmware").display().to_string(),
        }));
    }
    let entries = install.entries(choice, supply, wanted);
    install.loads_from_kernel(facts, choice, supply, &entries);
    install.steps.extend(labels::modules(config, facts, &entries));
    // Right before the load: no GPU is without a driver for longer than that.
    install.steps.extend(in_tree::steps(config, facts));
    for entry in &entries {
        install.steps.push(load(entry, config));
    }
    install.unused_parameters(config, wanted);
    if !config.modules_only {
        install.user_mode(config, facts, supply);
    }
    install.nodes(config, facts);
    install
}

impl Install {
    /// Returns the entries of the wanted modules, in the set's load order.
    fn entries<'a>(
        &mut self,
        choice: &Choice,
        supply: &Supply<'a>,
        wanted: &[&str],
    ) -> Vec<&'a ModuleEntry> {
        let Some(set) = supply.set else { return Vec::new() };
        let missing: Vec<&str> = wanted
            .iter()
            .copied()
            .filter(|name| !set.modules.iter().any(|m| m.name == *name))
            .collect();
        if !missing.is_empty() {
            let (Choice { version, flavour, .. }, missing) = (choice, missing.join(", "));
            let seen = format!("the set of {version} {flavour} lacks {missing}");
            self.findings.push(Finding::refusal(Code::ModuleNotBuilt, seen));
        }
        set.modules.iter().filter(|m| wanted.contains(&m.name.as_str())).collect()
    }

    /// Returns loads of the host's own modules: each after its dependencies, none that is built in
    /// or loaded already.
    fn loads_from_kernel(
        &mut self,
        facts: &HostFacts,
        choice: &Choice,
        supply: &Supply<'_>,
        entries: &[&ModuleEntry],
    ) {
        if choice.live && supply.set.is_none() && !supply.builds && !supply.reads {
            return;
        }
        // The subnet manager of NVLink5's switches needs it to reach them.
        let management = (!facts.switch_managers.is_empty()).then_some(MANAGEMENT);
        // No module of the driver depends on these, so a blacklist on this host is honoured.
        let is_wanted =
            |name: &&str| facts.available.has(name) && !facts.autoload.kept_out.contains(*name);
        let mut needed: Vec<&str> =
            ASSISTANTS.into_iter().chain(management).filter(is_wanted).collect();
        let own =
            |name: &str| supply.set.is_some_and(|set| set.modules.iter().any(|m| m.name == name));
        // The network driver brings those of a module that is loaded after it.
        let of_driver =
            entries.iter().filter(|entry| LoadModule::network_driver_of(&entry.name).is_none());
        let depends = of_driver.flat_map(|entry| {
            entry.depends.iter().map(move |need| (need.as_str(), entry.name.as_str()))
        });
        for (need, by) in depends.filter(|(need, _)| !own(need)) {
            if is_there(facts, need) {
                continue;
            } else if facts.available.has(need) {
                needed.push(need);
            } else {
                self.findings.push(missing_dependency(facts, need, by));
            }
        }
        for need in needed {
            self.load_with_needs(facts, need);
        }
    }

    fn load_with_needs(&mut self, facts: &HostFacts, name: &str) {
        let needs = facts.needs_of(name);
        let order = needs.iter().map(String::as_str).chain([name]);
        for name in order.filter(|name| !is_there(facts, name)) {
            let Some(module) = facts.available.get(name) else { continue };
            let step = Step::LoadModule(LoadModule {
                name: name.to_owned(),
                origin: ModuleOrigin::Kernel { file: module.path() },
                parameters: String::new(),
                version: None,
                srcversion: None,
            });
            if !self.steps.contains(&step) {
                self.steps.push(step);
            }
        }
    }

    fn unused_parameters(&mut self, config: &Config, wanted: &[&str]) {
        let given = config.driver.parameters.keys().map(String::as_str);
        let unused: Vec<&str> = given.filter(|name| !wanted.contains(name)).collect();
        if !unused.is_empty() {
            let unused = unused.join(", ");
            let seen = format!("parameters are given for {unused}, which is not loaded");
            self.findings.push(Finding::warning(Code::ParametersUnused, seen));
        }
    }

    fn user_mode(&mut self, config: &Config, facts: &HostFacts, supply: &Supply<'_>) {
        let root = &config.paths.driver_root;
        self.steps.extend(supply.userspace.and_then(|tree| labels::tree(facts, tree)));
        let label = labels::of_root(facts);
        self.steps.push(Step::MountRoot(MountRoot { target: root.clone(), label }));
        match supply.userspace {
            Some(tree) => self.steps.extend(TREE_DIRS.map(|dir| {
                Step::Bind(Bind { source: tree.root.join(dir), target: root.join(dir) })
            })),
            None => self.exact = false,
        }
        self.steps.push(Step::MountSysfs(MountSysfs { target: root.join("sys") }));
        let label = labels::of_nodes(facts);
        self.steps.push(Step::MountTmpfs(MountTmpfs { target: root.join("dev"), label }));
    }

    fn nodes(&mut self, config: &Config, facts: &HostFacts) {
        let root = &config.paths.driver_root;
        let host = config.paths.host_root.join("dev");
        let mut dirs = vec![host.clone()];
        let of_root = (!config.modules_only).then(|| root.join("dev"));
        for dir in [PathBuf::from("/dev")].into_iter().chain(of_root) {
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        if config.paths.is_captured() {
            dirs.retain(|dir| dir != Path::new("/dev"));
        }
        let left_to_admin = are_nodes_left(config, facts);
        self.steps.push(Step::MakeNodes(MakeNodes { dirs, left_to_admin }));
        if !left_to_admin && has_hosts_dev(config, facts) {
            self.steps.push(Step::LinkNodes(LinkNodes { dev: host }));
        }
    }
}

/// True if the driver's nodes in the host's /dev are the administrator's where it was loaded with
/// NVreg_ModifyDeviceFiles=0: a setting has that parameter, or another program loaded the driver.
fn are_nodes_left(config: &Config, facts: &HostFacts) -> bool {
    let given = config.driver.parameters.get("nvidia").map_or("", String::as_str);
    let is_given = module_parameters::split(given).iter().any(|(name, _)| *name == DEVICE_FILES);
    is_given || (facts.loaded.contains_key("nvidia") && !facts.ours.contains_key("nvidia"))
}

fn load(entry: &ModuleEntry, config: &Config) -> Step {
    Step::LoadModule(LoadModule {
        name: entry.name.clone(),
        origin: ModuleOrigin::Driver { sha256: entry.sha256.clone() },
        parameters: config.driver.parameters.get(&entry.name).cloned().unwrap_or_default(),
        version: entry.version.clone(),
        srcversion: entry.srcversion.clone(),
    })
}

fn is_there(facts: &HostFacts, name: &str) -> bool {
    facts.builtin.contains(name) || facts.loaded.contains_key(name)
}

fn missing_dependency(facts: &HostFacts, need: &str, by: &str) -> Finding {
    let release = &facts.kernel.release;
    let (code, seen) = match facts.unread.modules() {
        Some(why) => {
            (Code::KernelUnknown, format!("and the modules of kernel {release} are unknown: {why}"))
        }
        None => {
            let seen = format!("which kernel {release} has neither built in nor as a module");
            (Code::DependencyMissing, seen)
        }
    };
    Finding::refusal(code, format!("{by} needs {need}, {seen}"))
}
