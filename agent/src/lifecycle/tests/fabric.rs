//! Fabric manager and subnet manager on a host with NVLink5 switches, from the plan to sockets that
//! answer. Perl scripts stand in for both: each requires what the real one requires, and fails as
//! that does without it. Nothing is mounted: a link stands for each mount of a directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use rstest::rstest;

use super::*;
use crate::catalog::Catalog;
use crate::config::Fragment;
use crate::engine::{Engine, Stopped};
use crate::steps::{Share, StartDaemon};
use longshore_host::HostFacts;
use longshore_host::RealHost;
use longshore_host::facts::SwitchManager;
use longshore_sources::userspace::AvailableUserspace;

/// Stand-in for `nvlsm -F CONF -g GUID`: reads its settings, and those of the plugin that they name
/// by its absolute path, opens the umad device, and listens for the fabric manager.
const SUBNET_MANAGER: &str = r#"#!/usr/bin/perl
use strict; use Socket; my $s;
my ($root) = $0 =~ m{^(.*)/run/nvidia/driver/usr/bin/nvlsm$};
my %option = @ARGV;
($option{'-g'} // '') =~ /^0x[0-9a-f]{16}$/ or die "no port GUID\n";
open(my $conf, '<', "$root$option{'-F'}") or die "$option{'-F'}: $!\n";
my ($plugin) = map { /^plugin_options .*--config_file (\S+)/ } <$conf>;
open(my $grpc, '<', "$root$plugin") or die "grpc_mgr: $plugin: $!\n";
-c "$root/dev/infiniband/umad0" or die "umad_open_port: /dev/infiniband/umad0: $!\n";
my $path = sockaddr_un("$root/run/nvidia-fabricmanager/fm_sm_ipc.socket");
socket($s, PF_UNIX, SOCK_STREAM, 0) && bind($s, $path) && listen($s, 5) or die "bind: $!\n";
sleep 60;
"#;

/// Stand-in for `nv-fabricmanager -c CONF -g GUID`: makes nodes whose mode or owner is not right,
/// which takes CAP_MKNOD; queries the switches' driver, which takes CAP_SYS_ADMIN; connects to the
/// subnet manager; and listens for its clients.
const FABRIC_MANAGER: &str = r#"#!/usr/bin/perl
use strict; use Socket; my $s;
my ($root) = $0 =~ m{^(.*)/run/nvidia/driver/usr/bin/nv-fabricmanager$};
my %option = @ARGV;
open(my $conf, '<', "$root$option{'-c'}") or die "$option{'-c'}: $!\n";
my %set = map { /^([A-Z_]+)=(.*)$/ } <$conf>;
die "it would go to the background\n" if $set{DAEMONIZE};
open(my $status, '<', '/proc/self/status') or die "status: $!\n";
my ($caps) = map { /^CapEff:\s*([0-9a-f]+)/ } <$status>;
for (['nvidiactl', 0666], ['nvidia-nvlink', 0600], ['nvidia-caps/nvidia-cap0', 0400]) {
    my ($name, $mode) = @$_;
    my @there = stat("$root/dev/$name");
    next if @there && -c _ && ($there[2] & 07777) == $mode && !$there[4] && !$there[5];
    die "could not create device node $name\n" unless hex($caps) & 1 << 27;
}
hex($caps) & 1 << 21 or die "the switches want CAP_SYS_ADMIN\n";
if ($option{'-g'}) {
    my $path = sockaddr_un("$root/run/nvidia-fabricmanager/fm_sm_ipc.socket");
    socket($s, PF_UNIX, SOCK_STREAM, 0) && connect($s, $path) or die "failed to connect to NVLSM: $!\n";
}
my $path = sockaddr_un("$root$set{FM_CMD_UNIX_SOCKET_PATH}");
socket($s, PF_UNIX, SOCK_STREAM, 0) && bind($s, $path) && listen($s, 5) or die "bind: $!\n";
sleep 60;
"#;

const CAPABILITY: &str = "DeviceFileMinor: 0\nDeviceFileMode: 256\nDeviceFileModify: 1\n";

/// Files of the host: a loaded driver, and a device that manages switches.
const FILES: [(&str, &str); 8] = [
    ("proc/devices", "Character devices:\n195 nvidia\n235 nvidia-nvlink\n236 nvidia-caps\n"),
    ("sys/module/nvidia/refcnt", "0\n"),
    ("sys/class/infiniband_mad/umad0/dev", "231:0\n"),
    ("proc/driver/nvidia-nvlink/permissions", "DeviceFileMode: 384\n"),
    ("proc/driver/nvidia-nvlink/capabilities/fabric-mgmt", CAPABILITY),
    (
        "run/nvidia/driver/usr/share/nvidia/nvlsm/nvlsm.conf",
        "plugin_options -grpc_mgr --config_file /usr/share/nvidia/nvlsm/grpc_mgr.conf\n",
    ),
    ("run/nvidia/driver/usr/share/nvidia/nvlsm/grpc_mgr.conf", "\n"),
    ("run/nvidia/driver/usr/share/nvidia/nvswitch/fabricmanager.cfg", "DAEMONIZE=1\n"),
];

struct Fabric {
    dir: tempfile::TempDir,
    steps: Vec<Step>,
}

impl Fabric {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str, mode: u32| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        FILES.iter().for_each(|(path, text)| write(path, text, 0o644));
        for dev in ["dev", "run/nvidia/driver/dev"] {
            fs::create_dir(dir.path().join(dev)).unwrap();
        }
        write("run/nvidia/driver/usr/bin/nvlsm", SUBNET_MANAGER, 0o755);
        write("run/nvidia/driver/usr/bin/nv-fabricmanager", FABRIC_MANAGER, 0o755);
        Self { dir, steps: planned() }
    }

    /// Carries out the steps from the nodes on, and undoes them again.
    fn apply(&self) -> Result<(), Failure> {
        let host = RealHost::new(self.dir.path()).with_processes_below(Path::new("/"));
        let in_use_wait = InUseWait { deadline: Duration::from_secs(1), interval: Duration::ZERO };
        let telemetry = Telemetry::default();
        let engine = Engine {
            host: &host,
            images: &FakeImages,
            in_use_wait,
            telemetry: &telemetry,
            refuses_missing_gpus: false,
        };
        let mut steps = Vec::new();
        for step in &self.steps {
            match Share::from_step(step) {
                Some(Share { source, target }) => self.show(source, target),
                None => steps.push(step.clone()),
            }
        }
        let mut journal = Journal::in_memory();
        let applied = engine.apply(&steps, &mut journal, &CancelFlag::default());
        engine.undo(&mut journal).unwrap();
        match applied {
            Ok(()) => Ok(()),
            Err(Stopped::Failed(failure)) => Err(failure),
            Err(Stopped::Cancelled) => panic!("cancelled"),
        }
    }

    fn show(&self, source: &Path, target: &Path) {
        let at = |path: &Path| self.dir.path().join(path.strip_prefix("/").unwrap());
        let link = |to: std::path::PathBuf, at: std::path::PathBuf| {
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            symlink(to, at).unwrap();
        };
        // Settings are written through no link, so the directory is the one they are written to.
        if at(source).exists() {
            link(at(source), at(target));
        } else {
            fs::create_dir_all(at(target)).unwrap();
            link(at(target), at(source));
        }
    }
}

/// Returns the plan's steps from the nodes on, except mounts.
fn planned() -> Vec<Step> {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bookworm-t4");
    let mut facts = HostFacts::read(&fixture, &fixture).unwrap();
    let port = "0xb83fd20300aabbcc".to_owned();
    facts.switch_managers.push(SwitchManager { name: "mlx5_4".to_owned(), port });
    let mut config = crate::config::load(Fragment::default(), &|_| None, None).unwrap();
    config.driver.version = Some("535.261.03".to_owned());
    config.driver.flavour = Some(Flavour::Proprietary);
    config.paths.host_root = "/".into();
    let tools = ["nvlsm", "nv-fabricmanager"].map(str::to_owned).to_vec();
    let (driver_version, root) = ("535.261.03".to_owned(), "/store/tree".into());
    let tree = AvailableUserspace {
        driver_version,
        arch: "x86_64".to_owned(),
        root,
        sources: None,
        tools,
    };
    let catalog = Catalog { userspace: vec![tree], ..Catalog::without_sources("not looked up") };
    let plan = crate::plan::plan(&config, &facts, &catalog).unwrap();
    let nodes = plan.install.iter().position(|s| matches!(s, Step::MakeNodes(_))).unwrap();
    let steps = plan.install.into_iter().skip(nodes);
    steps.filter(|step| !matches!(step, Step::MountTmpfs(_))).collect()
}

fn is_of(step: &Step, name: &str) -> bool {
    matches!(step, Step::StartDaemon(StartDaemon { daemon }) if daemon.name == name)
}

#[test]
fn both_have_what_they_ask_for_in_the_order_they_ask_for_it() {
    let fabric = Fabric::new();
    fabric.apply().unwrap_or_else(|failure| panic!("{}", failure.report()));
    let left = fs::read_dir(fabric.dir.path().join("dev")).unwrap().count();
    assert_eq!(left, 0, "all that was made is taken off");
}

#[rstest]
#[case::no_umad(
    |fabric: &mut Fabric| fs::remove_dir_all(fabric.dir.path().join("sys/class")).unwrap(),
    "umad_open_port"
)]
#[case::settings_not_shown(
    |fabric: &mut Fabric| fabric.steps.retain(
        |step| !matches!(step, Step::Share(Share { target, .. }) if target.ends_with("nvlsm"))
    ),
    "/usr/share/nvidia/nvlsm/nvlsm.conf: No such file"
)]
#[case::the_fabric_manager_first(
    |fabric: &mut Fabric| {
        let at = |name: &str| fabric.steps.iter().position(|step| is_of(step, name)).unwrap();
        let (one, other) = (at("nvlsm"), at("nv-fabricmanager"));
        fabric.steps.swap(one, other);
    },
    "failed to connect to NVLSM"
)]
#[case::nodes_for_it_to_make(
    |fabric: &mut Fabric| {
        let nvlink = fabric.dir.path().join("proc/driver/nvidia-nvlink");
        fs::remove_dir_all(nvlink.join("capabilities")).unwrap();
    },
    "could not create device node nvidia-caps/nvidia-cap0"
)]
fn without_it_they_end_as_the_real_ones_do(#[case] without: fn(&mut Fabric), #[case] said: &str) {
    let mut fabric = Fabric::new();
    without(&mut fabric);
    let failure = fabric.apply().unwrap_err();
    assert_eq!(failure.code(), ExitCode::Expose);
    assert!(failure.report().contains(said), "{}", failure.report());
}
