//! Device nodes that a loaded driver needs. The kernel creates none of them itself.
//!
//! Majors, names and permissions are those of nvidia-modprobe-utils.c, of NVIDIA's nvidia-modprobe:
//! `mknod_helper` makes a node, or corrects its mode and owner, as a file of /proc specifies. The
//! fields it reads are `DeviceFileMode`, `DeviceFileUID`, `DeviceFileGID` and a permission to
//! change the node at all: `ModifyDeviceFiles`, or `DeviceFileModify` for a capability.
//!
//! - GPUs, nvidiactl, nvidia-modeset, IMEX channels: /proc/driver/nvidia/params (nv-procfs.c).
//! - NVSwitches: /proc/driver/nvidia-nvswitch/permissions, which has only a mode
//!   (procfs_nvswitch.c); nvidia-nvlink: the same below /proc/driver/nvidia-nvlink.
//! - Capabilities: the file of each, which also has its minor (nv-caps.c).
//! - nvidia-uvm: nvidia-modprobe reads no file for it and takes 0666. Here it has the permissions
//!   of the GPUs' nodes: it is useless without one of them, and must not have wider permissions.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::values::{Node, NodeKeeper, Owner, WantedNode};

const MAJOR: u32 = 195;
const CTL_MINOR: u32 = 255;
const MODESET_MINOR: u32 = 254;
const NVSWITCH_CTL_MINOR: u32 = 255;
const NVLINK_MINOR: u32 = 0;
const DEFAULT_MODE: u32 = 0o666;
const CAPABILITY_MODE: u32 = 0o400;
/// Mode of the umad devices of a subnet manager that runs as root: udev rules do not apply here.
const UMAD_MODE: u32 = 0o600;

/// File with the mode and owner of the GPUs' nodes.
const PARAMS: &str = "proc/driver/nvidia/params";
/// Directories with such a file for each kind of node of the fabric.
const NVSWITCH: &str = "proc/driver/nvidia-nvswitch";
const NVLINK: &str = "proc/driver/nvidia-nvlink";
/// Capabilities of the driver as a whole: files, or directories of such. Those of MIG instances
/// appear and disappear with the instances.
const CAPABILITIES: [&str; 3] = [
    "proc/driver/nvidia/capabilities/mig",
    "proc/driver/nvidia/capabilities/fabric-imex-mgmt",
    "proc/driver/nvidia-nvlink/capabilities/fabric-mgmt",
];
/// Devices through which subnet managers communicate (drivers/infiniband/core/user_mad.c).
const UMADS: &str = "sys/class/infiniband_mad";

/// Returns the character devices of `/proc/devices` below `root`: name -> major. A name that is
/// listed more than once (the kernel lists one line per range) keeps its last major.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn character_majors(root: &Path) -> io::Result<BTreeMap<String, u32>> {
    Ok(parse_majors(&fs::read_to_string(root.join("proc/devices"))?))
}

/// Returns the major numbers of the driver's own devices: NVIDIA's, and those that the kernel below
/// `root` has given to a part of the driver. Where they cannot be read, NVIDIA's alone.
pub fn driver_majors(root: &Path) -> Vec<u32> {
    let given = character_majors(root).unwrap_or_default();
    let given = given.into_iter().filter(|(name, _)| name.starts_with("nvidia"));
    let mut majors: Vec<u32> = given.map(|(_, major)| major).chain([MAJOR]).collect();
    majors.sort_unstable();
    majors.dedup();
    majors
}

/// Returns the mode of the GPUs' nodes by the parameters of the driver loaded below `root`; the
/// driver's default where none is loaded.
pub fn mode_of_driver(root: &Path) -> u32 {
    Permissions::read(&root.join(PARAMS), DEFAULT_MODE).mode
}

/// Returns the nodes that the driver loaded below `root` needs, with their names relative to a
/// /dev; none if no driver is loaded.
///
/// # Errors
/// If /proc/devices cannot be read.
pub fn wanted(root: &Path) -> io::Result<Vec<WantedNode>> {
    let majors = character_majors(root)?;
    let loaded = |module: &str| root.join("sys/module").join(module).join("refcnt").exists();
    let of_gpus = Permissions::read(&root.join(PARAMS), DEFAULT_MODE);
    let mut nodes = Nodes::default();
    if loaded("nvidia") {
        nodes.add("nvidiactl", MAJOR, CTL_MINOR, of_gpus);
        for minor in gpu_minors(root)? {
            nodes.add(&format!("nvidia{minor}"), MAJOR, minor, of_gpus);
        }
    }
    if loaded("nvidia_modeset") {
        nodes.add("nvidia-modeset", MAJOR, MODESET_MINOR, of_gpus);
    }
    if let Some(&major) = majors.get("nvidia-uvm") {
        nodes.add("nvidia-uvm", major, 0, of_gpus);
        nodes.add("nvidia-uvm-tools", major, 1, of_gpus);
    }
    if let Some(&major) = majors.get("nvidia-caps") {
        nodes.capabilities(root, major, of_gpus.keeper)?;
    }
    if let Some(&major) = majors.get("nvidia-caps-imex-channels")
        && creates_imex_channel(root)
    {
        nodes.add("nvidia-caps-imex-channels/channel0", major, 0, of_gpus);
    }
    nodes.fabric(root, &majors, loaded("nvidia"))?;
    Ok(nodes.0)
}

/// Mode, owner and keeper of a kind of node.
#[derive(Debug, Clone, Copy)]
struct Permissions {
    mode: u32,
    owner: Owner,
    keeper: NodeKeeper,
}

impl Permissions {
    /// Reads them from a file of /proc; if it has none, `mode` and root.
    fn read(file: &Path, mode: u32) -> Self {
        Self::parse(&fs::read_to_string(file).unwrap_or_default(), mode)
    }

    fn parse(text: &str, mode: u32) -> Self {
        let id = |name| field(text, name).unwrap_or(0);
        let refused = |name| field(text, name).is_some_and(|modify| modify != 1);
        let keeper = match (refused("ModifyDeviceFiles"), refused("DeviceFileModify")) {
            (true, _) => NodeKeeper::Loader,
            (false, true) => NodeKeeper::Admin,
            (false, false) => NodeKeeper::Installer,
        };
        Self {
            mode: field(text, "DeviceFileMode").unwrap_or(mode) & 0o777,
            owner: Owner { uid: id("DeviceFileUID"), gid: id("DeviceFileGID") },
            keeper,
        }
    }
}

#[derive(Default)]
struct Nodes(Vec<WantedNode>);

impl Nodes {
    fn add(&mut self, name: &str, major: u32, minor: u32, permissions: Permissions) {
        let Permissions { mode, owner, keeper } = permissions;
        let node = Node { major, minor, mode, owner };
        self.0.push(WantedNode { name: PathBuf::from(name), node, keeper });
    }

    /// Adds the capabilities' nodes. libnvidia-ml and the fabric's daemons make them when root
    /// first uses them; the agent makes them itself, so that it can remove them.
    ///
    /// Their files take `DeviceFileModify` from the driver's own parameter (nv-caps.c).
    fn capabilities(&mut self, root: &Path, major: u32, of_driver: NodeKeeper) -> io::Result<()> {
        for place in CAPABILITIES {
            for capability in files(&root.join(place))? {
                let Ok(text) = fs::read_to_string(capability) else { continue };
                let Some(minor) = field(&text, "DeviceFileMinor") else { continue };
                let mut permissions = Permissions::parse(&text, CAPABILITY_MODE);
                if of_driver == NodeKeeper::Loader {
                    permissions.keeper = NodeKeeper::Loader;
                }
                self.add(&format!("nvidia-caps/nvidia-cap{minor}"), major, minor, permissions);
            }
        }
        Ok(())
    }

    /// Adds the nodes that the fabric manager and the subnet manager open. NVLink5 switches are no
    /// devices of the driver: they are managed through umad devices.
    fn fabric(
        &mut self,
        root: &Path,
        majors: &BTreeMap<String, u32>,
        loaded: bool,
    ) -> io::Result<()> {
        let mut switches = 0;
        if let Some(&major) = majors.get("nvidia-nvswitch") {
            let permissions =
                Permissions::read(&root.join(NVSWITCH).join("permissions"), DEFAULT_MODE);
            switches = entries(&root.join(NVSWITCH).join("devices"))?.len();
            if switches > 0 {
                self.add("nvidia-nvswitchctl", major, NVSWITCH_CTL_MINOR, permissions);
            }
            for (minor, _) in (0..).zip(0..switches) {
                self.add(&format!("nvidia-nvswitch{minor}"), major, minor, permissions);
            }
        }
        let umads = if loaded { umads(root)? } else { Vec::new() };
        if let Some(&major) = majors.get("nvidia-nvlink")
            && (switches > 0 || !umads.is_empty())
        {
            let permissions =
                Permissions::read(&root.join(NVLINK).join("permissions"), DEFAULT_MODE);
            self.add("nvidia-nvlink", major, NVLINK_MINOR, permissions);
        }
        let (owner, keeper) = (Owner::default(), NodeKeeper::Kernel);
        for (name, major, minor) in umads {
            let permissions = Permissions { mode: UMAD_MODE, owner, keeper };
            self.add(&format!("infiniband/{name}"), major, minor, permissions);
        }
        Ok(())
    }
}

/// True if the driver is configured to have IMEX channel 0 (NVreg_CreateImexChannel0, nv-reg.h);
/// the administrator makes the others.
fn creates_imex_channel(root: &Path) -> bool {
    let params = fs::read_to_string(root.join(PARAMS)).unwrap_or_default();
    field(&params, "CreateImexChannel0") == Some(1)
}

/// Returns the umad devices: name, major, minor. The kernel makes their nodes in the host's
/// devtmpfs; the /dev of a container that was started before ib_umad was loaded has none.
fn umads(root: &Path) -> io::Result<Vec<(String, u32, u32)>> {
    let mut found = Vec::new();
    for dir in entries(&root.join(UMADS))? {
        let Some(name) = dir.file_name().and_then(|name| name.to_str()) else { continue };
        let number = name.strip_prefix("umad").unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let Ok(text) = fs::read_to_string(dir.join("dev")) else { continue };
        let Some((major, minor)) = text.trim().split_once(':') else { continue };
        if let (Ok(major), Ok(minor)) = (major.parse(), minor.parse()) {
            found.push((name.to_owned(), major, minor));
        }
    }
    found.sort();
    Ok(found)
}

fn parse_majors(text: &str) -> BTreeMap<String, u32> {
    let character = text.lines().skip_while(|line| !line.starts_with("Character devices"));
    let lines = character.skip(1).take_while(|line| !line.starts_with("Block devices"));
    lines
        .filter_map(|line| {
            let (major, name) = line.trim().split_once(' ')?;
            Some((name.trim().to_owned(), major.parse().ok()?))
        })
        .collect()
}

/// Returns the minors of the GPUs' nodes, in order.
fn gpu_minors(root: &Path) -> io::Result<Vec<u32>> {
    let mut minors: Vec<u32> = minors(root)?.into_values().collect();
    minors.sort_unstable();
    minors.dedup();
    Ok(minors)
}

/// Returns the `Device Minor` of every GPU that the driver below `root` drives, by its PCI address. A
/// GPU whose file has none is left out.
///
/// # Errors
/// If the driver's list of GPUs cannot be read.
pub fn minors(root: &Path) -> io::Result<BTreeMap<String, u32>> {
    let mut minors = BTreeMap::new();
    for gpu in entries(&root.join("proc/driver/nvidia/gpus"))? {
        let Some(address) = gpu.file_name().and_then(|name| name.to_str()) else { continue };
        let Ok(text) = fs::read_to_string(gpu.join("information")) else { continue };
        let minor = field(&text, "Device Minor");
        minors.extend(minor.map(|minor| (address.to_owned(), minor)));
    }
    Ok(minors)
}

/// Returns the number after `NAME:` in a file of such lines.
fn field(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().parse().ok())?
    })
}

/// Returns the file itself, or the files in the directory.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path.is_dir() { entries(path) } else { Ok(vec![path.to_path_buf()]) }
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n234 nvidia-nvswitch\n235 nvidia-nvlink\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n 99 nvidia-uvm\n";

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn names(root: &Path) -> Vec<String> {
        let text = |WantedNode { name, node, keeper }: &WantedNode| {
            let Node { major, minor, mode, owner } = node;
            let owner = match owner.is_root() {
                true => String::new(),
                false => format!(" {}:{}", owner.uid, owner.gid),
            };
            let keeper = match keeper {
                NodeKeeper::Installer => String::new(),
                other => format!(" {other:?}"),
            };
            format!("{} {major}:{minor} {mode:o}{owner}{keeper}", name.display())
        };
        wanted(root).unwrap().iter().map(text).collect()
    }

    #[test]
    fn a_driver_with_two_gpus_wants_these() {
        let dir = tree(&[
            ("proc/devices", DEVICES),
            ("sys/module/nvidia/refcnt", "2\n"),
            ("sys/module/nvidia_modeset/refcnt", "0\n"),
            ("proc/driver/nvidia/params", "Mobile: 4294967295\nDeviceFileMode: 438\n"),
            (
                "proc/driver/nvidia/gpus/0000:01:00.0/information",
                "Model: \t Tesla T4\nDevice Minor: \t 0\n",
            ),
            (
                "proc/driver/nvidia/gpus/0000:02:00.0/information",
                "Model: \t Tesla T4\nDevice Minor: \t 1\n",
            ),
            ("proc/driver/nvidia/gpus/0000:03:00.0/information", "Model: \t Unknown\n"),
        ]);
        assert_eq!(
            names(dir.path()),
            [
                "nvidiactl 195:255 666",
                "nvidia0 195:0 666",
                "nvidia1 195:1 666",
                "nvidia-modeset 195:254 666",
                "nvidia-uvm 511:0 666",
                "nvidia-uvm-tools 511:1 666",
            ]
        );
    }

    /// NVSwitches have their own permissions, independent of the GPUs'.
    #[test]
    fn an_nvswitch_host_wants_its_switches_and_what_its_fabric_manager_opens() {
        let dir = tree(&[
            ("proc/devices", &DEVICES.replace("511 nvidia-uvm", "511 nvidia-uvm\n240 nvidia-caps")),
            ("sys/module/nvidia/refcnt", "0\n"),
            ("proc/driver/nvidia/params", "DeviceFileMode: 432\n"),
            ("proc/driver/nvidia-nvswitch/permissions", "DeviceFileMode: 438\n"),
            ("proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information", ""),
            ("proc/driver/nvidia-nvlink/permissions", "DeviceFileMode: 384\n"),
            (
                "proc/driver/nvidia-nvlink/capabilities/fabric-mgmt",
                "DeviceFileMinor: 0\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
            ),
        ]);
        assert_eq!(
            names(dir.path()),
            [
                "nvidiactl 195:255 660",
                "nvidia-uvm 511:0 660",
                "nvidia-uvm-tools 511:1 660",
                "nvidia-caps/nvidia-cap0 240:0 400",
                "nvidia-nvswitchctl 234:255 666",
                "nvidia-nvswitch0 234:0 666",
                "nvidia-nvlink 235:0 600",
            ]
        );
    }

    /// A host with a single GPU gets no nodes of a fabric, to keep its attack surface small.
    #[test]
    fn an_nvlink5_host_wants_umads_that_the_kernel_keeps() {
        let umads = [
            (
                "proc/devices",
                "Character devices:\n195 nvidia\n235 nvidia-nvlink\n231 infiniband_mad\n",
            ),
            ("sys/class/infiniband_mad/umad0/dev", "231:0\n"),
            ("sys/class/infiniband_mad/umad12/dev", "231:12\n"),
            ("sys/class/infiniband_mad/issm0/dev", "231:64\n"),
            ("sys/class/infiniband_mad/umad/dev", "231:1\n"),
            ("sys/class/infiniband_mad/umad../dev", "1:1\n"),
            ("sys/class/infiniband_mad/umad7/dev", "nonsense\n"),
        ];
        let loaded = [umads.as_slice(), &[("sys/module/nvidia/refcnt", "0\n")]].concat();
        assert_eq!(
            names(tree(&loaded).path()),
            [
                "nvidiactl 195:255 666",
                "nvidia-nvlink 235:0 666",
                "infiniband/umad0 231:0 600 Kernel",
                "infiniband/umad12 231:12 600 Kernel",
            ]
        );
        assert!(names(tree(&umads).path()).is_empty(), "no driver is loaded");
    }

    #[rstest]
    #[case::group("DeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n", "660 0:44")]
    #[case::user("DeviceFileUID: 1000\nDeviceFileGID: 100\n", "666 1000:100")]
    #[case::odd_bits("DeviceFileMode: 2558\n", "776")]
    #[case::managed("ModifyDeviceFiles: 1\n", "666")]
    #[case::not_managed("ModifyDeviceFiles: 0\nDeviceFileGID: 44\n", "666 0:44 Loader")]
    #[case::unreadable("nonsense\nDeviceFileUID: -1\n", "666")]
    fn a_node_has_the_owner_and_mode_that_the_driver_was_given(
        #[case] params: &str,
        #[case] wanted: &str,
    ) {
        let dir = tree(&[
            ("proc/devices", "Character devices:\n195 nvidia\n"),
            ("sys/module/nvidia/refcnt", "0\n"),
            (PARAMS, params),
        ]);
        assert_eq!(names(dir.path()), [format!("nvidiactl 195:255 {wanted}")]);
    }

    #[rstest]
    #[case("CreateImexChannel0: 1\nDeviceFileGID: 44\n", &["channel0 507:0 666 0:44"])]
    #[case("CreateImexChannel0: 0\n", &[])]
    fn an_imex_channel_is_wanted_where_the_driver_is_to_have_it(
        #[case] params: &str,
        #[case] wanted: &[&str],
    ) {
        let devices = "Character devices:\n507 nvidia-caps-imex-channels\n";
        let dir = tree(&[("proc/devices", devices), (PARAMS, params)]);
        let wanted: Vec<String> =
            wanted.iter().map(|node| format!("nvidia-caps-imex-channels/{node}")).collect();
        assert_eq!(names(dir.path()), wanted);
    }

    #[test]
    fn a_driver_with_capabilities_wants_those_of_the_whole_host() {
        let dir = tree(&[
            ("proc/devices", "Character devices:\n243 nvidia-caps\n"),
            (
                "proc/driver/nvidia/capabilities/mig/config",
                "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
            ),
            (
                "proc/driver/nvidia/capabilities/mig/monitor",
                "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 0\n",
            ),
            (
                "proc/driver/nvidia/capabilities/fabric-imex-mgmt",
                "DeviceFileMinor: 4323\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
            ),
            ("proc/driver/nvidia/capabilities/mig/other", "nonsense\n"),
        ]);
        let mut names = names(dir.path());
        names.sort();
        assert_eq!(
            names,
            [
                "nvidia-caps/nvidia-cap1 243:1 400",
                "nvidia-caps/nvidia-cap2 243:2 444 Admin",
                "nvidia-caps/nvidia-cap4323 243:4323 400",
            ]
        );
    }

    #[test]
    fn no_driver_wants_nothing() {
        let dir = tree(&[("proc/devices", "Character devices:\n  1 mem\n")]);
        assert!(names(dir.path()).is_empty());
        assert!(wanted(Path::new("/nonexistent")).is_err());
    }
}
