//! Container runtimes of this host: whether they read CDI specs, and the edit of their configuration.
//!
//! The original is saved durably before a file is changed, so that `revert` puts it back byte for byte
//! however early a process was killed. The edit is no step of the journal: it stays while no agent runs
//! and over a boot, until it is reverted.

mod asking;
mod assessing;
#[cfg(test)]
mod field_tests;
mod host_files;
mod of_host;
mod processes;
mod programs;
pub mod report;
mod saved;
mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::config::Config;
use longshore_core::disk::Disk;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::paths::{Paths, STORE};
use longshore_core::root::{ResolvedName, Root};
use longshore_runtimes::{Edit, Runtime, difference};
use saved::{EditedFileState, ORIGINALS, Originals, Saved};
pub use target::{Restart, Target};

/// Time limit of a program that prints its version or configuration.
const ASKING: Duration = Duration::from_secs(10);
/// Time limit of a restart: that of a unit's start by default (systemd-system.conf(5)), and its stop.
const RESTARTING: Duration = Duration::from_secs(180);

/// The runtimes of one host.
pub struct HostRuntimes {
    root: Root,
    paths: Paths,
    disk: Disk,
    /// Time limit of one question to a program.
    asking: Duration,
}

/// Outcome of a revert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reverted {
    /// The original is back.
    Restored {
        /// The file.
        path: PathBuf,
        /// The difference.
        difference: String,
    },
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
        Ok(Self { root, paths, disk, asking: ASKING })
    }

    /// Returns the runtimes that this host has.
    pub fn found(&self) -> Vec<Target> {
        target::found(&self.root)
    }

    /// Returns those of one runtime: its usual one where the host has none.
    pub fn of_runtime(&self, runtime: Runtime) -> Vec<Target> {
        target::of_runtime(&self.root, runtime)
    }

    /// Returns the one that has a file, or without one that a command changes.
    ///
    /// # Errors
    /// Exit code 2 where there are several, and none is the usual one.
    pub fn target(&self, runtime: Runtime, file: Option<&Path>) -> Result<Target, Failure> {
        match file {
            Some(file) => Ok(target::of_file(&self.root, runtime, file)),
            None => target::to_change(&self.root, runtime),
        }
    }

    /// Checks that a runtime's configuration, and the directory of the originals, are the host's, and not
    /// those of a container's own file system.
    ///
    /// # Errors
    /// Exit code 19 where one is the container's.
    pub fn check_is_hosts(&self, runtime: Runtime, file: &Path) -> Result<(), Failure> {
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

    /// Carries out an edit, after the runtime's program took its text and the original was saved.
    ///
    /// # Errors
    /// Exit code 19 where the program refuses the text or does not answer, the file is another by now, or
    /// cannot be replaced.
    pub fn configure(&self, target: &Target, edit: &Edit) -> Result<(), Failure> {
        self.judge(target, edit).map_err(|error| unwritten(&edit.path, error))?;
        let runtime = target.runtime();
        let (originals, earlier) =
            self.prepare(runtime, edit).map_err(|e| unwritten(&edit.path, e))?;
        let pending = originals.pending(runtime).map_err(in_originals);
        let pending = pending.map_err(|error| unwritten(&edit.path, error))?;
        let marked = originals.mark(runtime, &with(&pending, &edit.path)).map_err(in_originals);
        let carried_out = marked.and_then(|()| self.carry_out(edit));
        let Err(error) = carried_out else { return Ok(()) };
        // A rename that was not synced is there all the same, and needs its original.
        if !self.is_edited(edit) {
            let restored = match &earlier {
                Some(earlier) => originals.write(runtime, earlier),
                None => originals.remove(runtime),
            };
            let restored = restored.and_then(|()| originals.mark(runtime, &pending));
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
        let originals = self.originals_made()?;
        let earlier = originals.read(runtime).map_err(in_originals)?;
        if let Some(earlier) = earlier.as_ref().filter(|earlier| earlier.path != edit.path) {
            return Err(io::Error::other(format!(
                "{} is configured already: `longshore runtime revert {runtime}` first",
                earlier.path.display()
            )));
        }
        let made_dir = !self.root.exists(dir)?;
        originals.write(runtime, &Saved::from_edit(edit, made_dir)).map_err(in_originals)?;
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
        let ResolvedName { dir, name, .. } = self.root.place(dir)?;
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
        let Some(originals) = self.originals()? else { return Ok(Reverted::Nothing) };
        let Some(saved) = originals.read(runtime).map_err(unread)? else {
            return Ok(Reverted::Nothing);
        };
        self.check_is_hosts(runtime, &saved.path)?;
        let failed = |error| unwritten(&saved.path, error);
        let place = self.root.place(&saved.path).map_err(failed)?;
        host_files::clear(&place);
        let present = host_files::read(&place).map_err(failed)?;
        let reverted = match saved.compare(present.as_deref()) {
            EditedFileState::Before => Reverted::AsBefore,
            EditedFileState::Changed if !force => return Err(edited(runtime, &saved, present)),
            EditedFileState::After | EditedFileState::Changed => {
                let pending = originals.pending(runtime).map_err(unread)?;
                originals.mark(runtime, &with(&pending, &saved.path)).map_err(unread)?;
                self.restore(&saved, &place).map_err(failed)?;
                Reverted::Restored { difference: shown(&saved, present), path: saved.path.clone() }
            }
        };
        originals.remove(runtime).map_err(unread)?;
        Ok(reverted)
    }

    fn restore(&self, saved: &Saved, place: &ResolvedName) -> io::Result<()> {
        if let Some(before) = &saved.before {
            return host_files::replace(place, before.as_bytes(), self.disk);
        }
        host_files::remove(place, self.disk)?;
        if let (true, Some(dir)) = (saved.made_dir, saved.path.parent()) {
            let ResolvedName { dir, name, .. } = self.root.place(dir)?;
            // It stays where others have files in it.
            let _ = unlinkat(&dir, name.as_os_str(), UnlinkatFlags::RemoveDir);
        }
        Ok(())
    }

    /// Opens the saved originals; None where nothing was ever configured.
    fn originals(&self) -> Result<Option<Originals>, Failure> {
        Originals::open(&self.root, Path::new(STORE), self.disk).map_err(unread)
    }

    /// As [`HostRuntimes::originals`]; makes their directory where it is absent.
    fn originals_made(&self) -> io::Result<Originals> {
        Originals::make(&self.root, Path::new(STORE), self.disk).map_err(in_originals)
    }

    /// Returns the runtimes whose configuration this program changed since it restarted them.
    ///
    /// # Errors
    /// Exit code 19 where that cannot be read.
    pub fn pending_restarts(&self, runtime: Runtime) -> Result<Vec<Target>, Failure> {
        let Some(originals) = self.originals()? else { return Ok(Vec::new()) };
        let files = originals.pending(runtime).map_err(unread)?;
        let mut found: Vec<Target> = Vec::new();
        for file in &files {
            let target = target::of_file(&self.root, runtime, file);
            if found.iter().all(|known| known.restart != target.restart) {
                found.push(target);
            }
        }
        Ok(found)
    }

    fn forget_restart(&self, target: &Target) -> Result<(), Failure> {
        let runtime = target.runtime();
        let Some(originals) = self.originals()? else { return Ok(()) };
        let mut files = originals.pending(runtime).map_err(unread)?;
        files.retain(|file| target::of_file(&self.root, runtime, file).restart != target.restart);
        originals.mark(runtime, &files).map_err(unread)
    }

    /// Restarts the service of a runtime, and notes that.
    ///
    /// # Errors
    /// Exit code 19 where it fails, or which unit it is is not known.
    pub fn restart(&self, target: &Target) -> Result<(), Failure> {
        let runtime = target.runtime();
        let (program, arguments, log) = match &target.restart {
            Restart::None => return Ok(()),
            Restart::Unit(unit) => {
                ("systemctl", ["restart", unit], format!("journalctl -u {unit}"))
            }
            Restart::Snap(name) => ("snap", ["restart", *name], format!("snap logs {name}")),
            Restart::OneOf(units) => {
                let cause = format!(
                    "restarting {runtime}: this host has none of {}, or several",
                    units.join(", ")
                );
                return Err(Failure::new(FailureKind::Runtime, cause)
                    .remedy("restart the one that runs here by hand"));
            }
        };
        let [_, name] = arguments;
        let failed = |error: io::Error| {
            Failure::new(FailureKind::Runtime, format!("restarting {name}"))
                .with_source(error)
                .remedy(format!(
                    "see `{log}`; `longshore runtime revert {runtime}` undoes the edit"
                ))
        };
        let none = || failed(io::Error::other(format!("this host has no {program}")));
        let program = programs::find(&self.root, program).ok_or_else(none)?;
        programs::output(self.root.path(), &program, &arguments, RESTARTING).map_err(failed)?;
        self.forget_restart(target)
    }
}

fn shown(saved: &Saved, present: Option<Vec<u8>>) -> String {
    let present = present.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    difference(&saved.path.to_string_lossy(), present.as_deref(), saved.before.as_deref())
}

fn with(files: &BTreeSet<PathBuf>, file: &Path) -> BTreeSet<PathBuf> {
    files.iter().cloned().chain([file.to_path_buf()]).collect()
}

/// Names the directory of the originals in an error of it.
fn in_originals(error: io::Error) -> io::Error {
    let dir = Path::new(STORE).join(ORIGINALS);
    io::Error::new(error.kind(), format!("{}: {error}", dir.display()))
}

/// Returns the failure of a directory of originals that cannot be read or written.
fn unread(error: io::Error) -> Failure {
    unwritten(&Path::new(STORE).join(ORIGINALS), error)
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
