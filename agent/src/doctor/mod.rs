//! Everything that can be told of a host without changing it: what stands in the way now, what will
//! matter later, and what was looked at and found well.
//!
//! `plan` and `run` stop where a plan cannot be carried out. The doctor looks at all of it, with or
//! without sources to ask, and makes nothing: no store, no record, no lock.

mod agent;
mod host;
mod kernel_config;
mod looked;
mod render;

use serde::{Serialize, Serializer};

pub use render::render;

use crate::catalog::{self, Catalog};
use crate::config::Config;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::finding::{self, Area, Code, Finding, Severity};
use crate::host::HostFacts;
use crate::host::facts::Known;
use crate::journal;
use crate::plan::{self, Plan};
use crate::prebuilt::Prebuilt;
use crate::root::Root;
use crate::store::Store;
use crate::supplier::Supplier;

/// What is not found without asking a source.
const OF_SOURCES: [Code; 4] =
    [Code::ArchivesUnread, Code::RegistryUnread, Code::RunFileUnread, Code::HeadersUnknown];
const NOT_ASKED: &str = "archives, registries and .run files were not asked (--online asks them)";

/// What the doctor tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The gravest of it.
    pub verdict: Verdict,
    /// What the doctor exits with: what `run` would be refused with, else 0.
    #[serde(serialize_with = "as_number")]
    pub exit_code: ExitCode,
    /// The host in a line: kernel, distribution.
    pub host: String,
    /// What was found, gravest first.
    pub findings: Vec<Told>,
    /// What was looked at and found well.
    pub well: Vec<Looked>,
    /// What was not looked at, and why.
    pub not_looked_at: Vec<Looked>,
}

/// The gravest of what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing, or only notes.
    Well,
    /// Something may go wrong.
    Warned,
    /// `run` would end before anything is touched.
    Refused,
}

/// A finding with what the table says of its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Its code.
    pub code: Code,
    /// How grave it is.
    pub severity: Severity,
    /// What it is about.
    pub area: Area,
    /// The exit code of a command that it refuses.
    #[serde(serialize_with = "as_number")]
    pub exit_code: ExitCode,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub matters: &'static str,
    /// What to do.
    pub remedy: String,
}

/// Something that was looked at, or was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Looked {
    /// What it is about.
    pub area: Area,
    /// What was looked at.
    pub what: &'static str,
    /// What was seen, or why it was not looked at.
    pub seen: String,
}

fn as_number<S: Serializer>(code: &ExitCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(code.number())
}

/// What every check looks at.
struct Look<'a> {
    config: &'a Config,
    facts: &'a HostFacts,
    root: &'a Root,
    host: &'a Root,
    /// Whether the host's own files are out of reach: those seen are the container's.
    hidden: bool,
    online: bool,
}

impl Look<'_> {
    fn captured(&self) -> bool {
        self.config.paths.is_captured()
    }
}

/// Looks at the host. With `online` the configured sources are asked, as `run` asks them; without it
/// nothing leaves the machine and nothing is written.
///
/// # Errors
/// Exit code 10 where not even the kernel's release can be read.
pub async fn diagnose(config: &Config, online: bool) -> Result<Report, Failure> {
    let paths = &config.paths;
    let mut facts = HostFacts::read(&paths.root, &paths.host_root)?
        .with_places(paths, &journal::recorded(paths));
    let open = |path| Root::open(path).or_fail(ExitCode::HostUnsupported, || "opening the root");
    let (root, host) = (open(&paths.root)?, open(&paths.host_root)?);
    // A record that cannot be read is a finding; which modules are ours is not known then.
    if let Ok(Some(state)) = journal::read_state(&paths.record_below(&root))
        && !state.is_of_another_boot(facts.kernel.boot_id.as_deref())
    {
        facts.ours = state.driver_modules(&facts.loaded);
    }
    let hidden = plan::is_host_hidden(config, &facts);
    let look = Look { config, facts: &facts, root: &root, host: &host, hidden, online };
    let (plan, mut findings) = look.plan().await?;
    findings.extend(host::findings(&look));
    let kernel_config = kernel_config::read(&look);
    findings.extend(kernel_config::findings(&look, &kernel_config));
    let agent = agent::look(&look);
    findings.extend(agent.findings);
    finding::sort(&mut findings);
    let seen = looked::Seen { look: &look, plan: plan.as_ref(), kernel_config, notes: agent.notes };
    Ok(report(&seen, &findings))
}

impl Look<'_> {
    /// What a plan finds; the plan itself, where there is one.
    async fn plan(&self) -> Result<(Option<Plan>, Vec<Finding>), Failure> {
        let planned = if self.online {
            let supplier = Supplier::new(self.config);
            supplier.decide().await.map(|(_, plan)| plan)
        } else {
            self.at_hand().and_then(|catalog| plan::plan(self.config, self.facts, &catalog))
        };
        match planned {
            Ok(mut plan) => {
                let asked = |f: &Finding| self.online || !OF_SOURCES.contains(&f.code);
                plan.findings.retain(|f| asked(f) && !self.may_be_elsewhere(f));
                let findings = std::mem::take(&mut plan.findings);
                Ok((Some(plan), findings))
            }
            // Whatever the host itself has to say is told all the same.
            Err(failure) => {
                let unknown = Known::Unknown(failure.one_line());
                let catalog = catalog::gather(&self.without_sources(), self.facts, None, unknown)?;
                let mut findings = plan::plan(self.config, self.facts, &catalog)?.findings;
                findings.retain(|f| f.code.entry().area != Area::Sources);
                let code = match failure.code() {
                    ExitCode::Download => Code::ArchivesUnread,
                    _ => Code::SourcesUnread,
                };
                let mut found = Finding::refusal(code, failure.one_line());
                if let Some(remedy) = failure.remedy_text() {
                    found = found.remedy(remedy);
                }
                findings.push(found);
                Ok((None, findings))
            }
        }
    }

    /// Without asking, that no set is here says nothing of the registries.
    fn may_be_elsewhere(&self, finding: &Finding) -> bool {
        !self.online
            && matches!(finding.code, Code::NothingBuilt | Code::SignatureMissing)
            && !self.config.registries.is_empty()
    }

    fn without_sources(&self) -> Config {
        let mut config = self.config.clone();
        config.prebuilt.clear();
        config.module_signing = None;
        config
    }

    /// What is at hand without asking anybody, nor making anything.
    fn at_hand(&self) -> Result<Catalog, Failure> {
        let store = Store::at(&self.root.display(&self.config.paths.store));
        let there = store.dir("sets").is_dir() && store.dir("userspace").is_dir();
        let unasked = Known::Unknown(NOT_ASKED.to_owned());
        let mut catalog =
            catalog::gather(self.config, self.facts, there.then_some(&store), unasked)?;
        Prebuilt::new(self.config)?.judge(&self.facts.kernel, &store, &mut catalog);
        Ok(catalog)
    }
}

fn report(seen: &looked::Seen<'_>, findings: &[Finding]) -> Report {
    let (well, not_looked_at) = looked::looked(seen, findings);
    let exit_code = finding::refusal(findings).map_or(ExitCode::Done, |f| f.code());
    Report {
        verdict: match findings.first().map(|f| f.severity) {
            Some(Severity::Refusal) => Verdict::Refused,
            Some(Severity::Warning) => Verdict::Warned,
            Some(Severity::Note) | None => Verdict::Well,
        },
        exit_code,
        host: host_line(seen.look.facts),
        findings: findings.iter().map(told).collect(),
        well,
        not_looked_at,
    }
}

fn told(finding: &Finding) -> Told {
    let entry = finding.code.entry();
    Told {
        code: finding.code,
        severity: finding.severity,
        area: entry.area,
        exit_code: entry.exit,
        seen: finding.seen.clone(),
        matters: entry.matters,
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
