//! Diagnosis of a host without changing it: obstacles now, trouble later, and passed checks.
//!
//! `plan` and `run` stop where a plan cannot be carried out. The doctor runs all checks, with or
//! without queries to sources, and makes no store, no record and no lock.

mod checks;
pub mod operator;
mod render;

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

pub use render::render;

use crate::catalog::{self, Catalog, Offers};
use crate::config::{Config, StorePlace};
use crate::journal;
use crate::plan::{self, Plan};
use crate::prebuilt::Prebuilt;
use crate::supplier::{Inventory, read_host_with};
use longshore_core::failure::FailureKind;
use longshore_core::failure::{ExitCode, Failure, OrFail};
use longshore_core::finding::{self, About, Area, Code, Finding, Severity, Verdict};
use longshore_core::root::Root;
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_host::HostFacts;

const NOT_ASKED: &str = "archives, registries and .run files were not queried (use --online)";

/// Format of the report. In format 1 findings that do not refuse had an exit code, too.
const FORMAT: u32 = 2;

/// The doctor's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Format of this structure: 2.
    pub format: u32,
    /// Gravest result.
    pub verdict: Verdict,
    /// The doctor's exit code: that of the refusal of `run`, else 0.
    #[serde(serialize_with = "as_number")]
    pub exit_code: ExitCode,
    /// Host in one line: kernel, distribution.
    pub host: String,
    /// Findings, gravest first.
    pub findings: Vec<ReportedFinding>,
    /// Checks that passed.
    pub passed: Vec<Check>,
    /// Skipped checks, with the reason.
    pub skipped: Vec<Check>,
}

/// A finding with the table's texts of its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportedFinding {
    /// Code.
    pub code: Code,
    /// Severity.
    pub severity: Severity,
    /// Area.
    pub area: Area,
    /// Exit code of a command that it refuses; None where it does not refuse.
    #[serde(serialize_with = "as_number_or_none")]
    pub exit_code: Option<ExitCode>,
    /// Detail: the observed state.
    pub detail: String,
    /// Consequence, if nothing is done about it.
    pub consequence: &'static str,
    /// Remedy.
    pub remedy: String,
}

/// A check that passed or was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Area.
    pub area: Area,
    /// Name of the check.
    pub name: &'static str,
    /// Observed state, or the reason why it was skipped.
    pub detail: String,
}

fn as_number<S: Serializer>(code: &ExitCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(code.number())
}

fn as_number_or_none<S: Serializer>(
    code: &Option<ExitCode>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    code.map(ExitCode::number).serialize(serializer)
}

/// Host and configuration, as the plan and the checks read them.
struct Look<'a> {
    config: &'a Config,
    facts: &'a HostFacts,
    root: &'a Root,
    host: &'a Root,
    /// True if the host's own files are not accessible: the visible ones are the container's.
    hidden: bool,
    online: bool,
}

impl Look<'_> {
    fn captured(&self) -> bool {
        self.config.paths.is_captured()
    }

    /// Returns the store, for reading: the host's where `run` attaches that.
    fn store(&self) -> Store {
        let paths = &self.config.paths;
        let path = match self.config.store_place {
            StorePlace::ToAttach => below(&paths.host_root, &paths.store),
            _ => self.root.display(&paths.store),
        };
        Store::at(&path, self.config.disk())
    }
}

/// Diagnoses the host. With `online` the configured sources are queried, as by `run`; without it
/// nothing leaves the machine and nothing is written.
///
/// # Errors
/// Exit code 10 where the kernel's release cannot be read.
pub async fn diagnose(config: &Config, online: bool) -> Result<Report, Failure> {
    let paths = &config.paths;
    let open = |path| Root::open(path).or_fail(FailureKind::HostUnsupported, || "opening the root");
    let facts = read_host_with(paths, || {
        let record = paths.record_below(&open(&paths.root)?);
        // An unreadable record is a finding; the modules that longshore loaded are unknown then.
        Ok(journal::read_state(&record).unwrap_or_default())
    })?;
    let (root, host) = (open(&paths.root)?, open(&paths.host_root)?);
    let hidden = plan::is_host_hidden(config, &facts);
    let look = Look { config, facts: &facts, root: &root, host: &host, hidden, online };
    let Planned { plan, findings, failed } = look.plan().await?;
    let undecided = plan.as_ref().is_some_and(|plan| plan.undecided);
    let mut report = report(&facts, checks::run(&look, plan.as_ref(), findings), undecided);
    // `run` ends with the failure itself, and not with the code of the finding about it.
    if let (Some(gravest), Some(code)) = (report.findings.first(), failed)
        && matches!(gravest.code, Code::ArchivesUnread | Code::SourcesUnread)
    {
        report.exit_code = code;
    }
    Ok(report)
}

/// A plan and its findings.
struct Planned {
    plan: Option<Plan>,
    findings: Vec<Finding>,
    /// Exit code of the failure where no plan could be made.
    failed: Option<ExitCode>,
}

impl Look<'_> {
    /// Returns the findings of a plan, and the plan itself where there is one.
    async fn plan(&self) -> Result<Planned, Failure> {
        let planned = if self.online {
            Inventory::for_looking(self.config).decide().await.map(|(_, plan)| (plan, true))
        } else {
            self.offline()
        };
        match planned {
            Ok((mut plan, is_asked)) => {
                let asked = |f: &Finding| is_asked || !f.code.entry().is_about(About::Query);
                plan.findings.retain(|f| asked(f) && !self.may_be_elsewhere(f));
                let findings = std::mem::take(&mut plan.findings);
                Ok(Planned { plan: Some(plan), findings, failed: None })
            }
            // The findings about the host itself are reported nevertheless.
            Err(failure) => {
                let (config, why) = (self.without_sources(), failure.one_line());
                let catalog = catalog::gather(&config, self.facts, None, &why)?;
                let mut findings = plan::plan(self.config, self.facts, &catalog)?.findings;
                findings.retain(|f| f.code.entry().area != Area::Sources);
                let code = match failure.kind() {
                    FailureKind::Download | FailureKind::NoSource => Code::ArchivesUnread,
                    _ => Code::SourcesUnread,
                };
                findings.push(refusal_by(&failure, code));
                Ok(Planned { plan: None, findings, failed: Some(failure.code()) })
            }
        }
    }

    /// Returns the plan with what is at hand, and whether the answer of all sources is known: where something is to be
    /// acquired, and there is none to ask.
    fn offline(&self) -> Result<(Plan, bool), Failure> {
        let mut catalog = self.available()?;
        let plan = plan::plan(self.config, self.facts, &catalog)?;
        // `run` asks no source either for what the store has.
        if plan.acquire.is_empty() {
            return Ok((plan, false));
        }
        let Some(failure) = self.nothing_to_ask() else { return Ok((plan, false)) };
        catalog.add(Offers::without_archives(failure), &self.facts.kernel);
        let plan = plan::plan(self.config, self.facts, &catalog)?;
        match catalog.failure_behind(self.config, &plan.findings) {
            Some(failure) => Err(failure.clone()),
            None => Ok((plan, true)),
        }
    }

    /// Returns the failure of sources of which none can be asked: there is none, or a file that the configuration names
    /// is missing. None where a query may have an answer.
    fn nothing_to_ask(&self) -> Option<Failure> {
        let Config { archives, paths, registries, run_files, .. } = self.config;
        if !registries.is_empty() || !run_files.is_empty() || self.config.needs_no_archive() {
            return None;
        }
        let apt_root = match paths.apt_root() {
            Some(root) => root,
            // Those of the machine that asks, which may be another one tomorrow.
            None if archives.use_host_apt => return None,
            None => &paths.host_root,
        };
        Archive::check(archives, apt_root).err().filter(|failure| failure.kind().is_definite())
    }

    /// True if a missing set may be in a registry that was not queried.
    fn may_be_elsewhere(&self, finding: &Finding) -> bool {
        let is_of_set = finding.code.entry().is_about(About::Set);
        !self.online && is_of_set && !self.config.registries.is_empty()
    }

    fn without_sources(&self) -> Config {
        let mut config = self.config.clone();
        config.prebuilt.clear();
        config.module_signing = None;
        config
    }

    /// Returns what is available without queries, and without making anything.
    fn available(&self) -> Result<Catalog, Failure> {
        self.available_for(self.facts)
    }

    fn available_for(&self, facts: &HostFacts) -> Result<Catalog, Failure> {
        let store = self.store();
        let there = store.dir("sets").is_dir() && store.dir("userspace").is_dir();
        let store_there = there.then_some(&store);
        let mut catalog = catalog::gather(self.config, facts, store_there, NOT_ASKED)?;
        Prebuilt::new(self.config)?.judge(&facts.kernel, &store, &mut catalog);
        Ok(catalog)
    }
}

/// Returns a refusal for a failure, with its remedy where it has one.
fn refusal_by(failure: &Failure, code: Code) -> Finding {
    let found = Finding::refusal(code, failure.one_line());
    match failure.remedy_text() {
        Some(remedy) => found.remedy(remedy),
        None => found,
    }
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn report(facts: &HostFacts, results: checks::Results, undecided: bool) -> Report {
    let checks::Results { findings, passed, skipped } = results;
    let verdict = Verdict::from_findings(&findings, undecided);
    let exit_code = match verdict {
        Verdict::Undecided => plan::UNDECIDED,
        _ => finding::refusal(&findings).map_or(ExitCode::Done, |f| f.code()),
    };
    Report {
        format: FORMAT,
        verdict,
        exit_code,
        host: host_line(facts),
        findings: findings.iter().map(reported).collect(),
        passed,
        skipped,
    }
}

fn reported(finding: &Finding) -> ReportedFinding {
    let entry = finding.code.entry();
    ReportedFinding {
        code: finding.code,
        severity: finding.severity,
        area: entry.area,
        exit_code: (finding.severity == Severity::Refusal).then(|| entry.kind.exit_code()),
        detail: finding.detail.clone(),
        consequence: entry.matters,
        remedy: finding.remedy.clone(),
    }
}

fn host_line(facts: &HostFacts) -> String {
    let os = facts.os.pretty_name.as_deref().unwrap_or(&facts.os.id);
    let os = if os.is_empty() { "unknown distribution" } else { os };
    format!("kernel {} on {os}", facts.kernel.release)
}

#[cfg(test)]
mod tests;
