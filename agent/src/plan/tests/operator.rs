//! Plans under NVIDIA's GPU operator.

use super::*;
use crate::config::OperatorConfig;
use crate::steps::{StartDaemon, WriteStatus};

const TREE: &str = "bookworm-t4";

fn under_operator(operator: OperatorConfig) -> (Config, Plan) {
    let mut config = config("535", "auto");
    config.operator = OperatorConfig { enabled: true, ..operator };
    let plan = plan(&config, &facts(TREE), &archives()).unwrap();
    (config, plan)
}

fn codes(plan: &Plan) -> Vec<Code> {
    plan.findings.iter().map(|finding| finding.code).collect()
}

#[test]
fn the_driver_is_announced_after_all_other_steps() {
    let digest = Some("2166136261".to_owned());
    let (_, with) = under_operator(OperatorConfig { digest, ..OperatorConfig::default() });
    let (_, without) = under_operator(OperatorConfig::default());
    let none = plan(&config("535", "auto"), &facts(TREE), &archives()).unwrap();
    let lines = |plan: &Plan| -> Vec<(usize, String)> {
        let all = plan.install.iter().enumerate();
        all.filter_map(|(at, step)| Some((at, WriteStatus::from_step(step)?.to_string()))).collect()
    };
    let status = "/run/nvidia/validations/.driver-daemons-status";
    let first = (0, format!("write NotReady to {status}"));
    let ready = |plan: &Plan, back| (plan.install.len() - back, format!("write Ready to {status}"));
    let stored = "write 2166136261 to /run/nvidia/nvidia-driver.state".to_owned();
    let last = (with.install.len() - 1, stored.clone());
    assert_eq!(lines(&with), [first.clone(), ready(&with, 2), last]);
    assert_eq!(lines(&without), [first, ready(&without, 1)]);
    assert_eq!(lines(&none), []);
    assert!(render(&with, &facts(TREE)).contains(&stored));
    assert_eq!(with.install.len(), none.install.len() + 3);
}

#[rstest]
#[case::gds(OperatorConfig { gds: true, ..OperatorConfig::default() }, None)]
#[case::gdrcopy(OperatorConfig { gdrcopy: true, ..OperatorConfig::default() }, None)]
#[case::vgpu(OperatorConfig { vgpu: true, ..OperatorConfig::default() }, Some(Code::VgpuUnsupported))]
#[case::nothing(OperatorConfig::default(), None)]
fn settings_without_effect_are_told(
    #[case] operator: OperatorConfig,
    #[case] wanted: Option<Code>,
) {
    let all = [Code::DriverSourcesMissing, Code::VgpuUnsupported, Code::DrmUnderOperator];
    let (_, plan) = under_operator(operator);
    let found: Vec<Code> = codes(&plan).into_iter().filter(|code| all.contains(code)).collect();
    assert_eq!(found, wanted.into_iter().collect::<Vec<_>>());
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
}

#[test]
fn nvidia_drm_is_warned_of_under_the_operator_alone() {
    let mut config = config("535", "auto");
    config.driver.extra_modules = vec!["nvidia_drm".to_owned()];
    for enabled in [true, false] {
        config.operator.enabled = enabled;
        let plan = plan(&config, &facts(TREE), &archives()).unwrap();
        assert_eq!(codes(&plan).contains(&Code::DrmUnderOperator), enabled);
    }
}

#[test]
fn the_plan_names_openshift_and_the_digest() {
    let openshift = Some("4.19".to_owned());
    let (_, plan) = under_operator(OperatorConfig { openshift, ..OperatorConfig::default() });
    let text = render(&plan, &facts(TREE));
    assert!(text.contains("GPU operator OpenShift 4.19"), "{text}");
}

#[test]
fn values_of_the_fabric_manager_reach_its_settings() {
    let facts = facts("bookworm-h100-nvswitch");
    let mut catalog = stocked(&facts, Flavour::Proprietary);
    catalog.userspace[0].tools = vec!["nv-fabricmanager".to_owned()];
    let mut config = config("535.261.03", "proprietary");
    config.operator.fabric.insert("FABRIC_MODE".to_owned(), "1".to_owned());
    let plan = plan(&config, &facts, &catalog).unwrap();
    let daemon = plan.install.iter().find_map(StartDaemon::from_step).unwrap().daemon.clone();
    let set = daemon.settings.unwrap().set;
    assert!(set.contains(&("FABRIC_MODE".to_owned(), "1".to_owned())), "{set:?}");
}
