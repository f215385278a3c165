//! The real host, below a root path: `/`, or a tree in a test.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::MntFlags;
use nix::sys::stat::{major, minor};

use crate::daemon::output::LastLine;
use crate::daemon::process::IdentifiedProcess;
use crate::daemon::{Daemon, DaemonStatus, Ending, process};
use crate::facts::gpus::{self, Gpu};
use crate::facts::kmsg::KernelLog;
use crate::facts::nodes;
use crate::facts::process_files::Looker;
use crate::real::kernel_call::{Call, CallOutcome, KernelCalls};
use crate::values::{DirId, DriverUsers, FileId, Node, Owner, WantedNode};
use crate::verbs::published::{self, Published, PublishedFile};
use crate::verbs::status_file::{self, Status};
use crate::verbs::{Binding, Host, Image, ModuleState, Stage, VerbError, labels};
use longshore_core::deadlines::{Deadlines, LOOK};
use longshore_core::root::{Root, if_there};
use text::{names_in, read};

/// The real host below a root path; every path given to a verb is resolved below it.
#[derive(Debug, Clone)]
pub struct RealHost {
    root: PathBuf,
    /// Mark -> last output of the daemon.
    daemons: Arc<Mutex<BTreeMap<String, LastLine>>>,
    /// Mark -> the processes that were last found with it.
    found: Arc<Mutex<BTreeMap<String, Vec<IdentifiedProcess>>>>,
    calls: KernelCalls,
    look: Duration,
    /// Inspects the daemons' processes: a hanging inspection for another purpose does not block it.
    marks: Looker,
    /// Root of the /proc that is searched for them: the host's, except in tests.
    processes: PathBuf,
    holders: Looker,
}

/// Options of a tmpfs that holds only device nodes and sockets of daemons.
const TMPFS_OPTIONS: &str = "mode=0755,size=1m,nr_inodes=4096";
/// Options of a driver root's tmpfs: no more than its directories fit.
const ROOT_OPTIONS: &str = "mode=0755,size=64k";

impl RealHost {
    /// The host below `root`; `/` is the running one.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            calls: KernelCalls::direct(),
            look: LOOK,
            daemons: Arc::default(),
            found: Arc::default(),
            marks: Looker::default(),
            processes: root.to_path_buf(),
            holders: Looker::default(),
        }
    }

    /// Makes calls that may hang in the kernel through `calls`, and inspects processes for at most
    /// `look`.
    #[must_use]
    pub fn calling(self, calls: KernelCalls, look: Duration) -> Self {
        calls.prepare();
        Self { calls, look, ..self }
    }

    /// Inspects the processes that hold the driver through `holders`, which other users share.
    #[must_use]
    pub fn looking_for_holders_with(self, holders: Looker) -> Self {
        Self { holders, ..self }
    }

    /// Searches for daemons' processes below another root: those of a fixture are this machine's
    /// own.
    #[cfg(any(test, feature = "fake"))]
    #[must_use]
    pub fn with_processes_below(self, root: &Path) -> Self {
        Self { processes: root.to_path_buf(), ..self }
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn module_dir(&self, name: &str) -> PathBuf {
        self.root.join("sys/module").join(name)
    }

    /// Returns what lies at a path, and follows no link there; None where there is nothing.
    fn lstat(&self, path: &Path) -> Result<Option<Metadata>, VerbError> {
        let found = if_there(fs::symlink_metadata(self.at(path)));
        found.map_err(|e| VerbError::on_path("lstat", path, &e))
    }

    /// Makes a call. If its answer was lost because the child was killed, `done` checks on the host
    /// if it took effect; if not, it is made once more.
    fn call(
        &self,
        verb: &'static str,
        subject: &str,
        call: Call<'_>,
        done: impl Fn() -> Result<bool, VerbError>,
    ) -> Result<(), VerbError> {
        for _ in 0..2 {
            match self.calls.make(subject, call) {
                CallOutcome::Came(answer) => {
                    return answer.map_err(|errno| VerbError::new(verb, subject, errno));
                }
                CallOutcome::NoneWithin(waited) => {
                    return Err(VerbError::unanswered(verb, subject, waited));
                }
                CallOutcome::Lost if done()? => return Ok(()),
                CallOutcome::Lost => {
                    tracing::warn!("{verb} {subject}: the helper process was killed")
                }
            }
        }
        Err(VerbError::new(verb, subject, Errno::EINTR))
    }

    /// True if a node was made by a child that was killed before it answered; the node has its mode
    /// and owner then.
    fn has_made(&self, path: &Path, node: Node) -> Result<bool, VerbError> {
        match self.node(path)? {
            Some(there) if there.same_device(&node) => {
                if there != node {
                    self.set_node(path, node)?;
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn in_place<T>(
        &self,
        verb: &'static str,
        place: &PublishedFile<'_>,
        act: impl FnOnce(&Root) -> io::Result<T>,
    ) -> Result<T, VerbError> {
        let root = Root::open(&self.at(place.root));
        root.and_then(|root| act(&root))
            .map_err(|e| VerbError::new(verb, place.shown(), published::errno(&e)))
    }

    /// Reads a value of /proc/driver/nvidia/params, which has what sysfs lacks: the driver gives
    /// its NVreg_ parameters no file below /sys/module/nvidia/parameters (nv-reg.h).
    fn nvidia_registry(&self, name: &str) -> Result<Option<String>, VerbError> {
        let Some(key) = name.strip_prefix("NVreg_") else { return Ok(None) };
        let text = read(&self.root.join("proc/driver/nvidia/params"))?.unwrap_or_default();
        let found = text.lines().filter_map(|line| line.split_once(": ")).find(|(k, _)| *k == key);
        Ok(found.map(|(_, value)| value.trim_matches('"').to_owned()))
    }
}

impl Host for RealHost {
    fn release_idle(&self) {
        self.calls.release_idle();
    }

    fn within(&self, deadlines: &Deadlines) -> Option<Arc<dyn Host>> {
        let Deadlines { load, unload, look, .. } = *deadlines;
        let calls = self.calls.clone().within(load, unload);
        Some(Arc::new(Self { calls, look, ..self.clone() }))
    }

    fn load_module(
        &self,
        name: &str,
        image: Image<'_>,
        parameters: &str,
    ) -> Result<Vec<String>, VerbError> {
        let verb = match image {
            Image::Bytes(_) => "init_module",
            Image::File(_) => "finit_module",
        };
        refuse_nul(verb, name, parameters)?;
        let log = KernelLog::from_here(&self.root.join("dev/kmsg"));
        let call = Call::Load { image, parameters: parameters.as_ref() };
        let result = self.call(verb, name, call, || Ok(self.module(name)?.is_some()));
        let kernel_log = log.lines();
        match result {
            Ok(()) => Ok(kernel_log),
            Err(error) => Err(VerbError { kernel_log, ..error }),
        }
    }

    fn unload_module(&self, name: &str) -> Result<(), VerbError> {
        let verb = "delete_module";
        refuse_nul(verb, name, name)?;
        let call = Call::Unload { name: name.as_ref() };
        self.call(verb, name, call, || Ok(self.module(name)?.is_none()))
    }

    fn module(&self, name: &str) -> Result<Option<ModuleState>, VerbError> {
        let dir = self.module_dir(name);
        // Built-in modules have a directory, too, but no state (kernel/params.c,
        // locate_module_kobject). The count is absent if the kernel cannot unload modules.
        let (refcount, initstate) = (read(&dir.join("refcnt"))?, read(&dir.join("initstate"))?);
        if refcount.is_none() && initstate.is_none() {
            return Ok(None);
        }
        let refcount = refcount.and_then(|count| count.parse().ok()).unwrap_or(0);
        Ok(Some(ModuleState {
            refcount,
            holders: names_in(&dir.join("holders"))?,
            version: read(&dir.join("version"))?,
            srcversion: read(&dir.join("srcversion"))?,
            instance: fs::metadata(&dir).ok().map(|found| found.ino()),
            stage: match initstate.as_deref() {
                Some("coming") => Stage::Coming,
                Some("going") => Stage::Going,
                _ => Stage::Live,
            },
        }))
    }

    fn module_parameter(&self, module: &str, name: &str) -> Result<Option<String>, VerbError> {
        let shown = read(&self.module_dir(module).join("parameters").join(name))?;
        if shown.is_none() && module == "nvidia" {
            return self.nvidia_registry(name);
        }
        Ok(shown)
    }

    fn driver_users(&self) -> Result<DriverUsers, VerbError> {
        crate::facts::holders::driver_users(&self.root, self.look, &self.holders)
            .map_err(|e| VerbError::on_path("read", &self.root.join("proc"), &e))
    }

    fn write_parameter(&self, path: &Path, value: &str) -> Result<(), VerbError> {
        let at = self.at(path);
        // sysfs drops a write of no bytes (fs/sysfs/file.c), and a string parameter keeps a newline
        // as part of its value (kernel/params.c, param_set_copystring): only a lone terminator
        // empties it.
        let bytes = if value.is_empty() { b"\0" } else { value.as_bytes() };
        fs::OpenOptions::new()
            .write(true)
            .open(&at)
            .and_then(|mut file| file.write_all(bytes))
            .map_err(|e| VerbError::on_path("write", path, &e))
    }

    fn parameter(&self, path: &Path) -> Result<Option<String>, VerbError> {
        read(&self.at(path))
    }

    fn bind(&self, source: &Path, target: &Path) -> Result<(), VerbError> {
        let call = Call::Bind { source: &self.at(source), target: &self.at(target) };
        self.mount("mount --rbind on", target, call)
    }

    fn bind_read_only(&self, source: &Path, target: &Path) -> Result<(), VerbError> {
        let call = Call::BindReadOnly { source: &self.at(source), target: &self.at(target) };
        self.mount("mount --rbind on", target, call)
    }

    fn mount_tmpfs(&self, target: &Path, label: Option<&str>) -> Result<(), VerbError> {
        let data = mounted::labelled(TMPFS_OPTIONS, label);
        let call = Call::Tmpfs { target: &self.at(target), data: &data };
        self.mount("mount -t tmpfs on", target, call)
    }

    fn mount_root(
        &self,
        target: &Path,
        dirs: &[&str],
        label: Option<&str>,
    ) -> Result<(), VerbError> {
        let dirs: Vec<PathBuf> = dirs.iter().map(PathBuf::from).collect();
        let data = mounted::labelled(ROOT_OPTIONS, label);
        let call = Call::Root { target: &self.at(target), data: &data, dirs: &dirs };
        self.mount("mount -t tmpfs on", target, call)
    }

    fn mount_sysfs(&self, target: &Path) -> Result<(), VerbError> {
        let call = Call::Sysfs { target: &self.at(target) };
        self.mount("mount -t sysfs on", target, call)
    }

    fn unmount(&self, target: &Path) -> Result<(), VerbError> {
        self.take_off(target, MntFlags::empty())
    }

    fn detach(&self, target: &Path) -> Result<(), VerbError> {
        self.take_off(target, MntFlags::MNT_DETACH)
    }

    fn mounts_on(&self, target: &Path) -> Result<usize, VerbError> {
        self.mounted_on(target).map(|mounts| mounts.len())
    }

    fn mount_source(&self, target: &Path) -> Result<Option<String>, VerbError> {
        let Some(mount) = self.mounted_on(target)?.pop() else { return Ok(None) };
        let shown = self.dir(target)?.map(|(device, _)| (major(device), minor(device)));
        Ok((shown == Some(mount.device)).then_some(mount.source))
    }

    fn make_node(&self, path: &Path, node: Node) -> Result<(), VerbError> {
        let call = Call::MakeNodes { nodes: &[(self.at(path), node)] };
        let made = || self.has_made(path, node);
        self.call("mknod", &path.display().to_string(), call, made)
    }

    fn make_nodes(&self, nodes: &[(PathBuf, Node)]) -> Result<(), VerbError> {
        let subject = match nodes {
            [] => return Ok(()),
            [(path, _)] => path.display().to_string(),
            [(path, _), more @ ..] => format!("{} and {} more", path.display(), more.len()),
        };
        let below: Vec<_> = nodes.iter().map(|(path, node)| (self.at(path), *node)).collect();
        match self.calls.make(&subject, Call::MakeNodes { nodes: &below }) {
            CallOutcome::Came(answer) => answer.map_err(|e| VerbError::new("mknod", subject, e)),
            CallOutcome::NoneWithin(waited) => Err(VerbError::unanswered("mknod", subject, waited)),
            CallOutcome::Lost => {
                tracing::warn!("mknod {subject}: the helper process was killed");
                nodes.iter().try_for_each(|(path, node)| {
                    if self.has_made(path, *node)? { Ok(()) } else { self.make_node(path, *node) }
                })
            }
        }
    }

    fn set_node(&self, path: &Path, node: Node) -> Result<(), VerbError> {
        let at = self.at(path);
        let call = Call::SetNode { path: &at, node };
        let set = || Ok(self.node(path)? == Some(node));
        self.call("chown and chmod", &path.display().to_string(), call, set)
    }

    fn node(&self, path: &Path) -> Result<Option<Node>, VerbError> {
        let Some(found) = self.lstat(path)? else { return Ok(None) };
        if !found.file_type().is_char_device() {
            let what = format!("{} (no character device)", path.display());
            return Err(VerbError::new("mknod", what, Errno::EEXIST));
        }
        Ok(Some(Node {
            major: major(found.rdev()) as u32,
            minor: minor(found.rdev()) as u32,
            mode: found.mode() & 0o7777,
            owner: Owner { uid: found.uid(), gid: found.gid() },
        }))
    }

    fn link(&self, path: &Path) -> Result<Option<PathBuf>, VerbError> {
        if_there(fs::read_link(self.at(path))).map_err(|e| match e.raw_os_error() {
            Some(errno) if errno == Errno::EINVAL as i32 => {
                let what = format!("{} (no symbolic link)", path.display());
                VerbError::new("symlink", what, Errno::EEXIST)
            }
            _ => VerbError::on_path("readlink", path, &e),
        })
    }

    fn make_link(&self, path: &Path, target: &Path) -> Result<(), VerbError> {
        symlink(target, self.at(path)).map_err(|e| VerbError::on_path("symlink", path, &e))
    }

    fn remove_file(&self, path: &Path) -> Result<(), VerbError> {
        fs::remove_file(self.at(path)).map_err(|e| VerbError::on_path("unlink", path, &e))
    }

    fn label(&self, path: &Path, label: &str) -> Result<(), VerbError> {
        labels::set(&self.at(path), label).map_err(|e| VerbError::on_path("lsetxattr", path, &e))
    }

    fn has_label(&self, path: &Path, label: &str) -> Result<bool, VerbError> {
        labels::has(&self.at(path), label).map_err(|e| VerbError::on_path("lgetxattr", path, &e))
    }

    fn file(&self, path: &Path) -> Result<Option<FileId>, VerbError> {
        let found = self.lstat(path)?.filter(|found| !found.is_dir());
        Ok(found.map(|found| FileId::from_metadata(&found)))
    }

    fn status(&self, path: &Path) -> Result<Option<Status>, VerbError> {
        status_file::read(&self.at(path)).map_err(status_file::failed("read", path))
    }

    fn write_status(&self, path: &Path, text: &str) -> Result<(), VerbError> {
        status_file::write(&self.at(path), text).map_err(status_file::failed("write", path))
    }

    fn remove_status(&self, path: &Path) -> Result<(), VerbError> {
        status_file::remove(&self.at(path)).map_err(status_file::failed("unlink", path))
    }

    fn make_dir(&self, path: &Path) -> Result<(), VerbError> {
        let at = self.at(path);
        fs::create_dir(&at)
            .and_then(|()| fs::set_permissions(&at, fs::Permissions::from_mode(0o755)))
            .map_err(|e| VerbError::on_path("mkdir", path, &e))
    }

    fn remove_dir(&self, path: &Path) -> Result<(), VerbError> {
        fs::remove_dir(self.at(path)).map_err(|e| VerbError::on_path("rmdir", path, &e))
    }

    fn dir(&self, path: &Path) -> Result<Option<DirId>, VerbError> {
        let found = if_there(fs::metadata(self.at(path)));
        let found = found.map_err(|e| VerbError::on_path("stat", path, &e))?;
        Ok(found.filter(Metadata::is_dir).map(|found| (found.dev(), found.ino())))
    }

    fn published(&self, place: &PublishedFile<'_>) -> Result<Published, VerbError> {
        self.in_place("read", place, |root| published::read(root, place))
    }

    fn make_place(&self, place: &PublishedFile<'_>) -> Result<(), VerbError> {
        self.in_place("make the directory of", place, |root| published::make_dir(root, place))
    }

    fn publish(&self, place: &PublishedFile<'_>, bytes: &[u8]) -> Result<(), VerbError> {
        self.in_place("write", place, |root| published::write(root, place, bytes))
    }

    fn withdraw(&self, place: &PublishedFile<'_>, keeps: bool) -> Result<(), VerbError> {
        self.in_place("remove", place, |root| published::withdraw(root, place, keeps))
    }

    fn remove_place(&self, place: &PublishedFile<'_>) -> Result<(), VerbError> {
        self.in_place("remove the directory of", place, |root| published::remove_dir(root, place))
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn start_daemon(&self, daemon: &Daemon, mark: &str) -> Result<(), VerbError> {
        let last_line = LastLine::default();
        self.lock_daemons().insert(mark.to_owned(), last_line.clone());
        process::start(&self.daemon_at(daemon), mark, &last_line)
            .map_err(|e| VerbError::on_path("start", &daemon.program, &e))
    }

    fn end_daemon(&self, mark: &str, how: Ending) -> Result<Vec<OwnedFd>, VerbError> {
        process::end(self.marked(mark)?, how)
            .map_err(|e| VerbError::on_path("pidfd_send_signal", Path::new("a daemon"), &e))
    }

    fn daemon_processes(&self, mark: &str) -> Result<Vec<OwnedFd>, VerbError> {
        let found = self.marked(mark)?;
        Ok(found.into_iter().map(|(_, fd)| fd).collect())
    }

    fn daemon(&self, daemon: &Daemon, mark: &str) -> Result<DaemonStatus, VerbError> {
        let found = self.marked(mark)?;
        let processes: Vec<u32> = found.iter().map(|(pid, _)| *pid).collect();
        let answers = process::answers(&self.at(&daemon.socket), &processes);
        let last_output = self.lock_daemons().get(mark).and_then(LastLine::get);
        Ok(DaemonStatus { processes, answers, last_output })
    }

    fn wanted_nodes(&self) -> Result<Vec<WantedNode>, VerbError> {
        nodes::wanted(&self.root)
            .map_err(|e| VerbError::on_path("read", &self.root.join("proc/devices"), &e))
    }

    fn binding(&self, address: &str) -> Result<Option<Binding>, VerbError> {
        bindings::binding_of(&self.root, address)
    }

    fn set_only_driver(&self, address: &str, driver: &str) -> Result<(), VerbError> {
        let file = bindings::only_driver(address, driver)?;
        // A lone newline clears it (drivers/base/driver.c, driver_set_override).
        let value = if driver.is_empty() { "\n" } else { driver };
        let call = Call::WriteAttribute { path: &self.at(&file), value: value.as_ref() };
        let is_set = || Ok(self.binding(address)?.is_some_and(|found| found.only == driver));
        self.call("write", &format!("{driver:?} to {}", file.display()), call, is_set)
    }

    fn bind_device(&self, address: &str, driver: &str) -> Result<(), VerbError> {
        let file = bindings::bind(address, driver)?;
        let call = Call::WriteAttribute { path: &self.at(&file), value: address.as_ref() };
        let is_bound =
            || Ok(self.binding(address)?.is_some_and(|it| it.driver.as_deref() == Some(driver)));
        self.call("write", &format!("{address} to {}", file.display()), call, is_bound)
    }

    fn gpus(&self) -> Result<Vec<Gpu>, VerbError> {
        Root::open(&self.root)
            .and_then(|root| gpus::read(&root))
            .map_err(|e| VerbError::on_path("read", &self.root.join("sys/bus/pci/devices"), &e))
    }
}

fn refuse_nul(verb: &'static str, subject: &str, text: &str) -> Result<(), VerbError> {
    if text.contains('\0') { Err(VerbError::new(verb, subject, Errno::EINVAL)) } else { Ok(()) }
}

mod bindings;
mod daemons;
pub mod kernel_call;
pub mod mount_from_host;
mod mounted;
mod text;

#[cfg(test)]
mod tests;
