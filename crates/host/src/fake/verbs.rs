//! The verbs of a simulated host.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use super::{FakeHost, Ill, is_below};
use crate::daemon::{Answers, Daemon, DaemonStatus, Ending};
use crate::facts::gpus::Gpu;
use crate::values::{DirId, DriverUsers, FileId, Node, NodeKeeper, TMPFS_SOURCE, WantedNode};
use crate::verbs::VerbError;
use crate::verbs::published::{Published, PublishedFile};
use crate::verbs::status_file::Status;
use crate::verbs::{Binding, Host, Image, ModuleState};

/// Reported waiting time of a call that was not answered.
const WAITED: Duration = Duration::from_secs(20);

/// Maps ETIMEDOUT to a call that was not answered.
fn no_answer(error: VerbError) -> VerbError {
    match error.errno {
        Errno::ETIMEDOUT => VerbError::unanswered(error.verb, error.subject, WAITED),
        _ => error,
    }
}

/// Contents of a file, as the kernel reads them.
fn contents(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_or_else(|_| Vec::new(), |_| bytes)
}

/// Path of a file before its rename; a [real](crate::verbs::shared_dir) one is random, or has none.
fn unfinished(place: &PublishedFile<'_>) -> PathBuf {
    place.dir.join(format!(".{}.tmp", place.name))
}

impl Host for FakeHost {
    fn load_module(
        &self,
        name: &str,
        image: Image<'_>,
        parameters: &str,
    ) -> Result<Vec<String>, VerbError> {
        let (verb, bytes) = match image {
            Image::Bytes(bytes) => ("init_module", bytes.to_vec()),
            Image::File(file) => ("finit_module", contents(file)),
        };
        let is_file = verb == "finit_module";
        let answer = self.verb(verb, name, |inner| inner.load(name, &bytes, is_file, parameters));
        answer.map(|()| Vec::new()).map_err(no_answer)
    }

    fn unload_module(&self, name: &str) -> Result<(), VerbError> {
        self.verb("delete_module", name, |inner| inner.unload(name)).map_err(no_answer)
    }

    fn module(&self, name: &str) -> Result<Option<ModuleState>, VerbError> {
        let mut inner = self.lock();
        let look = inner.looks;
        inner.looks += 1;
        if let Some(mut act) = inner.on_look.take() {
            act(&mut inner.state, look);
            inner.on_look = Some(act);
        }
        if !inner.state.loaded.contains_key(name) {
            return Ok(None);
        }
        let known = inner.kernel.get(name).cloned().unwrap_or_default();
        Ok(Some(ModuleState {
            refcount: inner.refcount(name),
            holders: inner.holders(name),
            version: known.version,
            srcversion: known.srcversion,
            instance: Some(inner.state.instances.get(name).copied().unwrap_or(0)),
            stage: inner.state.wedged.get(name).copied().unwrap_or_default(),
        }))
    }

    fn module_parameter(&self, module: &str, name: &str) -> Result<Option<String>, VerbError> {
        let inner = self.lock();
        let given = inner.state.loaded.get(module).cloned().unwrap_or_default();
        let mut pairs = given.split_whitespace().filter_map(|pair| pair.split_once('='));
        Ok(pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()))
    }

    fn driver_users(&self) -> Result<DriverUsers, VerbError> {
        let mut inner = self.lock();
        inner.counts.users += 1;
        Ok(DriverUsers { users: inner.users.clone(), unseen: None })
    }

    fn write_parameter(&self, path: &Path, value: &str) -> Result<(), VerbError> {
        self.path_verb("write", path, |inner| {
            let slot = inner.state.parameters.get_mut(path).ok_or(Errno::ENOENT)?;
            value.clone_into(slot);
            Ok(())
        })
    }

    fn parameter(&self, path: &Path) -> Result<Option<String>, VerbError> {
        Ok(self.lock().state.parameters.get(path).cloned())
    }

    fn bind(&self, source: &Path, target: &Path) -> Result<(), VerbError> {
        self.path_verb("bind", target, |inner| {
            let dirs = &inner.state.dirs;
            if !dirs.contains(source) || !dirs.contains(target) {
                return Err(Errno::ENOENT);
            }
            inner.state.mounts.push((source.display().to_string(), target.to_path_buf()));
            Ok(())
        })
    }

    fn mount_tmpfs(&self, target: &Path, _: Option<&str>) -> Result<(), VerbError> {
        self.path_verb("tmpfs", target, |inner| {
            if !inner.state.dirs.contains(target) {
                return Err(Errno::ENOENT);
            }
            inner.state.mounts.push((TMPFS_SOURCE.to_owned(), target.to_path_buf()));
            let below = inner.state.dirs.iter().filter(|dir| is_below(dir, target));
            let covered = below.cloned().collect();
            // One whose mount a test took away is mounted anew over the same directories.
            inner.state.covered.entry(target.to_path_buf()).or_insert(covered);
            Ok(())
        })
    }

    fn mount_root(&self, target: &Path, dirs: &[&str], _: Option<&str>) -> Result<(), VerbError> {
        self.path_verb("root", target, |inner| {
            if !inner.state.dirs.contains(target) {
                return Err(Errno::ENOENT);
            }
            inner.state.mounts.push((TMPFS_SOURCE.to_owned(), target.to_path_buf()));
            let dirs = dirs.iter().map(|dir| target.join(dir));
            let dirs: BTreeSet<PathBuf> =
                dirs.filter(|dir| !inner.state.dirs.contains(dir)).collect();
            inner.state.dirs.extend(dirs.iter().cloned());
            inner.state.roots.entry(target.to_path_buf()).or_default().extend(dirs);
            Ok(())
        })
    }

    fn mount_sysfs(&self, target: &Path) -> Result<(), VerbError> {
        self.path_verb("sysfs", target, |inner| {
            if !inner.state.dirs.contains(target) {
                return Err(Errno::ENOENT);
            }
            inner.state.mounts.push((TMPFS_SOURCE.to_owned(), target.to_path_buf()));
            Ok(())
        })
    }

    fn unmount(&self, target: &Path) -> Result<(), VerbError> {
        self.path_verb("umount", target, |inner| {
            if inner.busy_mounts.contains(target) || inner.state.has_mount_inside(target) {
                return Err(Errno::EBUSY);
            }
            inner.state.detach(target)
        })
    }

    fn detach(&self, target: &Path) -> Result<(), VerbError> {
        self.path_verb("detach", target, |inner| inner.state.detach(target))
    }

    fn mounts_on(&self, target: &Path) -> Result<usize, VerbError> {
        Ok(self.lock().state.mounts.iter().filter(|(_, on)| on == target).count())
    }

    fn mount_source(&self, target: &Path) -> Result<Option<String>, VerbError> {
        let inner = self.lock();
        Ok(inner.state.shown_on(target).map(|at| inner.state.mounts[at].0.clone()))
    }

    fn make_node(&self, path: &Path, node: Node) -> Result<(), VerbError> {
        self.path_verb("mknod", path, |inner| {
            let path = inner.real(path);
            inner.parent_is_dir(&path)?;
            if let Some(theirs) = inner.rivals.remove(&path) {
                inner.state.nodes.insert(path.clone(), theirs);
            }
            inner.is_free(&path)?;
            inner.state.nodes.insert(path, node);
            Ok(())
        })
    }

    fn set_node(&self, path: &Path, node: Node) -> Result<(), VerbError> {
        self.path_verb("chnod", path, |inner| {
            let path = inner.real(path);
            match inner.state.nodes.get_mut(&path) {
                Some(there) if there.same_device(&node) => *there = node,
                Some(_) => return Err(Errno::ENXIO),
                None => return Err(Errno::ENOENT),
            }
            Ok(())
        })
    }

    fn node(&self, path: &Path) -> Result<Option<Node>, VerbError> {
        let inner = self.lock();
        Ok(inner.state.nodes.get(&inner.real(path)).copied())
    }

    fn link(&self, path: &Path) -> Result<Option<PathBuf>, VerbError> {
        let inner = self.lock();
        Ok(inner.state.links.get(&inner.real(path)).cloned())
    }

    fn make_link(&self, path: &Path, target: &Path) -> Result<(), VerbError> {
        self.path_verb("symlink", path, |inner| {
            let path = inner.real(path);
            inner.parent_is_dir(&path)?;
            inner.is_free(&path)?;
            inner.state.links.insert(path, target.to_path_buf());
            Ok(())
        })
    }

    fn remove_file(&self, path: &Path) -> Result<(), VerbError> {
        self.path_verb("unlink", path, |inner| {
            let path = inner.real(path);
            if inner.state.links.remove(&path).is_some() {
                return Ok(());
            }
            if inner.state.files.remove(&path).is_some() {
                return Ok(());
            }
            inner.state.nodes.remove(&path).map(drop).ok_or(Errno::ENOENT)
        })
    }

    fn label(&self, path: &Path, label: &str) -> Result<(), VerbError> {
        self.path_verb("label", path, |inner| {
            inner.state.labels.insert(path.to_path_buf(), label.to_owned());
            Ok(())
        })
    }

    fn has_label(&self, path: &Path, label: &str) -> Result<bool, VerbError> {
        Ok(self.lock().state.labels.get(path).is_some_and(|there| there == label))
    }

    fn file(&self, path: &Path) -> Result<Option<FileId>, VerbError> {
        let inner = self.lock();
        let path = inner.real(path);
        let node = || inner.state.nodes.contains_key(&path).then(FileId::default);
        Ok(inner.state.files.get(&path).copied().or_else(node))
    }

    fn status(&self, path: &Path) -> Result<Option<Status>, VerbError> {
        Ok(self.lock().state.statuses.get(path).cloned().map(Status::Text))
    }

    fn write_status(&self, path: &Path, text: &str) -> Result<(), VerbError> {
        self.path_verb("status", path, |inner| {
            match inner.no_statuses {
                Some(errno) => return Err(errno),
                None => inner.state.statuses.insert(path.to_path_buf(), text.to_owned()),
            };
            Ok(())
        })
    }

    fn remove_status(&self, path: &Path) -> Result<(), VerbError> {
        self.path_verb("unlink", path, |inner| {
            inner.state.statuses.remove(path);
            Ok(())
        })
    }

    fn make_dir(&self, path: &Path) -> Result<(), VerbError> {
        self.path_verb("mkdir", path, |inner| {
            let path = inner.real(path);
            inner.parent_is_dir(&path)?;
            inner.is_free(&path)?;
            inner.state.dirs.insert(path);
            Ok(())
        })
    }

    fn remove_dir(&self, path: &Path) -> Result<(), VerbError> {
        self.path_verb("rmdir", path, |inner| {
            let path = inner.real(path);
            let is_inside = |other: &PathBuf| *other != path && other.starts_with(&path);
            let state = &inner.state;
            let files = state.nodes.keys().chain(state.links.keys()).chain(state.published.keys());
            let files = files.chain(state.files.keys());
            if state.dirs.iter().chain(files).any(is_inside) {
                return Err(Errno::ENOTEMPTY);
            }
            if inner.state.mounts.iter().any(|(_, on)| on.starts_with(&path)) {
                return Err(Errno::EBUSY);
            }
            if inner.state.dirs.remove(&path) { Ok(()) } else { Err(Errno::ENOENT) }
        })
    }

    fn dir(&self, path: &Path) -> Result<Option<DirId>, VerbError> {
        let inner = self.lock();
        let dirs = &inner.state.dirs;
        let inode = |path: &Path| dirs.iter().position(|dir| dir == path).map(|at| (1, at as u64));
        let real = inner.real(path);
        Ok(match (inode(&real), inner.state.shown_on(&real)) {
            // The root of a tree is the tree's own directory; other mounts have a root of their
            // own.
            (Some(_), Some(top)) => {
                inode(Path::new(&inner.state.mounts[top].0)).or(Some((2, top as u64)))
            }
            (found, _) => found,
        })
    }

    fn published(&self, place: &PublishedFile<'_>) -> Result<Published, VerbError> {
        let inner = self.lock();
        if !inner.state.dirs.contains(place.dir) {
            return Ok(Published::NoDirectory);
        }
        let found = inner.state.published.get(&place.dir.join(place.name));
        Ok(found.map_or(Published::Nothing, |bytes| Published::File(bytes.clone())))
    }

    fn make_place(&self, place: &PublishedFile<'_>) -> Result<(), VerbError> {
        self.path_verb("mkdir", place.dir, |inner| {
            inner.parent_is_dir(place.dir)?;
            inner.state.dirs.insert(place.dir.to_path_buf());
            Ok(())
        })
    }

    fn publish(&self, place: &PublishedFile<'_>, bytes: &[u8]) -> Result<(), VerbError> {
        let (path, temporary) = (place.dir.join(place.name), unfinished(place));
        self.path_verb("write", &temporary, |inner| {
            inner.parent_is_dir(&temporary)?;
            if let Some(errno) = inner.no_space {
                return Err(errno);
            }
            inner.state.published.insert(temporary.clone(), bytes.to_vec());
            Ok(())
        })?;
        let renamed = self.path_verb("rename", &path, |inner| {
            let bytes = inner.state.published.remove(&temporary).ok_or(Errno::ENOENT)?;
            inner.state.published.insert(path.clone(), bytes);
            Ok(())
        });
        renamed.inspect_err(|_| drop(self.lock().state.published.remove(&temporary)))
    }

    fn withdraw(&self, place: &PublishedFile<'_>, keeps: bool) -> Result<(), VerbError> {
        let path = place.dir.join(place.name);
        self.path_verb("withdraw", &path, |inner| {
            inner.state.published.remove(&unfinished(place));
            if !keeps {
                inner.state.published.remove(&path);
            }
            Ok(())
        })
    }

    fn remove_place(&self, place: &PublishedFile<'_>) -> Result<(), VerbError> {
        match self.remove_dir(place.dir) {
            Err(e) if e.errno == Errno::ENOENT => Ok(()),
            removed => removed,
        }
    }

    fn root(&self) -> &Path {
        self.root.as_deref().unwrap_or(Path::new("/nonexistent"))
    }

    fn start_daemon(&self, daemon: &Daemon, mark: &str) -> Result<(), VerbError> {
        self.verb("start", &daemon.name, |inner| {
            // A daemon of the driver ends if no driver is loaded.
            if let Some(settings) = &daemon.settings {
                let dir = settings.file.parent();
                if !dir.is_some_and(|dir| inner.state.dirs.contains(dir)) {
                    return Err(Errno::ENOENT);
                }
                inner.state.files.insert(settings.file.clone(), FileId::default());
            }
            let dies = inner.ill.get(&daemon.name) == Some(&Ill::Dies);
            if !dies && !inner.state.loaded.is_empty() {
                inner.state.daemons.insert(mark.to_owned(), daemon.name.clone());
            }
            Ok(())
        })
    }

    fn end_daemon(&self, mark: &str, how: Ending) -> Result<Vec<OwnedFd>, VerbError> {
        let Some(name) = self.lock().state.daemons.get(mark).cloned() else {
            return Ok(Vec::new());
        };
        let waiting = self.daemon_processes(mark)?;
        self.verb("end", &name, |inner| {
            if how == Ending::Kill || inner.ill.get(&name) != Some(&Ill::Stubborn) {
                inner.end(mark);
            }
            Ok(())
        })?;
        Ok(waiting)
    }

    fn daemon_processes(&self, mark: &str) -> Result<Vec<OwnedFd>, VerbError> {
        let mut inner = self.lock();
        if !inner.state.daemons.contains_key(mark) {
            return Ok(Vec::new());
        }
        let fail = |e: io::Error| VerbError::on_path("pipe", Path::new("a daemon"), &e);
        let (reader, writer) = io::pipe().map_err(fail)?;
        inner.open_pipes.entry(mark.to_owned()).or_default().push(writer);
        Ok(vec![reader.into()])
    }

    fn daemon(&self, daemon: &Daemon, mark: &str) -> Result<DaemonStatus, VerbError> {
        let inner = self.lock();
        let is_running = inner.state.daemons.contains_key(mark);
        let is_mute = inner.ill.get(&daemon.name) == Some(&Ill::Mute);
        let another = inner.state.daemons.values().any(|name| *name == daemon.name);
        let answers = match (is_running, another) {
            _ if is_mute => Answers::Nobody,
            (true, _) => Answers::Ours,
            (false, true) => Answers::Other(1),
            (false, false) => Answers::Nobody,
        };
        let processes = if is_running { vec![1] } else { Vec::new() };
        Ok(DaemonStatus { processes, answers, last_output: None })
    }

    fn wanted_nodes(&self) -> Result<Vec<WantedNode>, VerbError> {
        let inner = self.lock();
        let loaded = inner.state.loaded.keys().filter_map(|name| inner.kernel.get(name));
        let wanted = |(name, node): &(PathBuf, Node)| {
            let keeper = inner.keepers.get(name).copied().unwrap_or(NodeKeeper::Installer);
            WantedNode { name: name.clone(), node: *node, keeper }
        };
        Ok(loaded.flat_map(|module| module.nodes.iter().map(wanted)).collect())
    }

    fn binding(&self, address: &str) -> Result<Option<Binding>, VerbError> {
        Ok(self.lock().state.bindings.get(address).cloned())
    }

    fn set_only_driver(&self, address: &str, driver: &str) -> Result<(), VerbError> {
        self.verb("override", address, |inner| {
            let device = inner.state.bindings.get_mut(address).ok_or(Errno::ENOENT)?;
            driver.clone_into(&mut device.only);
            Ok(())
        })
    }

    fn bind_device(&self, address: &str, driver: &str) -> Result<(), VerbError> {
        self.verb("bind-device", address, |inner| {
            if !inner.state.loaded.contains_key(driver) {
                return Err(Errno::ENODEV);
            }
            let device = inner.state.bindings.get_mut(address).ok_or(Errno::ENODEV)?;
            if device.driver.is_some() || !(device.only.is_empty() || device.only == driver) {
                return Err(Errno::ENODEV);
            }
            device.driver = Some(driver.to_owned());
            Ok(())
        })
    }

    fn gpus(&self) -> Result<Vec<Gpu>, VerbError> {
        let mut inner = self.lock();
        inner.counts.gpus += 1;
        Ok(inner.state.gpus.clone())
    }
}
