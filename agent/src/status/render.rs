//! Text form of a status.

use std::fmt::Write;

use super::{FailureStatus, ModuleStatus, StatusReport};
use crate::telemetry::{Live, NextKernel};
use longshore_core::finding::{Finding, OF_SUPPORT};

impl StatusReport {
    /// Returns the report as text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{label:<9} {value}");
        };
        let none = || "none".to_owned();
        let owner = |owned: bool| match (owned, &self.journal_error) {
            (true, _) => "ours",
            (false, None) => "not ours",
            (false, Some(_)) => "owner unknown",
        };
        line("driver", self.driver_version.clone().unwrap_or_else(none));
        self.write_agent(&mut line);
        if let Some(live) = &self.live {
            write_live(live, &mut line);
        }
        if let Some(why) = &self.agent_error {
            line("agent error", why.clone());
        }
        for module in &self.modules {
            line("module", format!("{} ({})", module.render(), owner(module.owned)));
        }
        for mount in &self.mounts {
            let gone = if mount.mounted { "" } else { " (gone)" };
            line("mount", format!("{}{gone}", mount.target.display()));
        }
        for node in &self.nodes {
            let wrong = match (node.present, node.correct) {
                (_, true) => "",
                (true, false) => ", wrong",
                (false, false) => ", missing",
            };
            line("node", format!("{} ({}{wrong})", node.path.display(), owner(node.owned)));
        }
        if let Some(why) = &self.journal_error {
            line("journal error", why.clone());
        }
        for entry in &self.entries {
            let died = if entry.done { "" } else { " (not finished)" };
            line("entry", format!("{:>3} {}{died}", entry.seq, entry.step));
        }
        if let Some(last) = &self.last_failure {
            write_failure(last, &mut line);
        }
        text
    }

    fn write_agent(&self, line: &mut impl FnMut(&str, String)) {
        let agent = match (self.agent, &self.agent_error) {
            (Some(pid), _) => format!("running, pid {pid}"),
            (None, Some(_)) => "unknown".to_owned(),
            (None, None) if self.phase.is_none() && self.journal_error.is_none() => {
                return line("agent", "no agent has run here since boot".to_owned());
            }
            (None, None) => "none".to_owned(),
        };
        let unknown = if self.journal_error.is_some() { "unknown" } else { "none" };
        let phase = self.phase.map_or_else(|| unknown.to_owned(), |phase| phase.to_string());
        let live = self.live.as_ref().filter(|live| live.phase.is_some());
        line("phase", live.map_or(phase, Live::state));
        line("agent", agent);
    }
}

impl ModuleStatus {
    fn render(&self) -> String {
        let Self { name, refcount, holders, version, .. } = self;
        let version = version.as_ref().map_or_else(String::new, |version| format!(" {version}"));
        let before = if holders.is_empty() { "" } else { ": " };
        format!("{name}{version}, used by {refcount}{before}{}", holders.join(", "))
    }
}

/// Writes the agent's current step and its driver.
fn write_live(live: &Live, line: &mut impl FnMut(&str, String)) {
    if let Some(since) = live.state_since() {
        line("since", format!("{since:.0}"));
    }
    let ready =
        if live.ready { "yes".to_owned() } else { format!("no: {}", live.not_ready.join("; ")) };
    line("ready", ready);
    if let Some(awaited) = &live.awaited {
        line("waiting", format!("for {awaited}, since {:.0}", awaited.since));
    }
    if let Some(step) = &live.current_step {
        let undo = if step.undo { "undoing " } else { "" };
        line("step", format!("{undo}{} {}, for {:.0} s", step.step, step.subject, step.seconds));
    }
    if let Some(driver) = &live.driver {
        let origin = driver.origin.map_or_else(String::new, |origin| format!(", {origin}"));
        let installed =
            format!("{} {} for {}{origin}", driver.version, driver.flavour, driver.kernel);
        line("installed", installed);
    }
    if let Some(gpus) = &live.gpus {
        line("gpus", format!("{} of {} driven", gpus.bound, gpus.expected));
    }
    if let Some(next) = &live.next_kernel {
        line("next", next_kernel(next));
    }
    let of_table = live.plan_findings.iter().filter(|f| OF_SUPPORT.contains(&f.code));
    for finding in live.findings.iter().chain(of_table) {
        let Finding { code, severity, detail, remedy } = finding;
        line("finding", format!("{} {code}: {detail}", severity.as_str()));
        line("remedy", remedy.clone());
    }
    for daemon in &live.daemons {
        let required = if daemon.required { "" } else { ", not required" };
        let restarts = daemon.restarts;
        line("daemon", format!("{} {}, {restarts} restarts{required}", daemon.name, daemon.state));
    }
    for held in live.holders.iter().flat_map(|holders| &holders.held) {
        line("held", held.clone());
    }
    for process in live.holders.iter().flat_map(|holders| &holders.processes) {
        line("holder", process.to_string());
    }
}

fn next_kernel(next: &NextKernel) -> String {
    let modules = match next {
        NextKernel { ready: true, .. } => "ready",
        NextKernel { preparing: true, .. } => "being prepared",
        _ => "missing",
    };
    let running = if next.running { ", the running one" } else { "" };
    format!("kernel {}{running}; modules {modules}", next.release)
}

fn write_failure(last: &FailureStatus, line: &mut impl FnMut(&str, String)) {
    let failure = &last.failure;
    let code = failure.code.map_or_else(String::new, |code| format!(", exit code {code}"));
    let phase = failure.phase.map_or_else(String::new, |phase| format!(" in phase {phase}"));
    let boot = if last.before_this_boot == Some(true) { ", before this boot" } else { "" };
    line("failed", format!("{:.0}{phase}{code}{boot}", failure.time));
    line("cause", failure.cause.clone());
    line("remedy", failure.remedy.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::phase::Phase;
    use crate::telemetry::{Condition, DaemonState, DriverInfo, GpuCount, Telemetry};
    use longshore_core::failure::{Failure, FailureKind};
    use longshore_core::finding::Code;
    use rstest::rstest;

    fn report() -> StatusReport {
        StatusReport {
            phase: Some(Phase::Ready),
            agent: Some(7),
            driver_version: Some("535.1".into()),
            modules: Vec::new(),
            mounts: Vec::new(),
            nodes: Vec::new(),
            entries: Vec::new(),
            journal_error: None,
            live: None,
            agent_error: None,
            last_failure: None,
        }
    }

    #[test]
    fn an_agent_that_answers_is_shown_with_what_it_has() {
        let telemetry = Telemetry::default();
        telemetry.driver(DriverInfo {
            version: "535.1".into(),
            flavour: "open".into(),
            kernel: "6.1".into(),
            module_digest: None,
            origin: None,
        });
        telemetry.enter(Phase::Ready);
        telemetry.daemon("nvidia-persistenced", true, DaemonState::BackingOff);
        let finding = Finding::warning(Code::GpuMissing, "0000:02:00.0 is").remedy("look");
        let gpus = Some(GpuCount { expected: 2, bound: 1 });
        let findings = vec![finding];
        telemetry.condition(Condition { gpus, findings, not_ready: Vec::new() });
        let mut live = telemetry.live();
        (live.phase_since, live.ready_since) = (None, "2026-01-02T03:04:05.6Z".parse().ok());
        let text = StatusReport { live: Some(live), ..report() }.render();
        let expected = "\
driver    535.1
phase     degraded
agent     running, pid 7
since     2026-01-02T03:04:05Z
ready     no: nvidia-persistenced is backing-off
installed 535.1 open for 6.1, stored
gpus      1 of 2 driven
finding   warning gpu-missing: 0000:02:00.0 is
remedy    look
daemon    nvidia-persistenced backing-off, 0 restarts
";
        assert_eq!(text, expected);
    }

    #[test]
    fn findings_of_the_plan_by_the_support_table_are_shown_and_no_others() {
        let telemetry = Telemetry::default();
        let ended = Finding::warning(Code::DriverEnded, "over").remedy("select another");
        let other = Finding::warning(Code::PreemptRt, "real time");
        telemetry.planned(&[ended, other], Vec::new());
        let text = StatusReport { live: Some(telemetry.live()), ..report() }.render();
        assert!(text.contains("finding   warning driver-ended: over\nremedy    select another\n"));
        assert!(!text.contains("preempt-rt"), "{text}");
    }

    #[rstest]
    #[case::ready(true, false, false, "kernel 6.9; modules ready")]
    #[case::preparing(false, true, false, "kernel 6.9; modules being prepared")]
    #[case::missing(false, false, false, "kernel 6.9; modules missing")]
    #[case::running(true, false, true, "kernel 6.9, the running one; modules ready")]
    fn the_next_kernel_is_shown(
        #[case] ready: bool,
        #[case] preparing: bool,
        #[case] running: bool,
        #[case] wanted: &str,
    ) {
        let release = "6.9".to_owned();
        let next = NextKernel { release, running, ready, preparing, failure: None };
        let telemetry = Telemetry::default();
        telemetry.next_kernel(Some(next));
        let text = StatusReport { live: Some(telemetry.live()), ..report() }.render();
        assert!(text.contains(&format!("\nnext      {wanted}\n")), "{text}");
    }

    #[test]
    fn what_is_there_is_shown_without_a_journal_too_and_is_nobodys() {
        let module = ModuleStatus {
            name: "nvidia".into(),
            refcount: 0,
            holders: Vec::new(),
            version: Some("535.1".into()),
            owned: false,
        };
        let text = StatusReport {
            phase: None,
            agent: None,
            modules: vec![module],
            journal_error: Some("/s/state.json cannot be understood".into()),
            ..report()
        }
        .render();
        let expected = "\
driver    535.1
phase     unknown
agent     none
module    nvidia 535.1, used by 0 (owner unknown)
journal error /s/state.json cannot be understood
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_last_failure_is_shown_and_of_another_boot_it_says_so() {
        let failure = Failure::new(FailureKind::Compile, "it does not compile").remedy("look");
        let telemetry = Telemetry::default();
        telemetry.enter(Phase::Acquiring);
        let mut failure = telemetry.record(&failure);
        failure.time = "2026-01-02T03:04:05Z".parse().expect("a time");
        for (before, boot) in [(Some(true), ", before this boot"), (Some(false), ""), (None, "")] {
            let failure = failure.clone();
            let last = FailureStatus { failure, before_this_boot: before };
            let text = StatusReport { last_failure: Some(last), ..report() }.render();
            let expected = format!(
                "failed    2026-01-02T03:04:05Z in phase acquiring, exit code 14{boot}\n\
                 cause     it does not compile\nremedy    look\n"
            );
            assert!(text.ends_with(&expected), "{text}");
        }
    }
}
