//! Selection of daemons, and the paths of their sockets.

use super::*;
use crate::config::Mode;
use crate::config::Reaction;
use crate::steps::StartDaemon;
use longshore_build::source::userspace::switches::SwitchPrograms;
use longshore_core::finding::Code;
use longshore_host::daemon::Daemon;
use longshore_host::facts::{DeviceKind, LiveDriver, SwitchManager};

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
#[case(NVSWITCH, AUTO, Code::FabricManagerMissing, Severity::Refusal)]
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

/// Makes the catalog of a host whose store has no user-mode files, and whose archives have these fabric managers.
fn offering(versions: &[&str]) -> Catalog {
    let fabric_managers = versions.iter().map(|version| (*version).to_owned()).collect();
    let switch_programs = Probe::Read(SwitchPrograms { fabric_managers, subnet_manager: false });
    Catalog { switch_programs, ..archives() }
}

fn fabric_finding(config: &Config, facts: &HostFacts, catalog: &Catalog) -> Option<Finding> {
    let plan = plan(config, facts, catalog).unwrap();
    plan.findings.into_iter().find(|f| f.code == Code::FabricManagerMissing)
}

/// Changes a host with NVSwitches for a case.
type Change = fn(&mut Config, &mut HostFacts, &mut Catalog);
/// Name, daemons, change, severity of the finding and its text.
type Case = (&'static str, &'static [&'static str], Change, Option<Severity>, &'static str);

fn bind(facts: &mut HostFacts, kind: DeviceKind, driver: &str) {
    for device in facts.devices.iter_mut().filter(|device| device.kind == kind) {
        device.driver = Some(driver.to_owned());
    }
}

#[test]
fn a_fabric_manager_that_no_source_has_is_found_before_anything_is_fetched() {
    use Severity::{Refusal, Warning};
    let cases: [Case; 12] = [
        (
            "none",
            &[],
            |_, _, _| {},
            Some(Refusal),
            "there are 4 NVSwitches on the PCI bus, and no archive has nv-fabricmanager of driver 535.261.03",
        ),
        ("of another version", &["535.247.01"], |_, _, _| {}, Some(Refusal), ""),
        ("there", &["535.261.03"], |_, _, _| {}, None, ""),
        (
            "policy",
            &[],
            |c, _, _| c.daemons.fabric_manager_missing = Reaction::Warn,
            Some(Warning),
            "",
        ),
        ("off", &[], |c, _, _| c.daemons.fabricmanager = Mode::Off, None, ""),
        (
            "archives unread",
            &[],
            |_, _, catalog| catalog.switch_programs = Probe::Unreadable("not read".into()),
            None,
            "",
        ),
        (
            "one source unread",
            &[],
            |_, _, catalog| catalog.failures.unread.push("a: timed out".into()),
            Some(Warning),
            "these sources could not be read: a: timed out",
        ),
        (
            "switches passed through",
            &[],
            |_, f, _| bind(f, DeviceKind::NvSwitch, "vfio-pci"),
            Some(Warning),
            "",
        ),
        (
            "GPUs passed through",
            &[],
            |_, f, _| bind(f, DeviceKind::Gpu, "vfio-pci"),
            Some(Warning),
            "",
        ),
        (
            "the host's own",
            &[],
            |_, f, _| f.installed.services.push("nvidia-fabricmanager.service".into()),
            Some(Warning),
            "the host's nvidia-fabricmanager.service is enabled, and has to be of exactly this version",
        ),
        (
            "running",
            &[],
            |_, f, _| f.foreign_daemons.push("/run/nvidia-fabricmanager/socket".into()),
            None,
            "",
        ),
        (
            "loaded",
            &[],
            |_, f, _| {
                f.live_driver = Some(LiveDriver { version: "535.261.03".into(), flavour: None })
            },
            Some(Warning),
            "",
        ),
    ];
    for (name, offered, change, severity, said) in cases {
        let (mut config, mut facts) = (config("535.261.03", "proprietary"), facts(NVSWITCH));
        let mut catalog = offering(offered);
        change(&mut config, &mut facts, &mut catalog);
        let found = fabric_finding(&config, &facts, &catalog);
        assert_eq!(found.as_ref().map(|f| f.severity), severity, "{name}: {found:?}");
        let detail = found.map(|f| f.detail).unwrap_or_default();
        assert!(detail.contains(said), "{name}: {detail}");
    }
}

#[test]
fn versions_with_a_fabric_manager_are_named_newest_first() {
    let catalog = offering(&["535.247.01", "550.90.07", "9.1", "535.183.06", "470.82.01"]);
    let (config, facts) = (config("535.261.03", "proprietary"), facts(NVSWITCH));
    let found = fabric_finding(&config, &facts, &catalog).unwrap();
    let names =
        "select a driver version that has one (550.90.07, 535.247.01, 535.183.06, 470.82.01), or ";
    assert!(found.remedy.starts_with(names), "{}", found.remedy);
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
