//! `longshore build` for cells of the rules, with the packages of a lock.

pub(crate) mod capture;
mod inputs;
pub mod log;
pub mod results;
pub(crate) mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use longshore_debian::archive::upstream;
use longshore_debian::settings::ArchiveSource;
use longshore_modules::artifact::ModuleSet;
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::build_run::capture::{Captured, capture};
use crate::build_run::verdict::{Allowed, judge};
use crate::results::cell::EXCERPT_LINES;
use crate::results::{
    CellResult, Digest, Line, LogExcerpt, Measured, Part, RefusedRevision, ResolvedCell, Times,
    Verdict,
};
use crate::rules::lock::{Lock, LockedDriver, LockedKernel, Missing};
use crate::rules::{Cell, KernelFlavour};
use longshore_lab::cell::suite_below;
use longshore_lab::host::cache::digest;
use longshore_lab::host::error::{At, Error};

/// Maximum size of an output that is kept.
const MOST_OUTPUT: usize = 8 << 20;
/// Time limit for resolving the inputs of a build: headers that the store does not have are fetched.
const INPUTS_LIMIT: Duration = Duration::from_secs(900);
/// Remark on realtime kernels.
const REALTIME: &str = "NVIDIA does not support PREEMPT_RT: the modules are compiled with the driver's \
                        own switch for it, IGNORE_PREEMPT_RT_PRESENCE";

/// Settings of all builds of a run.
pub struct BuildRun<'a> {
    /// Resolved packages.
    pub lock: &'a Lock,
    /// Archives of the rules, beside this machine's apt sources.
    pub archives: &'a [ArchiveSource],
    /// The longshore program.
    pub program: &'a Path,
    /// Its store.
    pub store: &'a Path,
    /// Directory of the results; logs are kept below it.
    pub dir: &'a Path,
    /// Time limit of a build.
    pub limit: Duration,
}

impl BuildRun<'_> {
    /// Compiles a cell, if all its parts are available.
    ///
    /// # Errors
    /// The program cannot be started, or the log cannot be written.
    pub fn build(&self, cell: &Cell) -> Result<CellResult, Error> {
        let (kernel, driver) = match self.parts(cell) {
            Ok(parts) => parts,
            Err(Missing { part, why }) => {
                let why = Line::new(&why);
                return Ok(result(cell, Verdict::Unavailable { part, why }));
            }
        };
        let began = Instant::now();
        let (mut command, _config) = self.command(cell, kernel, driver)?;
        // A remembered failure would lack the compiler's messages.
        command.arg("--retry");
        let captured = capture(&command, self.limit, MOST_OUTPUT)?;
        let took = began.elapsed();
        let drivers: Vec<&str> = driver.revisions.iter().map(|r| r.sha256.as_str()).collect();
        let allowed = Allowed { release: &kernel.release, drivers: &drivers };
        let (verdict, set) = judge(&captured, self.limit, allowed);
        let log = self.log(cell, &captured, &verdict)?;
        Ok(CellResult {
            // As this build had resolved them: an archive may have changed since anyone asked.
            key: inputs::of_log(&captured.err.text())
                .and_then(|inputs| key(kernel, driver, &inputs)),
            resolved: Some(ResolvedCell {
                refused_revisions: refused(&captured.err.text()),
                ..resolved(cell, kernel, driver, set.as_ref())
            }),
            times: Times { compile_ms: milliseconds(took), ..Times::default() },
            log: Some(log),
            ..result(cell, verdict)
        })
    }

    /// Returns the locked kernel and driver of a cell.
    ///
    /// # Errors
    /// The lock does not have one of them, or knows that it is unavailable.
    pub(crate) fn parts(&self, cell: &Cell) -> Result<(&LockedKernel, &LockedDriver), Missing> {
        let unknown = |part, id: &str| Missing { part, why: format!("the lock has no {id}") };
        let kernel = self.lock.kernel(&cell.kernel.id);
        let kernel = kernel.ok_or_else(|| unknown(Part::Kernel, &cell.kernel.id))?;
        let driver = self.lock.driver(&cell.driver.id);
        let driver = driver.ok_or_else(|| unknown(Part::Driver, &cell.driver.id))?;
        match kernel.unavailable.as_ref().or(driver.unavailable.as_ref()) {
            Some(missing) => Err(missing.clone()),
            None => Ok((kernel, driver)),
        }
    }

    /// Returns the digest of everything that the cell's result depends on; None where a part is missing, or longshore
    /// cannot resolve the inputs: the build then explains it.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn key_of(&self, cell: &Cell) -> Result<Option<Digest>, Error> {
        let Ok((kernel, driver)) = self.parts(cell) else { return Ok(None) };
        let (mut command, _config) = self.command(cell, kernel, driver)?;
        command.arg("--print-inputs");
        let captured = capture(&command, INPUTS_LIMIT, MOST_OUTPUT)?;
        if captured.code != Some(0) {
            return Ok(None);
        }
        let inputs = inputs::of_answer(&captured.out.text());
        Ok(inputs.ok().and_then(|inputs| key(kernel, driver, &inputs)))
    }

    /// Returns `longshore build` for a cell, with the configuration file that it reads, if it needs one.
    fn command(
        &self,
        cell: &Cell,
        kernel: &LockedKernel,
        driver: &LockedDriver,
    ) -> Result<(Command, Option<NamedTempFile>), Error> {
        let version = driver.revisions.first().map_or("", |newest| upstream(&newest.version));
        let suites = suites(cell, driver);
        let mut command = Command::new(self.program);
        command
            .args(["build", "--kernel", &kernel.release, "--driver", version])
            .args(["--flavour", &cell.driver.flavour.to_string()])
            .arg("--store")
            .arg(self.store)
            .env("LONGSHORE_LOG_FORMAT", "json")
            // The line with the inputs is of this level.
            .env("LONGSHORE_LOG", "info");
        if let Some(root) = &kernel.build_root {
            command.args(["--build-root", root]);
        }
        if let Some(tree) = &cell.driver.source_tree {
            for url in &tree.urls {
                command.args(["--source-tree", url]);
            }
            let pinned = format!("{}={}", tree.version, tree.sha256);
            command.args(["--source-tree-sha256", &pinned]);
        }
        let config = Configured::new(&suites, self.archives);
        for suite in suites.iter().filter(|suite| !config.serves(suite)) {
            command.args(["--archive-suite", suite]);
        }
        if self.lock.is_frozen(&suites) {
            command.arg("--archive-frozen");
        }
        let file = if config.archive.is_empty() { None } else { Some(config.write()?) };
        if let Some(file) = &file {
            command.arg("--config").arg(file.path());
        }
        Ok((command, file))
    }

    /// Keeps the log of a build, and returns an excerpt.
    fn log(
        &self,
        cell: &Cell,
        captured: &Captured,
        verdict: &Verdict,
    ) -> Result<LogExcerpt, Error> {
        let text = captured.err.text();
        let lines: Vec<&str> = text.lines().collect();
        let excerpt: Vec<Line> = lines[lines.len().saturating_sub(EXCERPT_LINES)..]
            .iter()
            .map(|line| Line::new(line))
            .collect();
        let has_error = !matches!(verdict, Verdict::Compiled { .. });
        let last = u32::try_from(excerpt.len()).ok().and_then(|length| length.checked_sub(1));
        keep_log(self.dir, &cell.name, &text, (excerpt, last.filter(|_| has_error)))
    }
}

/// Keeps a log of a cell below `dir`, and returns it with these lines and the index of the failing one in them.
pub(crate) fn keep_log(
    dir: &Path,
    name: &str,
    text: &str,
    (excerpt, failing_line): (Vec<Line>, Option<u32>),
) -> Result<LogExcerpt, Error> {
    let file = PathBuf::from("logs").join(format!("{name}.log"));
    let path = dir.join(&file);
    fs::create_dir_all(dir.join("logs")).at("make", &path)?;
    fs::write(&path, text).at("write", &path)?;
    Ok(LogExcerpt {
        file: Line::new(&file.to_string_lossy()),
        sha256: Digest::of_all(text.as_bytes()).at("digest", &path)?,
        bytes: text.len() as u64,
        failing_line,
        excerpt,
    })
}

/// Configuration of longshore with archives of the rules.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Configured<'a> {
    /// False where they serve all suites of the cell: packages of the machine's own suites are then none of its inputs.
    host_apt: bool,
    archive: Vec<&'a ArchiveSource>,
}

impl<'a> Configured<'a> {
    /// Returns the archives that serve one of these suites, with all their suites: the compiler may be in another one.
    fn new(suites: &[String], archives: &'a [ArchiveSource]) -> Self {
        let serves = |of: &&ArchiveSource| of.suites.iter().any(|suite| suites.contains(suite));
        let config = Self { host_apt: true, archive: archives.iter().filter(serves).collect() };
        Self { host_apt: !suites.iter().all(|suite| config.serves(suite)), ..config }
    }

    fn serves(&self, suite: &String) -> bool {
        self.archive.iter().any(|of| of.suites.contains(suite))
    }

    /// Writes it to a file that is removed with the value: addresses may have credentials.
    fn write(&self) -> Result<NamedTempFile, Error> {
        let text = toml::to_string(self)
            .map_err(|e| Error::Unexpected(format!("the archives have no form in TOML: {e}")))?;
        let file = tempfile::Builder::new().suffix(".toml").tempfile();
        let file = file.at("make", &std::env::temp_dir())?;
        fs::write(file.path(), text).at("write", file.path())?;
        Ok(file)
    }
}

/// Returns the digest of everything that the result depends on: the locked packages, of which a failed compile tries
/// every revision, and what longshore makes of them.
fn key(kernel: &LockedKernel, driver: &LockedDriver, inputs: &Digest) -> Option<Digest> {
    let packages = kernel.image.iter().chain(&kernel.headers).chain(&driver.revisions);
    let mut parts = vec!["build 3", kernel.release.as_str(), inputs.as_str()];
    parts.extend(packages.map(|package| package.sha256.as_str()));
    Digest::try_from(digest(&parts)).ok()
}

/// Returns the suites that longshore has to read for a cell: those of the kernel, its compiler and the
/// driver's packages.
pub(crate) fn suites(cell: &Cell, driver: &LockedDriver) -> Vec<String> {
    let kernel = || cell.kernel.suites().iter().map(String::as_str);
    let of_driver = driver.revisions.iter().map(|revision| revision.suite.as_str());
    let mut suites: Vec<String> = Vec::new();
    // A source tree is of no suite.
    let of_driver = of_driver.filter(|suite| !suite.is_empty());
    for suite in kernel().chain(kernel().filter_map(suite_below)).chain(of_driver) {
        if !suites.iter().any(|known| known == suite) {
            suites.push(suite.to_owned());
        }
    }
    suites
}

/// Returns the packaging revisions that did not compile before the one that did, from the build's log.
fn refused(log: &str) -> Vec<RefusedRevision> {
    let of = verdict::refused_revisions(log).into_iter().map(|(package, why)| RefusedRevision {
        // `NAME VERSION (SUITE)`, as everywhere in results.
        revision: Line::new(&package.replace(" (", " in ").replace(')', "")),
        line: Line::new(&why),
    });
    of.collect()
}

fn resolved(
    cell: &Cell,
    kernel: &LockedKernel,
    driver: &LockedDriver,
    set: Option<&ModuleSet>,
) -> ResolvedCell {
    let key = set.map(|set| &set.key);
    let used = driver.revisions.iter().find(|of| key.is_some_and(|k| k.driver_digest == of.sha256));
    let newest = driver.revisions.first();
    let named = |of: &crate::rules::lock::LockedPackage| {
        Line::new(&format!("{} {} in {}", of.package, of.version, of.suite))
    };
    let headers = kernel.headers.iter().find(|of| of.package.ends_with(&kernel.release));
    let realtime = (cell.kernel.flavour == KernelFlavour::Rt).then(|| Line::new(REALTIME));
    ResolvedCell {
        kernel_release: Line::new(&kernel.release),
        kernel_version: Line::new(kernel.image.as_ref().map_or("", |image| &image.version)),
        headers: headers.map(|of| Line::new(&of.version)).unwrap_or_default(),
        compiler: Line::new(key.map_or("", |key| &key.compiler)),
        driver_version: Line::new(newest.map_or("", |newest| upstream(&newest.version))),
        revision: used.or(newest).map(named).unwrap_or_default(),
        refused_revisions: Vec::new(),
        set: key.and_then(|key| Digest::try_from(key.digest()).ok()),
        compile_key: None,
        patches: key.into_iter().flat_map(|k| k.patches.keys()).map(|p| Line::new(p)).collect(),
        notes: realtime.into_iter().collect(),
    }
}

fn result(cell: &Cell, verdict: Verdict) -> CellResult {
    CellResult {
        name: Line::new(&cell.name),
        key: None,
        verdict,
        resolved: None,
        phases: Vec::new(),
        measured: Measured::new(),
        times: Times::default(),
        log: None,
        reused_from: None,
        unproven: false,
    }
}

pub(crate) fn milliseconds(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
