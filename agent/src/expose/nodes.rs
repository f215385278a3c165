//! Which device nodes a loaded driver wants. The kernel makes none of them itself.
//!
//! Majors and names as in nvidia-modprobe-utils.c of NVIDIA's nvidia-modprobe, permissions as
//! /proc/driver/nvidia/params (DeviceFileMode) says.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::host::verbs::Node;

const MAJOR: u32 = 195;
const CTL_MINOR: u32 = 255;
const MODESET_MINOR: u32 = 254;
const NVSWITCH_CTL_MINOR: u32 = 255;
const DEFAULT_MODE: u32 = 0o666;
const CAPABILITY_MODE: u32 = 0o400;

/// The character devices of `/proc/devices` below `root`: name -> major. A name that stands
/// there more than once (the kernel lists one line per range) keeps its last major.
///
/// # Errors
/// Where the file cannot be read.
pub fn character_majors(root: &Path) -> io::Result<BTreeMap<String, u32>> {
    Ok(parse_majors(&fs::read_to_string(root.join("proc/devices"))?))
}

/// The nodes that the driver live below `root` wants, with their names relative to a /dev; none
/// where no driver is loaded.
///
/// # Errors
/// Where /proc/devices cannot be read.
pub fn wanted(root: &Path) -> io::Result<Vec<(PathBuf, Node)>> {
    let majors = character_majors(root)?;
    let loaded = |module: &str| root.join("sys/module").join(module).join("refcnt").exists();
    let mode = device_file_mode(root);
    let mut nodes = Nodes { mode, all: Vec::new() };
    if loaded("nvidia") {
        nodes.add("nvidiactl", MAJOR, CTL_MINOR);
        for minor in gpu_minors(root)? {
            nodes.add(&format!("nvidia{minor}"), MAJOR, minor);
        }
    }
    if loaded("nvidia_modeset") {
        nodes.add("nvidia-modeset", MAJOR, MODESET_MINOR);
    }
    if let Some(&major) = majors.get("nvidia-uvm") {
        nodes.add("nvidia-uvm", major, 0);
        nodes.add("nvidia-uvm-tools", major, 1);
    }
    if let Some(&major) = majors.get("nvidia-caps") {
        // libnvidia-ml makes these when root first uses it; whoever makes them has to remove them.
        for capability in entries(&root.join("proc/driver/nvidia/capabilities/mig"))? {
            let Ok(text) = fs::read_to_string(capability) else { continue };
            if let Some(minor) = field(&text, "DeviceFileMinor") {
                let mode = field(&text, "DeviceFileMode").unwrap_or(CAPABILITY_MODE);
                let path = PathBuf::from(format!("nvidia-caps/nvidia-cap{minor}"));
                nodes.all.push((path, Node { major, minor, mode: mode & 0o777 }));
            }
        }
    }
    if let Some(&major) = majors.get("nvidia-nvswitch") {
        let switches = entries(&root.join("proc/driver/nvidia-nvswitch/devices"))?.len();
        if switches > 0 {
            nodes.add("nvidia-nvswitchctl", major, NVSWITCH_CTL_MINOR);
        }
        for (minor, _) in (0..).zip(0..switches) {
            nodes.add(&format!("nvidia-nvswitch{minor}"), major, minor);
        }
    }
    Ok(nodes.all)
}

struct Nodes {
    mode: u32,
    all: Vec<(PathBuf, Node)>,
}

impl Nodes {
    fn add(&mut self, name: &str, major: u32, minor: u32) {
        self.all.push((PathBuf::from(name), Node { major, minor, mode: self.mode }));
    }
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

/// The `Device Minor` of every GPU, in order. A GPU whose file tells none is left out.
fn gpu_minors(root: &Path) -> io::Result<Vec<u32>> {
    let mut minors = Vec::new();
    for gpu in entries(&root.join("proc/driver/nvidia/gpus"))? {
        let Ok(text) = fs::read_to_string(gpu.join("information")) else { continue };
        minors.extend(field(&text, "Device Minor"));
    }
    minors.sort_unstable();
    minors.dedup();
    Ok(minors)
}

fn device_file_mode(root: &Path) -> u32 {
    let params = fs::read_to_string(root.join("proc/driver/nvidia/params")).unwrap_or_default();
    field(&params, "DeviceFileMode").map_or(DEFAULT_MODE, |mode| mode & 0o777)
}

/// The number after `NAME:` in a file of such lines.
fn field(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().parse().ok())?
    })
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
        let text = |(name, node): &(PathBuf, Node)| {
            format!("{} {}:{} {:o}", name.display(), node.major, node.minor, node.mode)
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

    #[test]
    fn an_nvswitch_host_wants_its_switches_and_the_mode_that_was_set() {
        let dir = tree(&[
            ("proc/devices", DEVICES),
            ("sys/module/nvidia/refcnt", "0\n"),
            ("proc/driver/nvidia/params", "DeviceFileMode: 432\n"),
            ("proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information", ""),
        ]);
        assert_eq!(
            names(dir.path()),
            [
                "nvidiactl 195:255 660",
                "nvidia-uvm 511:0 660",
                "nvidia-uvm-tools 511:1 660",
                "nvidia-nvswitchctl 234:255 660",
                "nvidia-nvswitch0 234:0 660",
            ]
        );
    }

    #[test]
    fn a_driver_with_capabilities_wants_those_of_mig() {
        let dir = tree(&[
            ("proc/devices", "Character devices:\n243 nvidia-caps\n"),
            (
                "proc/driver/nvidia/capabilities/mig/config",
                "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
            ),
            (
                "proc/driver/nvidia/capabilities/mig/monitor",
                "DeviceFileMinor: 2\nDeviceFileMode: 292\n",
            ),
            ("proc/driver/nvidia/capabilities/mig/other", "nonsense\n"),
        ]);
        let mut names = names(dir.path());
        names.sort();
        assert_eq!(
            names,
            ["nvidia-caps/nvidia-cap1 243:1 400", "nvidia-caps/nvidia-cap2 243:2 444"]
        );
    }

    #[test]
    fn no_driver_wants_nothing() {
        let dir = tree(&[("proc/devices", "Character devices:\n  1 mem\n")]);
        assert!(names(dir.path()).is_empty());
        assert!(wanted(Path::new("/nonexistent")).is_err());
    }
}
