//! Selection of daemons, and the paths of their sockets.

use super::*;
use crate::config::Mode;
use crate::steps::StartDaemon;
use longshore_core::finding::Code;
use longshore_host::daemon::Daemon;
use longshore_host::facts::SwitchManager;

fn started(plan: &Plan) -> Vec<Daemon> {
    let starts = plan.install.iter().filter_map(StartDaemon::of);
    starts.map(|start| start.daemon.clone()).collect()
}

fn names(plan: &Plan) -> Vec<String> {
    started(plan).into_iter().map(|daemon| daemon.name).collect()
}

fn tools(catalog: &mut Catalog, names: &[&str]) {
    catalog.userspace[0].tools = names.iter().map(|name| (*name).to_owned()).collect();
}

/// Makes a plan for a host of `tree` whose user-mode files have `programs`.
fn planned(tree: &str, programs: &[&str], modes: [Mode; 2]) -> Plan {
    let facts = facts(tree);
    let mut catalog = stocked(&facts, Flavour::Proprietary);
    tools(&mut catalog, programs);
    let mut config = config("535.261.03", "proprietary");
    [config.daemons.persistenced, config.daemons.fabricmanager] = modes;
    plan(&config, &facts, &catalog).unwrap()
}

const AUTO: [Mode; 2] = [Mode::Auto, Mode::Auto];
const T4: &str = "bookworm-t4";
const NVSWITCH: &str = "bookworm-h100-nvswitch";

#[rstest]
#[case(T4, &["nvidia-persistenced", "nv-fabricmanager"], AUTO, &["nvidia-persistenced"])]
#[case(T4, &["nvidia-smi"], AUTO, &[])]
#[case(T4, &["nvidia-persistenced"], [Mode::Off, Mode::Auto], &[])]
#[case(T4, &["nv-fabricmanager"], [Mode::Auto, Mode::On], &["nv-fabricmanager"])]
#[case(
    NVSWITCH,
    &["nvidia-persistenced", "nv-fabricmanager"],
    AUTO,
    &["nvidia-persistenced", "nv-fabricmanager"]
)]
#[case(NVSWITCH, &["nv-fabricmanager"], [Mode::Auto, Mode::Off], &[])]
fn daemons_are_started_where_there_is_a_use_for_them(
    #[case] tree: &str,
    #[case] programs: &[&str],
    #[case] modes: [Mode; 2],
    #[case] wanted: &[&str],
) {
    let plan = planned(tree, programs, modes);
    assert_eq!(names(&plan), wanted);
    assert_eq!(why(&plan, "daemon").is_empty(), wanted.is_empty());
}

#[test]
fn a_daemon_comes_after_all_else_but_the_spec_and_clients_see_its_socket_below_the_driver_root() {
    let plan = planned(T4, &["nvidia-persistenced"], AUTO);
    let nodes = plan.install.iter().position(|s| matches!(s, Step::MakeNodes(_))).unwrap();
    let lines: Vec<String> = plan.install[nodes + 2..].iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "mount a tmpfs on /run/nvidia/driver/run",
            "make directory /run/nvidia/driver/run/nvidia-persistenced",
            "make directory /run/nvidia-persistenced",
            "bind-mount /run/nvidia/driver/run/nvidia-persistenced on /run/nvidia-persistenced",
            "start nvidia-persistenced",
            "publish the CDI spec /var/run/cdi/longshore-nvidia.com-gpu.json",
        ]
    );
    let daemon = started(&plan).remove(0);
    assert_eq!(daemon.program, Path::new("/run/nvidia/driver/usr/bin/nvidia-persistenced"));
    assert_eq!(daemon.libraries, Path::new("/run/nvidia/driver/usr/lib/x86_64-linux-gnu"));
    assert!(!daemon.required && daemon.capabilities.is_empty());
}

#[rstest]
#[case(T4, [Mode::On, Mode::Auto], Code::DaemonMissing, Severity::Refusal)]
#[case(T4, [Mode::Auto, Mode::On], Code::DaemonMissing, Severity::Refusal)]
#[case(NVSWITCH, AUTO, Code::FabricManagerMissing, Severity::Warning)]
fn one_that_is_wanted_and_not_there_is_found(
    #[case] tree: &str,
    #[case] modes: [Mode; 2],
    #[case] code: Code,
    #[case] severity: Severity,
) {
    let plan = planned(tree, &[], modes);
    assert!(names(&plan).is_empty());
    assert!(codes(&plan, severity).contains(&code.as_str()), "{:?}", plan.findings);
}

#[test]
fn on_nvlink5_the_subnet_manager_is_started_first_and_both_get_the_port() {
    let mut facts = facts(T4);
    let port = "0xb83fd20300aabbcc".to_owned();
    facts.switch_managers.push(SwitchManager { name: "mlx5_4".into(), port: port.clone() });
    let mut catalog = stocked(&facts, Flavour::Proprietary);
    let config = config("535.261.03", "proprietary");
    tools(&mut catalog, &["nv-fabricmanager"]);
    let without = plan(&config, &facts, &catalog).unwrap();
    assert!(codes(&without, Severity::Refusal).contains(&"daemon-missing"));
    tools(&mut catalog, &["nv-fabricmanager", "nvlsm"]);
    let with = plan(&config, &facts, &catalog).unwrap();
    assert_eq!(names(&with), ["nvlsm", "nv-fabricmanager"]);
    for daemon in started(&with) {
        assert!(daemon.required && daemon.arguments.contains(&port), "{daemon:?}");
    }
    assert!(loads(&with).contains(&"ib_umad".to_owned()) == facts.available.has("ib_umad"));
    // One directory is mounted once, and each daemon's files exist before it starts.
    let nodes = with.install.iter().position(|s| matches!(s, Step::MakeNodes(_))).unwrap();
    let lines: Vec<String> = with.install[nodes + 2..].iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "mount a tmpfs on /run/nvidia/driver/run",
            "make directory /run/nvidia/driver/run/nvidia-fabricmanager",
            "make directory /run/nvidia-fabricmanager",
            "bind-mount /run/nvidia/driver/run/nvidia-fabricmanager on /run/nvidia-fabricmanager",
            "make directory /usr/share/nvidia/nvlsm",
            "bind-mount /run/nvidia/driver/usr/share/nvidia/nvlsm on /usr/share/nvidia/nvlsm",
            "start nvlsm",
            "start nv-fabricmanager",
            "publish the CDI spec /var/run/cdi/longshore-nvidia.com-gpu.json",
        ]
    );
}

#[test]
fn somebody_elses_daemon_is_left_alone_and_named() {
    let mut facts = facts(T4);
    facts.foreign_daemons.push("/run/nvidia-persistenced/socket".into());
    let mut catalog = stocked(&facts, Flavour::Proprietary);
    tools(&mut catalog, &["nvidia-persistenced"]);
    let plan = plan(&config("535.261.03", "proprietary"), &facts, &catalog).unwrap();
    assert!(names(&plan).is_empty());
    assert_eq!(codes(&plan, Severity::Note), ["daemon-foreign"]);
}
