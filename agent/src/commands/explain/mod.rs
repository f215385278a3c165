//! `longshore explain`: the texts of finding codes and exit codes, without a host, a network or a configuration.

use std::fmt::Write;

use clap::Args;
use serde::Serialize;

use super::{print, print_answer};
use crate::console::{Form, Text, Tone};
use crate::nearest::by_nearness;
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::finding::{Code, Severity, Verdict};

/// Format of the JSON.
const FORMAT: u32 = 1;
/// Number of nearest names in the failure about an unknown code.
const NEAREST: usize = 3;

/// The agent's container with another command, for a host whose agent has ended: README's `podman run`, without its
/// name. docker takes the same options.
const BESIDE: &str = concat!(
    "podman run --rm --privileged --pid host --network host -v /run/nvidia:/run/nvidia:rshared ",
    "-v /run/longshore:/run/longshore -v /var/lib/longshore:/var/lib/longshore -e DRIVER_VERSION=580 ",
    "localhost/longshore:",
    env!("CARGO_PKG_VERSION"),
    " doctor"
);
/// The same in a cluster.
const IN_CLUSTER: &str = "longshore fleet doctor NODE";

/// Explain the code of a finding or an exit code; without one, list all
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Code of a finding (signature-required), or number or name of an exit code (15, preflight)
    #[arg(value_name = "CODE")]
    name: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Explained codes.
#[derive(Debug, Serialize)]
struct Explained {
    exit_codes: Vec<ExplainedExitCode>,
    findings: Vec<ExplainedFinding>,
}

#[derive(Debug, Serialize)]
struct ExplainedExitCode {
    code: u8,
    name: &'static str,
    means: &'static str,
    look_first: &'static str,
    /// True where an agent ends with it.
    ends_agent: bool,
    /// Codes of findings that end a command with it.
    findings: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct ExplainedFinding {
    code: &'static str,
    area: &'static str,
    severities: Vec<Severity>,
    exit_code: u8,
    means: &'static str,
    matters: &'static str,
    remedy: &'static str,
}

/// Prints the explanation of one code, or the list of all.
///
/// # Errors
/// Exit code 2, with the nearest names, for a code that is none.
pub(super) fn explain(asked: &Explain) -> Result<ExitCode, Failure> {
    let explained = match &asked.name {
        Some(name) => Explained::from_name(name)?,
        None => Explained::all(),
    };
    match (asked.json, &asked.name) {
        (true, _) => print_answer(FORMAT, Verdict::Passed, ExitCode::Done, &explained)?,
        (false, Some(_)) => print(&explained.render())?,
        (false, None) => print(&explained.list())?,
    }
    Ok(ExitCode::Done)
}

impl Explained {
    fn all() -> Self {
        Self {
            exit_codes: ExitCode::ALL.iter().copied().map(ExplainedExitCode::from_code).collect(),
            findings: Code::ALL.iter().copied().map(ExplainedFinding::from_code).collect(),
        }
    }

    /// Explains the codes of this name: `no-device` is a finding's and an exit code's.
    fn from_name(name: &str) -> Result<Self, Failure> {
        let wanted = name.trim().to_lowercase();
        let mut found = Self::all();
        found.exit_codes.retain(|code| code.name == wanted || code.code.to_string() == wanted);
        found.findings.retain(|finding| finding.code == wanted);
        if found.exit_codes.is_empty() && found.findings.is_empty() {
            return Err(unknown(name, &wanted));
        }
        Ok(found)
    }

    fn render(&self) -> String {
        let exit_codes = self.exit_codes.iter().map(ExplainedExitCode::render);
        let findings = self.findings.iter().map(ExplainedFinding::render);
        findings.chain(exit_codes).collect::<Vec<_>>().join("\n")
    }

    fn list(&self) -> String {
        let mut text = "EXIT CODE\n".to_owned();
        for ExplainedExitCode { code, name, means, .. } in &self.exit_codes {
            write_wrapped(&mut text, &format!("{code:>4}  {name:<18}"), means);
        }
        text.push_str("\nFINDING                   EXIT CODE  SEVERITY            ABOUT\n");
        for finding in &self.findings {
            let ExplainedFinding { code, exit_code, area, .. } = finding;
            let severities = finding.severities();
            // Writing to a string does not fail.
            let _ = writeln!(text, "{code:<26}{exit_code:>9}  {severities:<20}{area}");
        }
        text.push_str("\n`longshore explain CODE` has meaning, reason and remedy of one\n");
        text
    }
}

impl ExplainedExitCode {
    fn from_code(code: ExitCode) -> Self {
        let entry = code.entry();
        let findings = Code::ALL.iter().filter(|of| of.entry().kind.exit_code() == code);
        Self {
            code: code.number(),
            name: entry.name,
            means: entry.means,
            look_first: entry.look,
            ends_agent: entry.ends_agent,
            findings: findings.map(|code| code.as_str()).collect(),
        }
    }

    fn render(&self) -> String {
        let mut text = format!("{}  exit code {}\n", self.name, self.code);
        write_wrapped(&mut text, "  means     ", self.means);
        write_wrapped(&mut text, "  look at   ", self.look_first);
        write_wrapped(&mut text, "  findings  ", &self.findings.join(", "));
        if self.ends_agent && self.code != ExitCode::Done.number() {
            text.push_str(
                "\n  The agent has ended, so that nothing runs in its container. In another one:\n",
            );
            write_command(&mut text, BESIDE);
            text.push_str("  In a cluster, from an administrator's machine:\n");
            write_command(&mut text, IN_CLUSTER);
        }
        text
    }
}

impl ExplainedFinding {
    fn from_code(code: Code) -> Self {
        let entry = code.entry();
        let severities = [Severity::Refusal, Severity::Warning, Severity::Note];
        Self {
            code: entry.name,
            area: entry.area.title(),
            severities: severities.into_iter().filter(|one| entry.severities.has(*one)).collect(),
            exit_code: entry.kind.exit_code().number(),
            means: entry.means,
            matters: entry.matters,
            remedy: entry.remedy,
        }
    }

    fn severities(&self) -> String {
        self.severities.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(" or ")
    }

    fn render(&self) -> String {
        let Self { code, exit_code, means, matters, remedy, .. } = self;
        let mut text = format!("{code}  finding, {}; exit code {exit_code}\n", self.severities());
        write_wrapped(&mut text, "  means     ", means);
        write_wrapped(&mut text, "  matters   ", matters);
        write_wrapped(&mut text, "  remedy    ", remedy);
        text
    }
}

/// Writes words behind a label, in lines that go on under the first word; nothing for no words.
fn write_wrapped(text: &mut String, label: &str, words: &str) {
    if words.is_empty() {
        return;
    }
    let mut lines = Text::new(Form::PLAIN);
    lines.item(label, Tone::Plain, label.chars().count(), words);
    text.push_str(&lines.finish());
}

/// Writes a command in one line, which can be copied.
fn write_command(text: &mut String, command: &str) {
    text.push_str("    ");
    text.push_str(command);
    text.push('\n');
}

fn unknown(name: &str, wanted: &str) -> Failure {
    let names = ExitCode::ALL.iter().map(|code| code.entry().name);
    let names = by_nearness(wanted, names.chain(Code::ALL.iter().map(|code| code.as_str())));
    let near = names.iter().take(NEAREST).map(|name| format!("`longshore explain {name}`"));
    let near: Vec<String> = near.collect();
    let shown: String = name.chars().take(60).collect();
    let cause = format!("{shown:?} is neither the code of a finding nor an exit code");
    Failure::new(FailureKind::Usage, cause)
        .remedy(format!("`longshore explain` lists all; the nearest: {}", near.join(", ")))
}

#[cfg(test)]
mod tests;
