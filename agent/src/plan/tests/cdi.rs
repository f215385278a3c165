//! The CDI spec, the links to nodes, and the keeper of nodes.

use super::*;
use crate::config::CdiSpecs;
use crate::steps::{LinkNodes, MakeNodes, PublishSpec, WriteFeatures};
use longshore_host::facts::mounts;
use longshore_host::facts::{LoadedModule, Mount};

fn planned(change: impl FnOnce(&mut Config, &mut HostFacts)) -> Plan {
    let (mut config, mut facts) = (config("535", "auto"), facts("bookworm-t4"));
    change(&mut config, &mut facts);
    plan(&config, &facts, &stocked(&facts, Flavour::Open)).unwrap()
}

fn mount(target: &str, fstype: &str) -> Mount {
    let line = format!("36 35 98:0 / {target} rw - {fstype} source rw");
    mounts::parse(line.as_bytes()).remove(0)
}

#[test]
fn the_spec_is_the_last_step_and_the_links_follow_the_nodes() {
    let plan = planned(|_, _| {});
    let spec = plan.install.last().and_then(PublishSpec::from_step).expect("the spec last");
    assert_eq!(spec.host_root, Path::new("/"));
    assert_eq!(spec.driver_root, Path::new("/run/nvidia/driver"));
    let at = |is: fn(&Step) -> bool| plan.install.iter().position(is).unwrap();
    let nodes = at(|step| MakeNodes::from_step(step).is_some());
    assert_eq!(at(|step| LinkNodes::from_step(step).is_some()), nodes + 1);
    let text = render(&plan, &facts("bookworm-t4"));
    assert!(text.contains("NVreg_ModifyDeviceFiles=0"), "{text}");
    let published = "publish the CDI spec /var/run/cdi/longshore-nvidia.com-gpu.json";
    assert!(text.contains(published), "{text}");
}

#[test]
fn the_features_file_is_planned_where_it_is_wanted() {
    let written = |wanted: bool| {
        let plan = planned(|config, _| config.cluster.features_file = wanted);
        let step = plan.install.iter().find_map(WriteFeatures::from_step).cloned();
        assert_eq!(render(&plan, &facts("bookworm-t4")).contains("features.d/longshore"), wanted);
        step
    };
    assert_eq!(written(false), None);
    let step = written(true).expect("a step");
    assert!(step.version.starts_with("535.") && step.flavour == "open", "{step:?}");
}

#[rstest]
#[case::off(|config: &mut Config, _: &mut HostFacts| config.cdi_spec = CdiSpecs::Off, "", false)]
#[case::no_gpu(|_: &mut Config, facts: &mut HostFacts| {
    facts.devices.iter_mut().for_each(|device| device.kind = DeviceKind::NvSwitch);
}, "", false)]
#[case::in_a_container(|_: &mut Config, facts: &mut HostFacts| {
    facts.mounts = vec![mount("/", "overlay"), mount("/dev", "tmpfs")];
}, "/var/run/cdi is not in this container", false)]
#[case::without_the_hosts_dev(|_: &mut Config, facts: &mut HostFacts| {
    facts.mounts =
        vec![mount("/", "overlay"), mount("/dev", "tmpfs"), mount("/run/cdi", "tmpfs")];
}, "/dev of this container is not the host's", false)]
#[case::by_volumes(|_: &mut Config, facts: &mut HostFacts| {
    facts.mounts =
        vec![mount("/", "overlay"), mount("/dev", "devtmpfs"), mount("/var/run/cdi", "tmpfs")];
}, "", true)]
#[case::through_process_1(|config: &mut Config, facts: &mut HostFacts| {
    config.paths.host_root = "/proc/1/root".into();
    facts.mounts = vec![mount("/", "overlay"), mount("/dev", "tmpfs")];
}, "", true)]
fn the_spec_is_planned_where_it_can_be_published(
    #[case] change: fn(&mut Config, &mut HostFacts),
    #[case] finding: &str,
    #[case] published: bool,
) {
    let plan = planned(change);
    assert_eq!(plan.install.iter().any(|step| PublishSpec::from_step(step).is_some()), published);
    let found = plan.findings.iter().find(|found| found.code == Code::CdiUnpublished);
    assert_eq!(found.is_none(), finding.is_empty(), "{found:?}");
    assert!(found.is_none_or(|found| found.detail.contains(finding)), "{found:?}");
    let reason = why(&plan, "CDI spec not published");
    assert_eq!(reason.is_empty(), published || !finding.is_empty(), "{reason}");
}

#[rstest]
#[case::by_default("", false, false, false)]
#[case::parameter("NVreg_ModifyDeviceFiles=0", false, false, true)]
#[case::other_parameter("NVreg_EnableMSI=1", false, false, false)]
#[case::loaded_by_another("", true, false, true)]
#[case::loaded_by_longshore("", true, true, false)]
fn nodes_are_left_to_the_administrator_where_longshore_did_not_decide_it(
    #[case] parameters: &str,
    #[case] loaded: bool,
    #[case] ours: bool,
    #[case] left: bool,
) {
    let plan = planned(|config, facts| {
        if !parameters.is_empty() {
            config.driver.parameters.insert("nvidia".into(), parameters.into());
        }
        if loaded {
            facts.loaded.insert("nvidia".into(), LoadedModule::default());
        }
        if ours {
            facts.ours.insert("nvidia".into(), String::new());
        }
    });
    let nodes = plan.install.iter().find_map(MakeNodes::from_step).unwrap();
    assert_eq!(nodes.left_to_admin, left);
    assert_eq!(plan.install.iter().any(|step| LinkNodes::from_step(step).is_some()), !left);
}

/// A driver that an older agent loaded without the parameter is the same driver.
#[test]
fn a_driver_without_the_parameter_is_not_loaded_again() {
    let plan = planned(|_, facts| {
        for name in ["nvidia", "nvidia_uvm", "nvidia_modeset"] {
            let live = LoadedModule {
                version: Some("535.261.03".into()),
                srcversion: Some(format!("SRC{name}")),
                parameters: [("NVreg_ModifyDeviceFiles".into(), "1".into())].into(),
                ..LoadedModule::default()
            };
            facts.loaded.insert(name.into(), live);
            facts.ours.insert(name.into(), String::new());
        }
    });
    assert!(plan.replaces.is_empty(), "{:?}", plan.replaces);
}
