//! Container runtimes of this host: whether they read CDI specs, and the edit of their configuration.
//!
//! The original is saved durably before a file is changed, so that `revert` puts it back byte for byte
//! however early a process was killed. The edit is no step of the journal: it stays while no agent runs
//! and over a boot, until it is reverted.

mod host_files;
mod of_host;
mod programs;
mod saved;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::config::Config;
use host_files::HostFiles;
use longshore_core::disk::Disk;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::paths::{Paths, STORE};
use longshore_core::root::{Place, Root};
use longshore_runtimes::{Assessment, Edit, Files, Runtime, Version};
use longshore_runtimes::{containerd, difference, docker, readers};
use saved::{Found, ORIGINALS, Originals, Saved};

/// Time limit of a program that prints its version or configuration.
const ASKING: Duration = Duration::from_secs(10);
/// Time limit of a restart: that of a unit's start by default (systemd-system.conf(5)), and its stop.
const RESTARTING: Duration = Duration::from_secs(180);

/// The runtimes of one host.
pub struct HostRuntimes {
    root: Root,
    paths: Paths,
    disk: Disk,
}

/// Outcome of a revert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reverted {
    /// The original is back; the difference.
    Restored(String),
    /// The file is as it was before.
    AsBefore,
    /// Nothing was configured.
    Nothing,
}

impl HostRuntimes {
    /// Opens the host's root.
    ///
    /// # Errors
    /// Exit code 15 where it cannot be opened.
    pub fn open(config: &Config) -> Result<Self, Failure> {
        let (paths, disk) = (config.paths.clone(), config.disk());
        let root = Root::open(&paths.host_root)
            .or_fail(FailureKind::Preflight, || "looking at the host")?;
        Ok(Self { root, paths, disk })
    }

    /// Returns the runtimes whose program or configuration this host has.
    pub fn found(&self) -> Vec<Runtime> {
        let is_found = |runtime: &Runtime| {
            programs::find(&self.root, runtime.program()).is_some()
                || self.root.exists(runtime.configuration()).unwrap_or(false)
        };
        Runtime::ALL.into_iter().filter(is_found).collect()
    }

    /// Assesses the configuration of a runtime, in `file` or at its usual path.
    pub fn assess(&self, runtime: Runtime, file: Option<&Path>) -> Assessment {
        let version = self.version(runtime);
        let file = file.unwrap_or(Path::new(runtime.configuration()));
        let files = HostFiles(&self.root);
        match runtime {
            Runtime::Docker => match files.read(file) {
                Ok(bytes) => docker::assess(version, file, bytes),
                Err(error) => unreadable(runtime, version, file, &error),
            },
            Runtime::Containerd => {
                let dump = self.dump(file);
                containerd::assess(version, file, &files, dump.as_deref())
            }
            Runtime::Crio => readers::crio(version, &files),
            Runtime::Podman => readers::podman(version, &files),
        }
    }

    fn version(&self, runtime: Runtime) -> Option<Version> {
        Version::find(&self.output(runtime, &["--version"])?)
    }

    fn dump(&self, file: &Path) -> Option<String> {
        if !self.root.exists(file).unwrap_or(false) {
            return None;
        }
        self.output(Runtime::Containerd, &["--config", file.to_str()?, "config", "dump"])
    }

    /// Asks a runtime's program; None where this host has none, or it does not answer. Those of a captured
    /// tree are not run.
    fn output(&self, runtime: Runtime, arguments: &[&str]) -> Option<String> {
        if self.paths.is_captured() {
            return None;
        }
        let program = programs::find(&self.root, runtime.program())?;
        let output = programs::output(self.root.path(), &program, arguments, ASKING);
        output.inspect_err(|error| tracing::warn!("asking {runtime}: {error}")).ok()
    }

    /// Checks that a runtime's configuration, and the directory of the originals, are the host's, and not
    /// those of a container's own file system.
    ///
    /// # Errors
    /// Exit code 19 where one is the container's.
    pub fn check_is_hosts(&self, runtime: Runtime, file: Option<&Path>) -> Result<(), Failure> {
        let file = file.unwrap_or(Path::new(runtime.configuration()));
        if self.is_of_container(file) {
            let why = format!("which {runtime} does not read");
            return Err(of_host::refused(file, &why));
        }
        self.check_originals()
    }

    fn check_originals(&self) -> Result<(), Failure> {
        let dir = Path::new(STORE).join(ORIGINALS);
        match self.is_of_container(&dir) {
            true => Err(of_host::refused(&dir, "and the original would end with it")),
            false => Ok(()),
        }
    }

    fn is_of_container(&self, path: &Path) -> bool {
        let is_own = self.paths.host_root == self.paths.root;
        is_own && of_host::is_of_container(&self.root, path)
    }

    /// Carries out an edit, after its original was saved.
    ///
    /// # Errors
    /// Exit code 19 where the file is another by now, or cannot be replaced.
    pub fn configure(&self, runtime: Runtime, edit: &Edit) -> Result<(), Failure> {
        let (originals, earlier) =
            self.prepare(runtime, edit).map_err(|e| unwritten(&edit.path, e))?;
        let pending = originals.is_restart_pending(runtime).unwrap_or(true);
        let carried_out = originals.mark_restart(runtime, true).and_then(|()| self.carry_out(edit));
        let Err(error) = carried_out else { return Ok(()) };
        // A rename that was not synced is there all the same, and needs its original.
        if !self.is_edited(edit) {
            let restored = match &earlier {
                Some(earlier) => originals.write(runtime, earlier),
                None => originals.remove(runtime),
            };
            let restored = restored.and_then(|()| originals.mark_restart(runtime, pending));
            if let Err(error) = restored {
                tracing::warn!("the saved original of {runtime} is not as before: {error}");
            }
        }
        Err(unwritten(&edit.path, error))
    }

    /// True if the file has the edit, or cannot be read.
    fn is_edited(&self, edit: &Edit) -> bool {
        let present = self.root.place(&edit.path).and_then(|place| host_files::read(&place));
        present.map_or(true, |present| present.as_deref() == Some(edit.after.as_bytes()))
    }

    /// Saves the original; returns the one that was saved before.
    fn prepare(&self, runtime: Runtime, edit: &Edit) -> io::Result<(Originals, Option<Saved>)> {
        let dir = edit.path.parent().unwrap_or(Path::new("/"));
        let originals = Originals::make(&self.root, Path::new(STORE), self.disk)?;
        let earlier = originals.read(runtime)?;
        if let Some(earlier) = earlier.as_ref().filter(|earlier| earlier.path != edit.path) {
            return Err(io::Error::other(format!(
                "{} is configured already: `longshore runtime revert {runtime}` first",
                earlier.path.display()
            )));
        }
        let made_dir = !self.root.exists(dir)?;
        originals.write(runtime, &Saved::of(edit, made_dir))?;
        Ok((originals, earlier))
    }

    fn carry_out(&self, edit: &Edit) -> io::Result<()> {
        self.make_dir(&edit.path)?;
        let place = self.root.place(&edit.path)?;
        let present = host_files::read(&place)?;
        if present.as_deref() != edit.before.as_deref().map(str::as_bytes) {
            return Err(io::Error::other("it was changed meanwhile: try again"));
        }
        host_files::replace(&place, edit.after.as_bytes(), self.disk)
    }

    /// Makes the directory of a file, in one that exists.
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let Some(dir) = path.parent().filter(|dir| dir.parent().is_some()) else { return Ok(()) };
        let Place { dir, name, .. } = self.root.place(dir)?;
        match mkdirat(&dir, name.as_os_str(), Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Puts the original back; with `force` also over a file that was edited since.
    ///
    /// # Errors
    /// Exit code 19 where it was edited since, with the difference, or cannot be replaced, or is of this
    /// container alone.
    pub fn revert(&self, runtime: Runtime, force: bool) -> Result<Reverted, Failure> {
        self.check_originals()?;
        let unread = |error| unwritten(&Path::new(STORE).join(ORIGINALS), error);
        let originals = Originals::open(&self.root, Path::new(STORE), self.disk).map_err(unread)?;
        let Some(originals) = originals else { return Ok(Reverted::Nothing) };
        let Some(saved) = originals.read(runtime).map_err(unread)? else {
            return Ok(Reverted::Nothing);
        };
        self.check_is_hosts(runtime, Some(&saved.path))?;
        let failed = |error| unwritten(&saved.path, error);
        let place = self.root.place(&saved.path).map_err(failed)?;
        host_files::clear(&place);
        let present = host_files::read(&place).map_err(failed)?;
        let reverted = match saved.compare(present.as_deref()) {
            Found::Before => Reverted::AsBefore,
            Found::Changed if !force => return Err(edited(runtime, &saved, present)),
            Found::After | Found::Changed => {
                originals.mark_restart(runtime, true).map_err(unread)?;
                self.restore(&saved, &place).map_err(failed)?;
                Reverted::Restored(shown(&saved, present))
            }
        };
        originals.remove(runtime).map_err(unread)?;
        Ok(reverted)
    }

    fn restore(&self, saved: &Saved, place: &Place) -> io::Result<()> {
        if let Some(before) = &saved.before {
            return host_files::replace(place, before.as_bytes(), self.disk);
        }
        host_files::remove(place, self.disk)?;
        if let (true, Some(dir)) = (saved.made_dir, saved.path.parent()) {
            let Place { dir, name, .. } = self.root.place(dir)?;
            // It stays where others have files in it.
            let _ = unlinkat(&dir, name.as_os_str(), UnlinkatFlags::RemoveDir);
        }
        Ok(())
    }

    /// True if the runtime was not restarted by this program since it changed the configuration.
    ///
    /// # Errors
    /// Exit code 19 where that cannot be read.
    pub fn is_restart_pending(&self, runtime: Runtime) -> Result<bool, Failure> {
        let marked = Originals::open(&self.root, Path::new(STORE), self.disk).and_then(|found| {
            found.map_or(Ok(false), |originals| originals.is_restart_pending(runtime))
        });
        marked.map_err(|error| unwritten(&Path::new(STORE).join(ORIGINALS), error))
    }

    fn forget_restart(&self, runtime: Runtime) -> io::Result<()> {
        let originals = Originals::open(&self.root, Path::new(STORE), self.disk)?;
        originals.map_or(Ok(()), |originals| originals.mark_restart(runtime, false))
    }

    /// Restarts the service of a runtime, and notes that.
    ///
    /// # Errors
    /// Exit code 19 where it fails.
    pub fn restart(&self, runtime: Runtime) -> Result<(), Failure> {
        let Some(unit) = runtime.unit() else { return Ok(()) };
        let failed = |error: io::Error| {
            Failure::new(FailureKind::Runtime, format!("restarting {unit}"))
                .with_source(error)
                .remedy(format!("see `journalctl -u {unit}`; `longshore runtime revert {runtime}` undoes the edit"))
        };
        let none = || failed(io::Error::other("this host has no systemctl"));
        let program = programs::find(&self.root, "systemctl").ok_or_else(none)?;
        programs::output(self.root.path(), &program, &["restart", unit], RESTARTING)
            .map_err(failed)?;
        self.forget_restart(runtime)
            .map_err(|error| unwritten(&Path::new(STORE).join(ORIGINALS), error))
    }
}

fn shown(saved: &Saved, present: Option<Vec<u8>>) -> String {
    let present = present.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    difference(&saved.path.to_string_lossy(), present.as_deref(), saved.before.as_deref())
}

fn unreadable(
    runtime: Runtime,
    version: Option<Version>,
    file: &Path,
    error: &io::Error,
) -> Assessment {
    let reason = format!("reading {}: {error}", file.display());
    let remedy = "make it a readable file of less than 1 MiB".to_owned();
    let state = longshore_runtimes::State::Refused { reason, remedy };
    Assessment { runtime, version, state, notes: Vec::new() }
}

fn unwritten(path: &Path, error: io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::ResourceBusy => "the file itself is a mount: edit it where it comes from",
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            "run as root with the host's root writable; see `lsattr` for an immutable file"
        }
        _ => "correct that, and run the command again; the file is as it was",
    };
    let cause = format!("editing {}", path.display());
    Failure::new(FailureKind::Runtime, cause).with_source(error).remedy(remedy)
}

fn edited(runtime: Runtime, saved: &Saved, present: Option<Vec<u8>>) -> Failure {
    let cause = format!(
        "{} was edited since longshore configured {runtime}; putting the original back would change:\n{}",
        saved.path.display(),
        shown(saved, present)
    );
    Failure::new(FailureKind::Runtime, cause).remedy(format!(
        "edit the file by hand, or lose these edits with `longshore runtime revert {runtime} --force`"
    ))
}
