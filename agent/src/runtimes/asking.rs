//! Questions to a runtime's own program: its version, its effective configuration, and its judgement of an
//! edit before that is made.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::host_files::HostFiles;
use super::saved::ORIGINALS;
use super::target::Target;
use super::{HostRuntimes, in_originals, programs};
use longshore_core::paths::STORE;
use longshore_runtimes::containerd::{self, Dump};
use longshore_runtimes::{Edit, Runtime, Version};

/// Answer of any program, with the cases of containerd's.
pub(super) type ProgramAnswer = Dump;

/// Name of docker's edited configuration while dockerd judges it.
const CANDIDATE: &str = "candidate.json";

impl HostRuntimes {
    /// Asks the program that brings a runtime. Those of a captured tree are not run.
    pub(super) fn ask(&self, target: &Target, arguments: &[&str]) -> ProgramAnswer {
        if self.paths.is_captured() {
            return ProgramAnswer::NotAsked;
        }
        let Some(program) = self.program(target) else { return ProgramAnswer::NotAsked };
        match programs::output(self.root.path(), &program, arguments, self.asking) {
            Ok(text) => ProgramAnswer::Text(text),
            Err(error) if error.kind() == ErrorKind::TimedOut || error.raw_os_error().is_some() => {
                ProgramAnswer::Silent(error.to_string())
            }
            Err(error) => ProgramAnswer::Failed(error.to_string()),
        }
    }

    /// Returns the program: that of the daemon's command line, that of its distribution, or by its name.
    fn program(&self, target: &Target) -> Option<PathBuf> {
        let has = |path: &Path| path.is_absolute() && self.root.exists(path).unwrap_or(false);
        let started = target.invocation.as_ref().and_then(|it| it.argv.first()).map(PathBuf::from);
        let usual = target.distribution.programs.iter().map(PathBuf::from);
        let known = started.into_iter().chain(usual).find(|path| has(path));
        known.or_else(|| match target.distribution.programs {
            [] => programs::find(&self.root, target.runtime().program()),
            _ => None,
        })
    }

    /// Asks for the version; also returns a note where the program did not tell it.
    pub(super) fn version(&self, target: &Target) -> (Option<Version>, Option<String>) {
        let program = target.runtime().program();
        match self.ask(target, &["--version"]) {
            ProgramAnswer::NotAsked => (None, None),
            ProgramAnswer::Text(text) => match Version::find(&text) {
                Some(version) => (Some(version), None),
                None => (None, Some(format!("`{program} --version` printed no version"))),
            },
            ProgramAnswer::Silent(why) => {
                (None, Some(format!("`{program} --version` could not be asked: {why}")))
            }
            ProgramAnswer::Failed(why) => {
                (None, Some(format!("`{program} --version` failed: {why}")))
            }
        }
    }

    /// Asks containerd for its effective configuration.
    pub(super) fn dump(&self, target: &Target) -> Dump {
        let file = target.file.to_str().filter(|_| self.root.exists(&target.file).unwrap_or(false));
        match file {
            Some(file) => self.ask(target, &["--config", file, "config", "dump"]),
            None => Dump::NotAsked,
        }
    }

    /// Lets the runtime's program judge an edit before it is made; Ok where it takes it or cannot be asked.
    ///
    /// # Errors
    /// The program's message, or that it did not answer.
    pub(super) fn judge(&self, target: &Target, edit: &Edit) -> io::Result<()> {
        if self.paths.is_captured() || self.program(target).is_none() {
            return Ok(());
        }
        let dir = Path::new(STORE).join(ORIGINALS);
        let answer = match target.runtime() {
            Runtime::Docker => {
                let file = dir.join(CANDIDATE);
                let copy = [(file.clone(), edit.after.clone())];
                self.with_files(&copy, || self.validate(target, &file))?
            }
            Runtime::Containerd => {
                let keeping = target.distribution.keeping;
                let files = HostFiles(&self.root);
                let copy = containerd::candidate(&files, &target.file, keeping, edit, &dir)
                    .map_err(io::Error::other)?;
                let Some(first) = copy.first().map(|(path, _)| path.to_string_lossy().into_owned())
                else {
                    return Ok(());
                };
                let arguments = ["--config", first.as_str(), "config", "dump"];
                self.with_files(&copy, || self.ask(target, &arguments))?
            }
            Runtime::Crio | Runtime::Podman => return Ok(()),
        };
        let program = target.runtime().program();
        match answer {
            ProgramAnswer::NotAsked | ProgramAnswer::Text(_) => Ok(()),
            ProgramAnswer::Silent(why) => Err(io::Error::other(format!(
                "{program} could not be asked whether it takes the edited text: {why}"
            ))),
            ProgramAnswer::Failed(why) => {
                Err(io::Error::other(format!("{program} refuses the edited text: {why}")))
            }
        }
    }

    /// Asks dockerd, with the flags of its command line, so that a setting which is in both is found. Before
    /// 23.0 it has no --validate.
    fn validate(&self, target: &Target, file: &Path) -> ProgramAnswer {
        let file = file.to_string_lossy();
        let started = target.next.as_ref().or(target.invocation.as_ref());
        let mut arguments: Vec<&str> = Vec::new();
        let mut words = started.iter().flat_map(|started| started.argv.iter().skip(1));
        while let Some(word) = words.next() {
            match word.as_str() {
                "--validate" => {}
                "--config-file" => drop(words.next()),
                other if other.starts_with("--config-file=") => {}
                other => arguments.push(other),
            }
        }
        arguments.extend(["--validate", "--config-file", &file]);
        match self.ask(target, &arguments) {
            ProgramAnswer::Failed(why) if why.contains("unknown flag: --validate") => {
                ProgramAnswer::NotAsked
            }
            answer => answer,
        }
    }

    /// Calls `ask` while these files are in the directory of the originals, which root alone can read.
    fn with_files(
        &self,
        files: &[(PathBuf, String)],
        ask: impl FnOnce() -> ProgramAnswer,
    ) -> io::Result<ProgramAnswer> {
        let originals = self.originals_made()?;
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let files: Vec<(String, &str)> =
            files.iter().filter_map(|(path, text)| Some((name(path)?, text.as_str()))).collect();
        let written = files.iter().try_for_each(|(name, text)| originals.put(name, text));
        let answer = written.map(|()| ask());
        let removed = files.iter().try_for_each(|(name, _)| originals.take_away(name));
        removed.and(answer).map_err(in_originals)
    }
}
