//! Selection of daemons, and the paths of their sockets.

use super::*;
use crate::config::Mode;
use crate::config::Reaction;
use crate::steps::StartDaemon;
use longshore_core::finding::Code;
use longshore_host::daemon::Daemon;
use longshore_host::facts::{DeviceKind, LiveDriver, SwitchManager};
use longshore_sources::userspace::switches::SwitchPrograms;

fn started(plan: &Plan) -> Vec<Daemon> {
    let starts = plan.install.iter().filter_map(StartDaemon::from_step);
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
            |_, _, catalog| catalog.apt.unread.push("a: timed out".into()),
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
    let private = format!("make directory {}", config.paths.daemons().display());
    assert_eq!(
        lines,
        [
            "mount a tmpfs on /run/nvidia/driver/run",
            &private,
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

/// A replaced file chooses the paths that a daemon with CAP_SYS_ADMIN writes to as root.
/// Sockets are for clients in containers; the driver root's `usr` is read-only.
#[rstest]
#[case::of_the_host("/run/longshore", false)]
#[case::through_the_hosts_root("/proc/1/root/run/longshore", false)]
#[case::shared_with_containers("/run/nvidia/longshore", true)]
fn no_settings_or_state_of_a_daemon_are_where_containers_write(
    #[case] state: &str,
    #[case] sealed: bool,
) {
    const SHARED: [&str; 3] =
        ["/run/nvidia", "/run/nvidia-fabricmanager", "/run/nvidia-persistenced"];
    const SOCKETS: [&str; 2] = ["UNIX_SOCKET_PATH", "FM_CMD_UNIX_SOCKET_PATH"];
    const IN_TREE: [&str; 2] = ["TOPOLOGY_FILE_PATH", "DATABASE_PATH"];
    let mut facts = facts(T4);
    facts.switch_managers.push(SwitchManager { name: "mlx5_4".into(), port: "0xb83f".into() });
    let mut catalog = stocked(&facts, Flavour::Proprietary);
    tools(&mut catalog, &["nvidia-persistenced", "nv-fabricmanager", "nvlsm"]);
    let mut config = config("535.261.03", "proprietary");
    config.paths.state = state.into();
    config.paths.sealed = sealed;
    let plan = plan(&config, &facts, &catalog).unwrap();
    let daemons = started(&plan);
    assert_eq!(daemons.len(), 3);
    for daemon in &daemons {
        let settings = daemon.settings.iter().flat_map(|settings| {
            let is_file = |key: &str| !SOCKETS.contains(&key) && !IN_TREE.contains(&key);
            let set = settings.set.iter().filter(move |(key, _)| is_file(key));
            let set = set.map(|(_, value)| PathBuf::from(value));
            set.chain([settings.file.clone()]).collect::<Vec<_>>()
        });
        let paths = daemon.arguments.iter().map(PathBuf::from).chain(settings);
        for path in paths.filter(|path| path.is_absolute()) {
            let shared = SHARED.iter().find(|dir| path.starts_with(dir));
            assert_eq!(shared, None, "{daemon}: {}", path.display());
        }
        let is_in_tree = |(key, value): &(String, String)| {
            !IN_TREE.contains(&key.as_str()) || value.starts_with("/run/nvidia/driver/usr/")
        };
        assert!(daemon.settings.iter().flat_map(|settings| &settings.set).all(is_in_tree));
    }
    let private = config.paths.daemons();
    let files: Vec<_> = daemons.iter().flat_map(Daemon::private_files).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    assert!(files.iter().all(|file| file.parent() == Some(&private)), "{files:?}");
    let lines: Vec<String> = plan.install.iter().map(ToString::to_string).collect();
    let at = |wanted: &str| lines.iter().position(|line| line == wanted).unwrap();
    assert!(at(&format!("make directory {}", private.display())) < at("start nvlsm"), "{lines:?}");
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
