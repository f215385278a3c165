//! SELinux labels of the driver's files, on a host that has it: steps, and labels of mounts.

use super::values::Reason;
use crate::config::Config;
use crate::steps::{LabelFiles, Step};
use longshore_core::finding::{Code, Finding, Severity};
use longshore_host::HostFacts;
use longshore_host::facts::Probe;
use longshore_host::facts::selinux::Selinux;
use longshore_modules::artifact::ModuleEntry;
use longshore_sources::userspace::AvailableUserspace;

/// Returns the label of the driver root's first level.
pub(super) fn of_root(facts: &HostFacts) -> Option<String> {
    label(facts, |selinux| &selinux.files)
}

/// Returns the label of the driver root's file systems for nodes and sockets.
pub(super) fn of_nodes(facts: &HostFacts) -> Option<String> {
    label(facts, |selinux| &selinux.nodes)
}

/// Labels the user-mode tree for containers.
pub(super) fn tree(facts: &HostFacts, tree: &AvailableUserspace) -> Option<Step> {
    let label = of_root(facts)?;
    Some(Step::LabelFiles(LabelFiles { paths: vec![tree.root.clone()], label }))
}

/// Labels the modules' files for the kernel, which then loads them as files.
pub(super) fn modules(
    config: &Config,
    facts: &HostFacts,
    modules: &[&ModuleEntry],
) -> Option<Step> {
    let label = label(facts, |selinux| &selinux.modules).filter(|_| !modules.is_empty())?;
    let blobs = config.paths.store.join("blobs/sha256");
    let paths = modules.iter().map(|module| blobs.join(&module.sha256)).collect();
    Some(Step::LabelFiles(LabelFiles { paths, label }))
}

fn label(facts: &HostFacts, of: fn(&Selinux) -> &Probe<String>) -> Option<String> {
    match of(facts.security.selinux.as_ref()?) {
        Probe::Read(label) => Some(label.clone()),
        Probe::Unreadable(_) => None,
    }
}

/// Names the labels that files cannot be given; a note where SELinux denies nothing.
pub(super) fn finding(facts: &HostFacts) -> Option<Finding> {
    let selinux = facts.security.selinux.as_ref()?;
    let missing = selinux.labels().into_iter().filter_map(|(of, label)| match label {
        Probe::Read(_) => None,
        Probe::Unreadable(why) => Some(format!("{of}: {why}")),
    });
    let missing: Vec<String> = missing.collect();
    let severity = if selinux.enforcing { Severity::Warning } else { Severity::Note };
    let detail = || format!("the driver's files get no SELinux label ({})", missing.join("; "));
    (!missing.is_empty()).then(|| Finding::new(severity, Code::FilesUnlabelled, detail()))
}

/// Names SELinux's mode and the labels.
pub(super) fn reason(facts: &HostFacts) -> Option<Reason> {
    let selinux = facts.security.selinux.as_ref()?;
    let mode = if selinux.enforcing { "enforcing" } else { "permissive" };
    let known = selinux.labels().into_iter().filter_map(|(of, label)| match label {
        Probe::Read(label) => Some(format!("{of} {label}")),
        Probe::Unreadable(_) => None,
    });
    let known: Vec<String> = known.collect();
    let reason = match known.as_slice() {
        [] => "the host's policy has no labels for containers".to_owned(),
        known => format!("labels of the host's policy: {}", known.join(", ")),
    };
    Some(Reason::chosen("SELinux", mode, reason))
}
