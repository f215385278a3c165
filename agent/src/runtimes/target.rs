//! Runtimes that this host has: which program brings each, the configuration that its daemon reads, and the
//! unit by which it is restarted.

use std::path::{Path, PathBuf};

use super::host_files::HostFiles;
use super::{processes, programs};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::root::Root;
use longshore_runtimes::distribution::{self, Keeping};
use longshore_runtimes::systemd::Service;
use longshore_runtimes::{Assessment, Distribution, Files, Invocation, Runtime, containerd};

/// One runtime of this host.
#[derive(Debug, Clone)]
pub struct Target {
    /// The program that brings it.
    pub distribution: &'static Distribution,
    /// Configuration that its daemon reads first, from its next start on.
    pub file: PathBuf,
    /// The one that the running process has read, where it is another.
    pub running_file: Option<PathBuf>,
    /// File that is to have the edit, where it is not that one: a drop-in that was named.
    pub edited: Option<PathBuf>,
    /// File that the user named.
    pub named: Option<PathBuf>,
    /// Command line of its daemon, where it is known: of the running process, else of the unit.
    pub invocation: Option<Invocation>,
    /// Command line that its unit will start it with, where the running process has another.
    pub next: Option<Invocation>,
    /// Reason why systemd does not start its unit, or why the unit is not read.
    pub problem: Option<String>,
    /// Way to restart it.
    pub restart: Restart,
}

/// Way to restart a runtime's daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restart {
    /// No daemon reads the configuration.
    None,
    /// A unit of systemd.
    Unit(String),
    /// The service of a snap, or all of one.
    Snap(&'static str),
    /// One of these units, by the role of this host, which is not known.
    OneOf(&'static [&'static str]),
}

impl Restart {
    /// Returns the command; None where there is nothing to restart.
    pub fn command(&self) -> Option<String> {
        let program = match self {
            Self::Snap(_) => "snap",
            Self::None | Self::Unit(_) | Self::OneOf(_) => "systemctl",
        };
        self.unit().map(|unit| format!("{program} restart {unit}"))
    }

    /// Returns the unit of systemd, or the service of the snap.
    pub fn unit(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Unit(unit) => Some(unit.clone()),
            Self::Snap(name) => Some((*name).to_owned()),
            Self::OneOf(units) => Some(units.join(" or ")),
        }
    }
}

impl Target {
    /// Returns the runtime.
    pub fn runtime(&self) -> Runtime {
        self.distribution.runtime
    }

    /// Returns the option by which another command acts on the same file; empty where none is needed.
    pub fn option(&self) -> String {
        let file = match &self.named {
            Some(file) => file,
            None if self.distribution.name.is_empty() => return String::new(),
            None => &self.file,
        };
        format!(" --file {}", file.display())
    }

    /// Returns the file that an assessment's edit changes, else the one that was assessed.
    pub fn edited_path<'a>(&'a self, assessment: &'a Assessment) -> &'a Path {
        assessment.state.edit().map_or(self.path(), |edit| edit.path.as_path())
    }

    /// Returns the file that the user, or the daemon's command line, names.
    pub(super) fn path(&self) -> &Path {
        self.edited.as_deref().unwrap_or(&self.file)
    }
}

/// Returns the runtimes that this host has, in the order of the table.
pub(super) fn found(root: &Root) -> Vec<Target> {
    let here = distribution::ALL.iter().filter(|one| is_here(root, one));
    here.map(|one| target_of(root, one, None)).collect()
}

fn is_here(root: &Root, one: &Distribution) -> bool {
    let has = |path: &&str| root.exists(path).unwrap_or(false);
    let by_name = || programs::find(root, one.runtime.program()).is_some();
    one.marks.iter().any(has)
        || one.programs.iter().any(has)
        || (one.name.is_empty() && by_name())
        || (one.name.is_empty()
            && !one.units_of(&HostFiles(root)).is_empty()
            && one.runtime != Runtime::Podman)
}

/// Returns those of one runtime: its usual one where the host has none.
pub(super) fn of_runtime(root: &Root, runtime: Runtime) -> Vec<Target> {
    let here = found(root).into_iter().filter(|target| target.runtime() == runtime);
    let here: Vec<Target> = here.collect();
    if here.is_empty() { vec![target_of(root, Distribution::usual(runtime), None)] } else { here }
}

/// Returns the one that a command without --file changes: the usual one, or the only one.
///
/// # Errors
/// Exit code 2 where there are several, and none is the usual one.
pub(super) fn to_change(root: &Root, runtime: Runtime) -> Result<Target, Failure> {
    let mut here = of_runtime(root, runtime);
    let usual = here.iter().position(|target| target.distribution.name.is_empty());
    match (usual, here.len()) {
        (Some(usual), _) => Ok(here.swap_remove(usual)),
        (None, 1) => Ok(here.swap_remove(0)),
        (None, _) => {
            let names: Vec<String> = here
                .iter()
                .map(|target| {
                    format!("--file {} ({})", target.file.display(), target.distribution.name)
                })
                .collect();
            let cause = format!("this host has more than one {runtime}: {}", names.join(", "));
            Err(Failure::new(FailureKind::Usage, cause).remedy("name the file of one of them"))
        }
    }
}

/// Returns the one to which a file belongs.
pub(super) fn of_file(root: &Root, runtime: Runtime, file: &Path) -> Target {
    let mut owner = Distribution::of_file(runtime, file);
    if owner.name.is_empty() && runtime == Runtime::Containerd {
        let text = HostFiles(root).read(file).ok().flatten().unwrap_or_default();
        owner = containerd::generator(&String::from_utf8_lossy(&text)).unwrap_or(owner);
    }
    target_of(root, owner, Some(file))
}

fn target_of(root: &Root, one: &'static Distribution, named: Option<&Path>) -> Target {
    let files = HostFiles(root);
    let program = one.runtime.program();
    let running = processes::of_units(root, program, one.units);
    let here = one.units_of(&files);
    let unit =
        running.as_ref().map(|process| process.unit.clone()).or_else(|| match here.as_slice() {
            [first, ..] if one.name.is_empty() => Some((*first).to_owned()),
            [only] => Some((*only).to_owned()),
            _ => None,
        });
    let (service, problem) = match unit.as_deref().map(|unit| Service::read(&files, unit)) {
        Some(Ok(service)) => (service, None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let service = service
        .filter(|service| processes::is_program(&service.argv, program))
        .map(Invocation::from);
    let (invocation, next) = match running {
        Some(mut process) => {
            process.variables =
                service.as_ref().map(|service| service.variables.clone()).unwrap_or_default();
            let same =
                service.as_ref().is_some_and(|service| service.argv[1..] == process.argv[1..]);
            process.at = service.as_ref().filter(|_| same).and_then(|service| service.at.clone());
            (Some(process), service.filter(|_| !same))
        }
        None => (service, None),
    };
    let read_by = |it: &Invocation| flagged(one, it).unwrap_or_else(|| PathBuf::from(one.file));
    let by_flag = next.as_ref().or(invocation.as_ref()).map(read_by);
    let running_file = match (named, &next) {
        (None, Some(_)) => {
            invocation.as_ref().map(read_by).filter(|file| Some(file) != by_flag.as_ref())
        }
        _ => None,
    };
    let named_top = named.and_then(|file| one.top_of(file));
    let file = named_top.clone().or_else(|| named.map(Path::to_path_buf)).or(by_flag);
    Target {
        distribution: one,
        file: file.unwrap_or_else(|| PathBuf::from(one.file)),
        running_file,
        edited: named_top.and(named.map(Path::to_path_buf)),
        named: named.map(Path::to_path_buf),
        invocation,
        next,
        problem,
        restart: restart(one, unit),
    }
}

/// Returns the configuration that a command line names. One that is written anew from a template is no file
/// to edit.
pub(super) fn flagged(one: &Distribution, invocation: &Invocation) -> Option<PathBuf> {
    let names: &[&str] = match one.runtime {
        Runtime::Docker => &["config-file"],
        Runtime::Containerd => &["config", "c"],
        Runtime::Crio | Runtime::Podman => return None,
    };
    if matches!(one.keeping, Keeping::Template(_)) {
        return None;
    }
    invocation.value(names).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn restart(one: &Distribution, unit: Option<String>) -> Restart {
    match (one.snap, unit) {
        _ if one.runtime == Runtime::Podman => Restart::None,
        (Some(name), _) => Restart::Snap(name),
        (None, Some(unit)) => Restart::Unit(unit),
        (None, None) => match one.units {
            [first, ..] if one.name.is_empty() => Restart::Unit((*first).to_owned()),
            units => Restart::OneOf(units),
        },
    }
}
