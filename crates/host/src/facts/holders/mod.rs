//! Processes that hold the driver: those that have one of its devices open or mapped.
//!
//! A device is identified by its number, not by its name: `/proc/PID/fd/N` and
//! `/proc/PID/map_files/RANGE` lead to the file itself, whatever the mount namespace of the
//! process. A thread can have its own table of open files (unshare(2) with CLONE_FILES), and keeps
//! it after the process' first thread has ended: `/proc/PID/task/TID/fd`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};

use crate::facts::cgroup;
use crate::facts::nodes::character_majors;
use crate::facts::process_files::Looker;
use crate::values::{DriverUser, DriverUsers};

/// Major of the DRM devices (include/drm/drm.h and drivers/gpu/drm/drm_drv.c).
const DRM_MAJOR: u32 = 226;

/// Maximum bytes read of a process' list of mappings, and of each of its other files.
const MAPS: u64 = 64 << 20;
const TEXT: u64 = 64 << 10;

/// Returns the processes that hold a device of the driver, by process id, as far as they could be
/// inspected within `limit`: one of their files can lie on a network file system that no longer
/// answers, and inspecting it then blocks until it does. Processes that end meanwhile are left out.
/// While an earlier run of `looker` hangs nothing is inspected.
///
/// # Errors
/// If /proc cannot be listed, or /proc/devices cannot be read.
pub fn driver_users(root: &Path, limit: Duration, looker: &Looker) -> io::Result<DriverUsers> {
    users_among(DriverDevices::read(root)?, limit, looker)
}

/// Returns the processes that hold a device with one of these numbers, as [`driver_users`] does.
///
/// # Errors
/// If /proc cannot be listed.
pub(crate) fn users_of(
    root: &Path,
    numbers: BTreeSet<(u32, u32)>,
    limit: Duration,
    looker: &Looker,
) -> io::Result<DriverUsers> {
    let devices = DriverDevices { root: root.to_path_buf(), majors: BTreeSet::new(), numbers };
    users_among(devices, limit, looker)
}

fn users_among(
    devices: DriverDevices,
    limit: Duration,
    looker: &Looker,
) -> io::Result<DriverUsers> {
    let root = devices.root.clone();
    let processes = processes(&root)?;
    let (sender, receiver) = mpsc::channel();
    let look = move || look_at(&devices, &processes, &sender);
    let mut seen = HolderSearch::default();
    let until = Instant::now() + limit;
    if let Err(unseen) = looker.begin("holders", until, look) {
        return Ok(DriverUsers { users: Vec::new(), unseen: Some(unseen.to_string()) });
    }
    loop {
        match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(news) => seen.note(news),
            Err(RecvTimeoutError::Disconnected) => return Ok(seen.into_users(None)),
            Err(RecvTimeoutError::Timeout) => return Ok(seen.into_users(Some(limit))),
        }
    }
}

/// Progress of the inspection.
enum News {
    /// The process that is inspected now.
    At(u32),
    /// A process that holds these devices.
    Holds(DriverUser),
    /// A process that may not be inspected.
    Refused,
}

fn look_at(devices: &DriverDevices, processes: &[(u32, PathBuf)], sender: &Sender<News>) {
    // Threads with their own table are rare, and threads are many: they come last.
    for held_by in [DriverDevices::held_by_process, DriverDevices::held_by_threads] {
        for (pid, process) in processes {
            // The receiver is gone once the time limit has passed.
            if sender.send(News::At(*pid)).is_err() {
                return;
            }
            let news = match held_by(devices, process) {
                Ok(held) if held.is_empty() => continue,
                Ok(held) => News::Holds(describe(*pid, process, held)),
                Err(e) if e.kind() == ErrorKind::PermissionDenied => News::Refused,
                Err(_) => continue,
            };
            let _ = sender.send(news);
        }
    }
}

#[derive(Default)]
struct HolderSearch {
    users: BTreeMap<u32, DriverUser>,
    refused: BTreeSet<u32>,
    at: u32,
}

impl HolderSearch {
    fn note(&mut self, news: News) {
        match news {
            News::At(pid) => self.at = pid,
            News::Refused => drop(self.refused.insert(self.at)),
            News::Holds(user) => {
                let known = self.users.entry(user.pid).or_insert_with(|| user.clone());
                let all: BTreeSet<String> = known.devices.drain(..).chain(user.devices).collect();
                known.devices = all.into_iter().collect();
            }
        }
    }

    fn into_users(self, out_of_time: Option<Duration>) -> DriverUsers {
        let mut unseen = Vec::new();
        if let Some(limit) = out_of_time {
            let pid = self.at;
            unseen.push(format!("the files of pid {pid} could not be inspected within {limit:?}"));
        }
        if !self.refused.is_empty() {
            let (n, pid) = (self.refused.len(), self.refused.first().copied().unwrap_or_default());
            unseen.push(format!(
                "{n} processes may not be inspected, among them pid {pid} (needs CAP_SYS_PTRACE)"
            ));
        }
        let unseen = (!unseen.is_empty()).then(|| unseen.join("; "));
        DriverUsers { users: self.users.into_values().collect(), unseen }
    }
}

fn processes(root: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir(root.join("proc"))? {
        let entry = entry?;
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            processes.push((pid, entry.path()));
        }
    }
    processes.sort();
    Ok(processes)
}

struct DriverDevices {
    root: PathBuf,
    majors: BTreeSet<u32>,
    /// Major and minor numbers of further devices.
    numbers: BTreeSet<(u32, u32)>,
}

impl DriverDevices {
    fn read(root: &Path) -> io::Result<Self> {
        let devices = character_majors(root)?;
        let nvidia = devices.into_iter().filter(|(name, _)| name.starts_with("nvidia"));
        let majors = nvidia.map(|(_, major)| major).collect();
        Ok(Self { root: root.to_path_buf(), majors, numbers: BTreeSet::new() })
    }

    /// Devices that a process has open in its first thread's table, or mapped.
    fn held_by_process(&self, process: &Path) -> io::Result<Vec<String>> {
        let mut held = self.held_among(process, &links(&process.join("fd"))?);
        held.extend(self.mapped_by(process)?);
        Ok(held.into_iter().collect())
    }

    /// Devices that other threads have open and the first one has not.
    fn held_by_threads(&self, process: &Path) -> io::Result<Vec<String>> {
        let of_first = links(&process.join("fd"))?;
        let first = process.file_name();
        let mut held = BTreeSet::new();
        for thread in fs::read_dir(process.join("task"))?.flatten() {
            if Some(thread.file_name().as_os_str()) == first {
                continue;
            }
            let Ok(mut open) = links(&thread.path().join("fd")) else { continue };
            open.retain(|link, text| of_first.get(&own(process, link)) != Some(text));
            held.extend(self.held_among(&thread.path(), &open));
        }
        Ok(held.into_iter().collect())
    }

    fn mapped_by(&self, process: &Path) -> io::Result<BTreeSet<String>> {
        match links(&process.join("map_files")) {
            Ok(mut mapped) => {
                // A library is mapped in several parts.
                let mut texts = BTreeSet::new();
                mapped.retain(|_, text| texts.insert(text.clone()));
                Ok(self.held_among(process, &mapped))
            }
            // map_files needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE; the list of mappings does
            // not.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                let maps = text(&process.join("maps"), MAPS)?;
                let names = maps.lines().filter_map(|line| line.split_once('/').map(|(_, p)| p));
                let ours = |p: &&str| p.starts_with("dev/nvidia") || p.starts_with("dev/dri/");
                Ok(names.filter(ours).map(|path| format!("/{path}")).collect())
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(e) => Err(e),
        }
    }

    /// The links that lead to the driver's devices, by their texts.
    fn held_among(&self, process: &Path, links: &BTreeMap<PathBuf, PathBuf>) -> BTreeSet<String> {
        let leads_here = |link: &Path, text: &Path| {
            if text.as_os_str().as_encoded_bytes().starts_with(b"/dmabuf:") {
                return is_exported_by_driver(process, link);
            }
            // Sockets, pipes and other anonymous files are no devices.
            text.is_absolute() && as_known(link).is_ok_and(|file| self.has(&file))
        };
        let held = links.iter().filter(|(link, text)| leads_here(link, text));
        held.map(|(_, text)| text.display().to_string()).collect()
    }

    fn has(&self, file: &Statx) -> bool {
        if FileType::from_raw_mode(file.stx_mode.into()) != FileType::CharacterDevice {
            return false;
        }
        let (major, minor) = (file.stx_rdev_major, file.stx_rdev_minor);
        self.majors.contains(&major)
            || self.numbers.contains(&(major, minor))
            || (major == DRM_MAJOR && self.is_nvidia_drm(minor))
    }

    fn is_nvidia_drm(&self, minor: u32) -> bool {
        let driver = format!("sys/dev/char/{DRM_MAJOR}:{minor}/device/driver");
        fs::read_link(self.root.join(driver))
            .is_ok_and(|link| link.file_name().is_some_and(|name| name == "nvidia"))
    }
}

/// The file that a link leads to, with the attributes the kernel has cached: a dead server is not
/// queried (statx(2), AT_STATX_DONT_SYNC).
fn as_known(link: &Path) -> rustix::io::Result<Statx> {
    statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)
}

/// Reads at most `most` bytes of a process' file. A process chooses its own name and cgroup names,
/// in UTF-8 or not.
fn text(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads the links of a directory, with their texts.
fn links(dir: &Path) -> io::Result<BTreeMap<PathBuf, PathBuf>> {
    let paths = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    Ok(paths.filter_map(|path| fs::read_link(&path).ok().map(|text| (path, text))).collect())
}

/// The first thread's link of the same number.
fn own(process: &Path, link: &Path) -> PathBuf {
    process.join("fd").join(link.file_name().unwrap_or_default())
}

/// True for a dma-buf exported by the driver: it holds the driver as an open device does
/// (drivers/dma-buf/dma-buf.c, `dma_buf_show_fdinfo`).
fn is_exported_by_driver(process: &Path, link: &Path) -> bool {
    let info = process.join("fdinfo").join(link.file_name().unwrap_or_default());
    let text = text(&info, TEXT).unwrap_or_default();
    let exporter = text.lines().find_map(|line| line.strip_prefix("exp_name:"));
    exporter.is_some_and(|name| name.trim().starts_with("nv"))
}

fn describe(pid: u32, process: &Path, devices: Vec<String>) -> DriverUser {
    let read = |file: &str| text(&process.join(file), TEXT).unwrap_or_default();
    let cgroup::Owner { container, pod } = cgroup::owner(&read("cgroup"));
    let comm = read("comm").trim_end().to_owned();
    DriverUser { pid, namespace_pid: inside(&read("status")), comm, container, pod, devices }
}

/// Process id in the innermost PID namespace, if that is another (proc_pid_status(5), NSpid).
fn inside(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut ids = ids.split_ascii_whitespace();
    ids.next()?;
    ids.next_back()?.parse().ok()
}

#[cfg(test)]
mod tests;
