//! SELinux labels of the driver's files.

use super::*;
use crate::steps::{LabelFiles, MountRoot, MountTmpfs};
use longshore_host::facts::selinux::Selinux;

const FILES: &str = "system_u:object_r:container_ro_file_t:s0";
const NODES: &str = "system_u:object_r:container_file_t:s0";
const MODULES: &str = "system_u:object_r:modules_object_t:s0";

fn read(label: &str) -> Probe<String> {
    Probe::Read(label.to_owned())
}

fn unknown() -> Probe<String> {
    Probe::Unreadable("the loaded policy has no a:b:c".to_owned())
}

fn planned(enforcing: bool, labels: [Probe<String>; 3]) -> Plan {
    let mut facts = facts("bookworm-t4");
    let [files, nodes, modules] = labels;
    facts.security.selinux = Some(Selinux { enforcing, files, nodes, modules });
    let config = config("535.261.03", "proprietary");
    plan(&config, &facts, &stocked(&facts, Flavour::Proprietary)).unwrap()
}

/// Labels of a plan.
struct Labels {
    /// Number of paths and label of each step for files.
    files: Vec<(usize, String)>,
    root: Option<String>,
    nodes: Vec<Option<String>>,
}

fn labels(plan: &Plan) -> Labels {
    let files = plan.install.iter().filter_map(LabelFiles::from_step);
    let files = files.map(|step| (step.paths.len(), step.label.clone())).collect();
    let root =
        plan.install.iter().find_map(MountRoot::from_step).and_then(|step| step.label.clone());
    let nodes =
        plan.install.iter().filter_map(MountTmpfs::from_step).map(|step| step.label.clone());
    Labels { files, root, nodes: nodes.collect() }
}

#[test]
fn a_host_with_selinux_gets_every_label_before_its_use() {
    let plan = planned(true, [read(FILES), read(NODES), read(MODULES)]);
    let Labels { files, root, nodes } = labels(&plan);
    assert_eq!(files, [(3, MODULES.to_owned()), (1, FILES.to_owned())]);
    assert_eq!(root.as_deref(), Some(FILES));
    assert!(nodes.iter().all(|label| label.as_deref() == Some(NODES)), "{nodes:?}");
    let order: Vec<&str> = plan.install.iter().map(Step::kind).collect();
    let last = |kind: &str| order.iter().rposition(|it| *it == kind).unwrap();
    let first = |kind: &str| order.iter().position(|it| *it == kind).unwrap();
    assert!(last("label-files") < first("bind"), "{order:?}");
    let nvidia = |step: &Step| LoadModule::from_step(step).is_some_and(LoadModule::is_of_driver);
    assert!(first("label-files") < plan.install.iter().position(nvidia).unwrap(), "{order:?}");
    assert!(why(&plan, "SELinux enforcing").contains(MODULES));
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

#[rstest]
#[case::enforcing(true, Severity::Warning)]
#[case::permissive(false, Severity::Note)]
fn a_label_that_the_policy_lacks_is_left_out_and_said(
    #[case] enforcing: bool,
    #[case] severity: Severity,
) {
    let plan = planned(enforcing, [unknown(), unknown(), read(MODULES)]);
    let Labels { files, root, nodes } = labels(&plan);
    assert_eq!(files, [(3, MODULES.to_owned())]);
    assert!(root.is_none() && nodes.iter().all(Option::is_none));
    assert_eq!(codes(&plan, severity), ["files-unlabelled"]);
    assert!(plan.findings[0].detail.contains("files: the loaded policy has no a:b:c"));
}

#[test]
fn a_host_without_selinux_gets_none() {
    let facts = facts("bookworm-t4");
    let config = config("535.261.03", "proprietary");
    let plan = plan(&config, &facts, &stocked(&facts, Flavour::Proprietary)).unwrap();
    let Labels { files, root, nodes } = labels(&plan);
    assert!(files.is_empty() && root.is_none() && nodes.iter().all(Option::is_none));
    assert!(why(&plan, "SELinux").is_empty());
}
