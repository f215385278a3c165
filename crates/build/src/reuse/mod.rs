//! Reuse of earlier builds' results: conftest answers and objects.
//!
//! Both flavours of a driver, and its next version, mostly ask the kernel the same questions
//! (NVIDIA's conftests, 40 % of a compile) and mostly compile the same files. An [answer](answers)
//! is reused if the question, the kernel's headers, the compiler and its flags are the same;
//! objects are cached by ccache, if the archive has it. Neither changes a byte of a module, and a
//! build goes on without them if they fail.

mod answers;
mod kbuild;
mod objects;
mod script;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::driver_sources::walk;
use super::outputs::OutputDir;
use super::sandbox::Bind;
use crate::BuildUser;
use answers::Answers;
use longshore_core::digest::hex;
use longshore_core::progress::{Progress, Reused};
use longshore_core::store::Store;
use longshore_modules::artifact::HeadersFrom;
#[cfg(test)]
pub(crate) use objects::make_dir as make_objects;
use script::Script;

/// The compile that reuses results.
#[derive(Debug, Clone, Copy)]
pub(super) struct Purpose<'a> {
    pub(super) store: &'a Store,
    /// The hermetic root.
    pub(super) root: &'a Path,
    /// The kernel, where the root may have several.
    pub(super) release: Option<&'a str>,
    /// The directory with the sources in `driver`.
    pub(super) work: &'a Path,
    pub(super) modules: &'a [&'static str],
    /// The user that compiles.
    pub(super) user: BuildUser,
    /// Origin of the kernel's headers: results of signed ones are kept apart.
    pub(super) headers_from: HeadersFrom,
}

/// Results available to a compile, and the collection of new ones.
pub(super) struct Reuse {
    answers: Option<Answers>,
    environment: Vec<(String, String)>,
    binds: Vec<Bind>,
    work: PathBuf,
}

impl Reuse {
    /// Prepares the sources in `work/driver` for the reuse of `root`'s results; on any error the
    /// build runs without them.
    pub(super) fn prepare(purpose: Purpose<'_>) -> Self {
        Self::try_prepare(purpose).unwrap_or_else(|error| {
            tracing::warn!("building without earlier builds' results: {error}");
            Self::nothing(purpose.work)
        })
    }

    fn nothing(work: &Path) -> Self {
        let (environment, binds) = (Vec::new(), Vec::new());
        Self { answers: None, environment, binds, work: work.to_path_buf() }
    }

    fn try_prepare(purpose: Purpose<'_>) -> io::Result<Self> {
        let Purpose { store, root, release, work, modules, user, headers_from } = purpose;
        let mut reuse = Self::nothing(work);
        let sources = work.join("driver");
        let kbuild_path = sources.join("Kbuild");
        let kbuild = fs::read_to_string(&kbuild_path)?;
        let conftest = fs::read_to_string(sources.join("conftest.sh"))?;
        if !kbuild::is_known(&kbuild) {
            tracing::info!("unknown form of Kbuild: building without earlier builds' results");
            return Ok(reuse);
        }
        let names = header_names(&sources)?;
        let mut kernel = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(release) = release {
            kernel = hex(&Sha256::digest(format!("{kernel} {release}")));
        }
        if let Some(script) = Script::parse(&conftest, &names) {
            let mut answers = Answers::recall(store, &kernel, script, &names);
            answers.write(&work.join("answers"))?;
            reuse.answers = Some(answers);
        }
        if objects::are_kept(root) {
            let objects = objects::make_dir(store, user, headers_from)?;
            // Mount point of the objects' directory.
            fs::create_dir_all(work.join("objects"))?;
            store.mark_used(Path::new("objects"));
            let context = hex(&Sha256::digest(format!("{kernel} {}", names.join("\n"))));
            reuse.environment = objects::environment(&context);
            reuse.binds.push(objects::bind(objects));
        }
        let addition = kbuild::Addition {
            asks: reuse.answers.is_some(),
            keeps_objects: !reuse.binds.is_empty(),
            versioned: kbuild::versioned(&sources, modules)?,
        };
        fs::write(&kbuild_path, kbuild + &addition.text())?;
        Ok(reuse)
    }

    /// Returns the environment variables that the compile needs for it.
    pub(super) fn environment(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.environment.iter().cloned()
    }

    /// Returns the bind mounts that the compile's sandbox needs for it.
    pub(super) fn binds(&self) -> impl Iterator<Item = Bind> + '_ {
        self.binds.iter().cloned()
    }

    /// Removes the cache of objects, which a compile may have filled: it has no bound of its own then.
    pub(super) fn drop_objects(&self) {
        for bind in &self.binds {
            if let Err(error) = fs::remove_dir_all(&bind.source) {
                tracing::warn!("removing {}: {error}", bind.source.display());
            }
        }
    }

    /// Reads a line of make's output.
    pub(super) fn line(&mut self, line: &str) {
        if let Some(answers) = &mut self.answers {
            answers.line(line);
        }
    }

    /// Stores the results of a compile that succeeded.
    pub(super) fn keep(self, store: &Store, progress: &dyn Progress) {
        let left = match OutputDir::open(&self.work) {
            Ok(left) => left,
            Err(error) => {
                tracing::warn!("this build's results were not kept: {error}");
                return;
            }
        };
        let (objects, compiled) = objects::used(&left);
        progress.reused(Reused::Object, objects as u64, compiled as u64);
        if let Some(answers) = self.answers {
            let answered = answers.known();
            tracing::info!(answered, objects, "reused from earlier builds");
            let kept = left.below("driver/conftest").and_then(|dir| answers.keep(store, &dir));
            match kept {
                Ok(asked) => {
                    let missed = asked.saturating_sub(answered);
                    progress.reused(Reused::Conftest, answered as u64, missed as u64);
                }
                Err(error) => tracing::warn!("this build's results were not kept: {error}"),
            }
        }
    }
}

/// Returns the driver's headers, as paths below its sources: an include could mean them as well as
/// the kernel's headers.
fn header_names(sources: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    walk(sources, &mut |path| {
        if path.extension().is_some_and(|e| e == "h") {
            let name = path.strip_prefix(sources).unwrap_or(path);
            names.push(name.to_string_lossy().into_owned());
        }
        Ok(())
    })?;
    names.sort();
    Ok(names)
}
