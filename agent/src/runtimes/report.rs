//! The answer of `runtime check`, as text and as JSON.

use std::path::PathBuf;

use serde::Serialize;

use super::Target;
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::finding::Verdict;
use longshore_core::sanitize::in_line;
use longshore_runtimes::{Assessment, Flag, Invocation, Source, State};

/// Version of the form of the JSON. In format 1 the verdict was the state of one of the runtimes.
const FORMAT: u32 = 2;

/// A runtime with its verdict.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The runtime.
    pub target: Target,
    /// Its verdict.
    pub assessment: Assessment,
}

/// The answer as JSON; docs/operate/containers.md has its fields.
#[derive(Debug, Serialize)]
pub struct Report {
    format: u32,
    verdict: Verdict,
    exit_code: u8,
    runtimes: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    distribution: Option<&'static str>,
    version: Option<String>,
    invocation: Option<Called>,
    file: PathBuf,
    state: &'static str,
    reason: String,
    remedy: Option<String>,
    restart_unit: Option<String>,
    restart: Option<String>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Called {
    source: &'static str,
    pid: Option<u32>,
    unit: String,
    file: Option<PathBuf>,
    line: Option<usize>,
    argv: Vec<String>,
}

impl Called {
    fn from_invocation(invocation: &Invocation) -> Self {
        let (source, pid) = match invocation.source {
            Source::Process(pid) => ("process", Some(pid)),
            Source::Unit(_) => ("unit", None),
        };
        Self {
            source,
            pid,
            unit: invocation.unit.clone(),
            file: invocation.at.as_ref().map(|at| at.file.clone()),
            line: invocation.at.as_ref().map(|at| at.line),
            argv: argv_of(invocation),
        }
    }
}

/// Flags whose values decide about CDI. Those of others are not shown: logging drivers and proxies take secrets so.
const SHOWN: [&str; 8] =
    ["config", "c", "config-file", "config-dir", "d", "feature", "cdi-spec-dir", "cdi-spec-dirs"];

/// Returns the program and its flags.
fn argv_of(invocation: &Invocation) -> Vec<String> {
    let shown = |flag: Flag| match flag.value {
        Some(value) if SHOWN.contains(&flag.name.as_str()) => format!("--{}={value}", flag.name),
        Some(_) => format!("--{}=***", flag.name),
        None => format!("--{}", flag.name),
    };
    let program = invocation.argv.iter().take(1).cloned();
    program.chain(invocation.flags().into_iter().map(shown)).collect()
}

impl Report {
    /// Makes the report of some runtimes.
    pub fn from_checked(checked: &[Checked]) -> Self {
        let states = || checked.iter().map(|one| &one.assessment.state);
        let refuses = |state: &State| !state.is_well() && !matches!(state, State::Unknown { .. });
        let verdict = match checked {
            [] => Verdict::Refused,
            _ if states().any(refuses) => Verdict::Refused,
            _ if states().any(|state| !state.is_well()) => Verdict::Undecided,
            _ => Verdict::Passed,
        };
        let is_done = verdict == Verdict::Passed;
        let exit_code = if is_done { ExitCode::Done } else { ExitCode::Runtime }.number();
        Self {
            format: FORMAT,
            verdict,
            exit_code,
            runtimes: checked.iter().map(Row::from_checked).collect(),
        }
    }
}

impl Row {
    fn from_checked(one: &Checked) -> Self {
        let Checked { target, assessment } = one;
        Self {
            name: target.runtime().name(),
            distribution: Some(target.distribution.name).filter(|name| !name.is_empty()),
            version: assessment.version.map(|version| version.to_string()),
            invocation: target.invocation.as_ref().map(Called::from_invocation),
            file: target.path().to_path_buf(),
            state: assessment.state.name(),
            reason: assessment.state.reason().to_owned(),
            remedy: (!assessment.state.is_well()).then(|| one.remedy()),
            restart_unit: target.restart.unit(),
            restart: target.restart.command(),
            notes: assessment.notes.clone(),
        }
    }
}

impl Checked {
    /// Returns the line of the answer as text, and those of its notes.
    pub fn line(&self) -> String {
        let Assessment { version, state, notes, .. } = &self.assessment;
        let word = match state {
            State::Impossible { .. } => "no CDI",
            state => state.name(),
        };
        let label = self.target.distribution.label();
        let name = version.map_or_else(|| label.clone(), |version| format!("{label} {version}"));
        let mut text = format!("{name:<18}  {word:<7}  {}\n", in_line(state.reason()));
        for note in notes {
            text.push_str(&format!("{:<18}  note     {}\n", "", in_line(note)));
        }
        text
    }

    /// Returns the remedy. A command acts on the same file.
    fn remedy(&self) -> String {
        let Self { target, assessment } = self;
        let shows = || {
            let (runtime, option) = (target.runtime(), target.option());
            format!("`longshore runtime configure {runtime}{option}` shows the edit")
        };
        match (&assessment.state, assessment.state.remedy()) {
            (State::Unknown { edit: Some(_), .. }, Some(remedy)) => {
                format!("{remedy}; {}", shows())
            }
            (_, Some(remedy)) => remedy.to_owned(),
            (_, None) => shows(),
        }
    }

    /// Returns the failure of a runtime that does not read specs.
    pub fn failure(&self) -> Failure {
        let label = self.target.distribution.label();
        let state = &self.assessment.state;
        let verdict = match state {
            State::Unknown { .. } => "whether it reads CDI specs is not known",
            _ => "does not read CDI specs",
        };
        let colon = if matches!(state, State::Unknown { .. }) { ":" } else { "" };
        let cause = format!("{label}{colon} {verdict}: {}", in_line(state.reason()));
        Failure::new(FailureKind::Runtime, cause).remedy(self.remedy())
    }
}
