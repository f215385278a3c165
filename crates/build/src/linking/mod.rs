//! Links proprietary modules of an archive's packages from their objects, in the sandbox.
//!
//! The licence of NVIDIA's objects forbids to distribute them linked with the kernel's, so Ubuntu's packages link
//! them on the host, in a maintainer script. That script is not run: its link commands are read as text, and bounded
//! ([`longshore_sources::finished::recipe`]). The linker is that of the objects' own release, out of the archive, in a
//! root of its own; it runs as the compiling user, without a network. A module counts only with the SHA-256
//! that the package states, and gets the package's detached signature.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::outputs::OutputDir;
use super::sandbox::{self, Bind, Bound, Outcome, Spec};
use super::{BuildUser, root, user};
use longshore_core::digest::hex;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::{Progress, Unit};
use longshore_core::scratch::{ScratchDir, claim};
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_debian::faults;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::layout::MAX_MODULE;
use longshore_sources::finished::objects::{self, Objects};
use longshore_sources::finished::recipe::{LinkCommand, is_module};
use longshore_sources::finished::{self, FinishedModules, LinkedFrom};

/// The linker inside the root.
const PROGRAM: &str = "/usr/bin/ld.bfd";
/// Directory of the objects inside, below the directory that is bound to /build.
const BITS: &str = "bits";
/// Maximum size of everything below /build while the linker runs: objects, their links, and the modules.
const MOST: u64 = 4 << 30;
/// Maximum number of files there: a package has some hundred objects.
const MOST_NAMES: usize = 20_000;
/// Maximum number of the linker's output lines in a failure.
const LINES: usize = 6;

/// Linker of a package's objects.
#[derive(Debug, Clone, Copy)]
pub struct Linking<'a> {
    /// The package.
    pub of: &'a FinishedModules,
    /// Packages that its modules are linked from; they are in the store.
    pub from: &'a LinkedFrom,
    /// The sandbox's helper, as in [`super::Request`].
    pub helper: &'a Path,
    /// The user that the linker runs as.
    pub user: BuildUser,
    /// Time limit of each link, and of waiting on another process that assembles the same root.
    pub limit: Duration,
}

impl Linking<'_> {
    /// Assembles the linker's root.
    ///
    /// # Errors
    /// As [`root::assemble`].
    pub async fn root(
        &self,
        archive: &Archive,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<PathBuf, Failure> {
        root::assemble(&self.from.linker, self.limit, archive, store, progress).await
    }

    /// Links the modules with the linker in `root`, and stores them; returns the set of them, which is not recorded
    /// yet.
    ///
    /// # Errors
    /// Exit code 10 where there can be no sandbox; 13 where the objects do not link to the modules that the package
    /// states; 15 where the store cannot be written, or the user's id is in use.
    pub async fn link(
        &self,
        root: &Path,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<ModuleSet, Failure> {
        let work = Arc::new(claim(store, "link")?);
        let dir = work.path().join("build");
        let objects = self.unpack(&work, store).await?;
        if fs::symlink_metadata(root.join(PROGRAM.trim_start_matches('/'))).is_err() {
            return Err(self.refused(&format!("{} has no {PROGRAM}", self.from.linker_version())));
        }
        // From here on root writes nothing there, and reads nothing without checks.
        user::hand_over(dir.clone(), self.user, Some(Arc::clone(&work) as _)).await?;
        let total = objects.commands.len();
        let task = progress.begin("linking the modules", Some(total as u64), Unit::Items);
        for (number, command) in objects.commands.iter().enumerate() {
            task.note(&command.output);
            let outcome = work.path().join(format!("ld-{number}"));
            let held = Some(Arc::clone(&work) as _);
            self.run(Spec { held, ..self.spec(root, &dir, command, outcome) }, &dir).await?;
            task.advance(1);
        }
        user::still_unused(self.user).await?;
        let (of, store, held) = (self.of.clone(), store.clone(), Arc::clone(&work));
        let linked = move || {
            let modules = held.path().join("modules");
            fs::create_dir(&modules).map_err(|e| write_failure(&modules, e))?;
            take(&of, &objects, &held.path().join("build"), &modules)?;
            finished::store_from(&modules, &of, &store)
        };
        let set = root::in_thread("reading the linked modules", linked).await?;
        ScratchDir::remove(work);
        Ok(set)
    }

    /// Unpacks the objects, and makes the directories that the commands write to.
    async fn unpack(&self, work: &Arc<ScratchDir>, store: &Store) -> Result<Objects, Failure> {
        let (work, store) = (Arc::clone(work), store.clone());
        let (of, from) = (self.of.clone(), self.from.clone());
        let unpack = move || {
            let bits = work.path().join("build").join(BITS);
            fs::create_dir_all(&bits).map_err(|e| write_failure(&bits, e))?;
            let objects = objects::unpack(&of, &from, &store, &bits)?;
            for command in &objects.commands {
                let output = bits.join(&command.output);
                let dir = output.parent().unwrap_or(&bits);
                fs::create_dir_all(dir).map_err(|e| write_failure(dir, e))?;
            }
            Ok(objects)
        };
        root::in_thread("unpacking the objects", unpack).await
    }

    fn spec(&self, root: &Path, dir: &Path, command: &LinkCommand, outcome: PathBuf) -> Spec {
        let environment =
            [("PATH", "/usr/bin"), ("HOME", "/build"), ("TMPDIR", "/build"), ("LC_ALL", "C")];
        let program = std::iter::once(PROGRAM.to_owned());
        Spec {
            root: root.to_path_buf(),
            binds: vec![Bind::new(dir, "/build")],
            command: program.chain(command.arguments.iter().cloned()).collect(),
            environment: environment.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
            handed_on: Vec::new(),
            directory: Path::new("/build").join(BITS),
            user: Some(self.user.id()),
            bound: Bound { bytes: MOST, entries: MOST_NAMES },
            outcome,
            held: None,
        }
    }

    async fn run(&self, spec: Spec, dir: &Path) -> Result<(), Failure> {
        let mut said: Vec<String> = Vec::new();
        let mut note = |line: &str| {
            tracing::debug!("{line}");
            if said.len() < LINES {
                said.push(line.trim().to_owned());
            }
        };
        match sandbox::run(self.helper, &spec, self.limit, &mut note).await? {
            Outcome::Exited(0) => Ok(()),
            Outcome::Outgrown => {
                let most = MOST >> 30;
                Err(self.refused(&format!("its objects link to more than {most} GiB")))
            }
            Outcome::NoSpace => Err(write_failure(dir, ErrorKind::StorageFull.into())),
            Outcome::TimedOut => {
                let seconds = self.limit.as_secs();
                Err(self.refused(&format!("its objects do not link within {seconds} s")))
            }
            outcome => {
                let why = format!("its objects do not link: {outcome:?}, {}", said.join("; "));
                Err(self.refused(&why))
            }
        }
    }

    fn refused(&self, why: &str) -> Failure {
        faults::bad(&self.from.objects.name, why)
    }
}

/// Takes the linked modules from `dir`, compares them with the package's digests, and writes them with their signatures
/// to `modules`.
fn take(
    of: &FinishedModules,
    objects: &Objects,
    dir: &Path,
    modules: &Path,
) -> Result<(), Failure> {
    let bad = |why: String| faults::bad(&of.package.name, &why);
    let left =
        OutputDir::open(dir).or_fail(FailureKind::Bug, || format!("reading {}", dir.display()))?;
    let mut made = outputs(&objects.commands);
    for (name, stated) in &objects.digests {
        let at = made.iter().position(|(module, _)| module == name);
        let at = at.ok_or_else(|| bad(format!("no link command makes {name}")))?;
        let (_, path) = made.swap_remove(at);
        let module = left.read(&path, MAX_MODULE).map_err(|e| bad(format!("{name}: {e}")))?;
        let digest = hex(&Sha256::digest(&module));
        if digest != *stated {
            let linker = of.linked.as_ref().map(|from| from.describe()).unwrap_or_default();
            return Err(bad(format!(
                "{name} has the sha256 {digest}, and SHA256SUMS states {stated} ({linker})"
            )));
        }
        let whole = objects.signed(name, module).map_err(bad)?;
        let path = modules.join(name);
        fs::write(&path, whole).map_err(|e| write_failure(&path, e))?;
    }
    match made.first() {
        Some((name, _)) => Err(bad(format!("its SHA256SUMS has no {name}"))),
        None => Ok(()),
    }
}

/// Returns the modules that commands write: file name, and path below the directory of /build.
fn outputs(commands: &[LinkCommand]) -> Vec<(String, PathBuf)> {
    let module = |command: &LinkCommand| {
        let output = &command.output;
        let name = output.rsplit('/').next().filter(|name| is_module(name))?.to_owned();
        let path = match output.strip_prefix("../") {
            Some(above) => PathBuf::from(above),
            None => Path::new(BITS).join(output),
        };
        Some((name, path))
    };
    let mut made: Vec<_> = commands.iter().filter_map(module).collect();
    made.sort();
    made.dedup();
    made
}

#[cfg(test)]
mod tests;
