//! Who holds the driver: the processes that have one of its devices open or mapped.
//!
//! A device is told by its number, not by its name: `/proc/PID/fd/N` and
//! `/proc/PID/map_files/RANGE` lead to the very file in whichever mount namespace the process has.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::{major, minor};

use super::verbs::DriverUser;
use crate::expose::nodes::character_majors;
use crate::input;

/// Major of the DRM devices (include/drm/drm.h and drivers/gpu/drm/drm_drv.c).
const DRM_MAJOR: u64 = 226;

/// How long the processes may take to look at. A file of theirs can lie on a network file system
/// that no longer answers, and whoever looks at it then waits as long as they do.
const LIMIT: Duration = Duration::from_secs(3);

/// As [`driver_users`], within a few seconds.
///
/// # Errors
/// As there, and where it took longer.
pub fn driver_users_in_time(root: &Path) -> io::Result<Vec<DriverUser>> {
    let root = root.to_path_buf();
    input::in_time("holders", LIMIT, move || driver_users(&root))
        .unwrap_or_else(|| Err(io::Error::from(Errno::ETIMEDOUT)))
}

/// The processes that hold a device of the driver, by process id. What may not be looked at, or
/// ends meanwhile, is left out.
///
/// # Errors
/// Where /proc cannot be listed, or /proc/devices cannot be read.
fn driver_users(root: &Path) -> io::Result<Vec<DriverUser>> {
    let devices = DriverDevices::read(root)?;
    let mut users = Vec::new();
    for entry in fs::read_dir(root.join("proc"))? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let held = devices.held_by(&entry.path());
        if !held.is_empty() {
            users.push(describe(pid, &entry.path(), held));
        }
    }
    users.sort_by_key(|user: &DriverUser| user.pid);
    Ok(users)
}

struct DriverDevices<'a> {
    root: &'a Path,
    majors: BTreeSet<u64>,
}

impl<'a> DriverDevices<'a> {
    fn read(root: &'a Path) -> io::Result<Self> {
        let devices = character_majors(root)?;
        let nvidia = devices.into_iter().filter(|(name, _)| name.starts_with("nvidia"));
        Ok(Self { root, majors: nvidia.map(|(_, major)| u64::from(major)).collect() })
    }

    fn held_by(&self, process: &Path) -> Vec<String> {
        let mut held = BTreeSet::new();
        for dir in ["fd", "map_files"] {
            let Ok(links) = fs::read_dir(process.join(dir)) else { continue };
            for link in links.flatten().map(|link| link.path()) {
                if fs::metadata(&link).is_ok_and(|file| self.has(&file)) {
                    held.insert(name_of(&link));
                }
            }
        }
        held.into_iter().collect()
    }

    fn has(&self, file: &Metadata) -> bool {
        if !file.file_type().is_char_device() {
            return false;
        }
        let (major, minor) = (major(file.rdev()), minor(file.rdev()));
        self.majors.contains(&major) || (major == DRM_MAJOR && self.is_nvidia_drm(minor))
    }

    fn is_nvidia_drm(&self, minor: u64) -> bool {
        let driver = format!("sys/dev/char/{DRM_MAJOR}:{minor}/device/driver");
        fs::read_link(self.root.join(driver))
            .is_ok_and(|link| link.file_name().is_some_and(|name| name == "nvidia"))
    }
}

fn name_of(link: &Path) -> String {
    fs::read_link(link).unwrap_or_else(|_| link.to_path_buf()).display().to_string()
}

fn describe(pid: u32, process: &Path, devices: Vec<String>) -> DriverUser {
    let read = |file: &str| fs::read_to_string(process.join(file)).unwrap_or_default();
    let (container, pod) = container_of(&read("cgroup"));
    DriverUser { pid, comm: read("comm").trim_end().to_owned(), container, pod, devices }
}

/// Container id and pod uid in a `/proc/PID/cgroup`.
///
/// Seen: `docker-ID.scope`, `cri-containerd-ID.scope`, `crio-ID.scope`, `libpod-ID.scope`, `ID`,
/// each below `kubepods...-podUID.slice` or `kubepods/.../podUID` in a pod.
fn container_of(cgroup: &str) -> (Option<String>, Option<String>) {
    let parts = || cgroup.lines().flat_map(|line| line.rsplit('/'));
    let container = parts().find_map(|part| {
        let id = part.trim_end_matches(".scope").rsplit(['-', ':']).next()?;
        let is_id = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
        is_id.then(|| id.to_owned())
    });
    let pod = parts().find_map(|part| {
        let uid = part.trim_end_matches(".slice");
        let uid = &uid[uid.rfind("pod").filter(|_| !uid.starts_with("kubepods.slice"))? + 3..];
        // systemd's slices write the dashes of the uid as underscores.
        let is_uid =
            uid.len() >= 32 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b"-_".contains(&b));
        is_uid.then(|| uid.replace('_', "-"))
    });
    (container, pod)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "8f3b2c1d-1111-2222-3333-444455556666";

    #[test]
    fn containers_and_pods_are_told_from_the_cgroup() {
        let under = POD.replace('-', "_");
        let some = |text: &str| Some(text.to_owned());
        let cases = [
            (format!("0::/system.slice/docker-{ID}.scope\n"), some(ID), None),
            (format!("0::/machine.slice/libpod-{ID}.scope/container\n"), some(ID), None),
            (format!("12:cpu:/docker/{ID}\n0::/\n"), some(ID), None),
            (
                format!(
                    "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under}.slice/cri-containerd-{ID}.scope\n"
                ),
                some(ID),
                some(POD),
            ),
            (format!("0::/kubepods/burstable/pod{POD}/{ID}\n"), some(ID), some(POD)),
            (format!("0::/kubepods-pod{under}.slice:cri-containerd:{ID}\n"), some(ID), None),
            ("0::/init.scope\n".to_owned(), None, None),
            ("0::/user.slice/podman-123.scope".to_owned(), None, None),
            (String::new(), None, None),
        ];
        for (cgroup, container, pod) in cases {
            assert_eq!(container_of(&cgroup), (container, pod), "{cgroup}");
        }
    }

    /// A captured /proc: fd links lead to devices every machine has, standing in for the driver's.
    #[test]
    fn holders_are_found_by_device_number() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc");
        fs::create_dir_all(proc.join("41/fd")).unwrap();
        fs::create_dir_all(proc.join("42/fd")).unwrap();
        fs::create_dir_all(proc.join("43")).unwrap();
        fs::create_dir_all(proc.join("sys")).unwrap();
        // /dev/null is major 1.
        fs::write(
            proc.join("devices"),
            "Character devices:\n  1 nvidia-uvm\n\nBlock devices:\n  5 nvidia\n",
        )
        .unwrap();
        symlink("/dev/null", proc.join("41/fd/7")).unwrap();
        symlink("/dev/tty", proc.join("42/fd/7")).unwrap();
        symlink("/gone", proc.join("42/fd/8")).unwrap();
        fs::write(proc.join("41/comm"), "python3\n").unwrap();
        fs::write(proc.join("41/cgroup"), format!("0::/docker-{ID}.scope\n")).unwrap();
        let users = driver_users(dir.path()).unwrap();
        let user = DriverUser {
            pid: 41,
            comm: "python3".to_owned(),
            container: Some(ID.to_owned()),
            pod: None,
            devices: vec!["/dev/null".to_owned()],
        };
        assert_eq!(users, [user]);
        assert_eq!(
            users[0].to_string(),
            "pid 41 (python3) of container 0123456789ab holds /dev/null"
        );
    }
}
