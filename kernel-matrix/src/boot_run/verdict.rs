//! Verdict on a guest's run, in the results' terms.

use serde::Deserialize;

use crate::results::{GuestEnd, Line, Verdict};
use longshore_lab::judge::end;
use longshore_lab::judge::event::Outcome;
use longshore_lab::judge::evidence::Evidence;

/// Most faults of a cell in results.
const FAULTS: usize = 50;
/// A kernel's line at a panic (kernel/panic.c).
const PANIC: &str = "Kernel panic";
/// Text of ENOSPC, which programs report.
const NO_SPACE: &str = "No space left on device";

/// Codes of findings that refuse a combination of kernel, driver and devices.
const OF_COMBINATION: [&str; 4] =
    ["arch-unsupported", "kernel-without-modules", "gpu-too-old", "gpu-unsupported"];

/// The agent's record of its failure (agent/src/termination.rs).
#[derive(Debug, Deserialize)]
struct LastFailure {
    code: Option<i32>,
    cause: String,
    remedy: String,
}

/// A guest's run as it was judged.
pub(super) struct Ran {
    /// The judge's outcome.
    pub(super) outcome: Outcome,
    /// Reason for which the scenario has no verdict.
    pub(super) unfinished: Option<String>,
    /// The console's lines.
    pub(super) console: Vec<String>,
}

impl Ran {
    /// Returns the index of the console's line that tells of this kind of end.
    pub(super) fn line_of(&self, class: GuestEnd) -> Option<usize> {
        let has = |text: &str| self.console.iter().position(|line| line.contains(text));
        match class {
            GuestEnd::Panicked => has(PANIC),
            GuestEnd::DiskFull => has(NO_SPACE),
            GuestEnd::Hung | GuestEnd::Killed | GuestEnd::Silent => None,
        }
    }
}

/// Returns the verdict on a run with modules that have these patches.
pub(super) fn verdict_of(ran: &Ran, evidence: &Evidence, patches: Vec<Line>) -> Verdict {
    let why = match &ran.outcome {
        Outcome::Passed if patches.is_empty() => return Verdict::Works {},
        Outcome::Passed => return Verdict::WorksPatched { patches },
        Outcome::NotRun(why) => return Verdict::NotRun { why: Line::new(why) },
        Outcome::Failed(why) => why,
    };
    let Some(class) = class(ran, evidence) else {
        return refusal(evidence).unwrap_or_else(|| Verdict::Faulty { why: lines(why) });
    };
    let phase = evidence.records.phases.last().map_or("boot", String::as_str);
    let mut first = ran.unfinished.clone().unwrap_or_else(|| format!("faults at `{phase}`"));
    if let Some(line) = ran.line_of(class) {
        first = format!("{}; {first}", ran.console[line].trim());
    }
    // The console's last lines are in the log's excerpt.
    let is_further = |line: &&String| {
        let fault = line.strip_prefix("kernel: ").unwrap_or(line);
        !line.starts_with("console: ") && !first.contains(fault.trim())
    };
    let faults: Vec<String> = why.iter().filter(is_further).cloned().collect();
    let why = lines(&[vec![first], faults].concat());
    Verdict::GuestEnded { class, why }
}

/// Returns the kind of a guest's end; None where the scenario ran to its own.
fn class(ran: &Ran, evidence: &Evidence) -> Option<GuestEnd> {
    let log = evidence.records.section("agent-log").unwrap_or_default();
    let is_full =
        ran.line_of(GuestEnd::DiskFull).is_some() || log.iter().any(|line| line.contains(NO_SPACE));
    if ran.unfinished.is_none() {
        return is_full.then_some(GuestEnd::DiskFull);
    }
    Some(if evidence.killed_by.is_some() {
        GuestEnd::Killed
    } else if ran.line_of(GuestEnd::Panicked).is_some() {
        GuestEnd::Panicked
    } else if evidence.overdue {
        GuestEnd::Hung
    } else if is_full {
        GuestEnd::DiskFull
    } else {
        GuestEnd::Silent
    })
}

/// Returns the agent's refusal of the devices or the kernel, by its record; None where the refusal is about
/// anything else, which lies in the guest, or where the host was changed.
fn refusal(evidence: &Evidence) -> Option<Verdict> {
    let records = &evidence.records;
    let is_untouched = evidence.trouble.is_empty()
        && !records.phases.iter().any(|phase| phase == "ready")
        && end::host(records).is_empty();
    let failure: LastFailure = serde_json::from_str(&records.text("last-failure")).ok()?;
    let is_this_end = records.facts.get("exit-code") == Some(&failure.code?.to_string());
    let (code, reason) = failure.cause.split_once(": ")?;
    (is_untouched && is_this_end && OF_COMBINATION.contains(&code)).then(|| Verdict::Refused {
        code: Line::new(code),
        reason: Line::new(reason),
        remedy: Line::new(&failure.remedy),
    })
}

fn lines(of: &[String]) -> Vec<Line> {
    of.iter().take(FAULTS).map(|line| Line::new(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PANICS: &str = "[   9.1] Kernel panic - not syncing: sysrq triggered crash";
    const FULL: &str = "dd: error writing '/full': No space left on device";

    fn ran(unfinished: Option<&str>, console: &[&str]) -> Ran {
        let mut why = vec!["kernel: BUG: a".to_owned()];
        why.extend(unfinished.map(str::to_owned));
        why.push("console: the end".to_owned());
        Ran {
            outcome: Outcome::Failed(why),
            unfinished: unfinished.map(str::to_owned),
            console: console.iter().map(|line| (*line).to_owned()).collect(),
        }
    }

    fn evidence(change: fn(&mut Evidence)) -> Evidence {
        let mut evidence = Evidence::default();
        evidence.records.phases.push("start".into());
        change(&mut evidence);
        evidence
    }

    fn class_and_reason(verdict: &Verdict) -> (GuestEnd, Vec<&str>) {
        match verdict {
            Verdict::GuestEnded { class, why } => (*class, why.iter().map(Line::as_str).collect()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_end_of_a_guest_has_its_class_and_its_reason() {
        type Change = fn(&mut Evidence);
        let cases: [(Change, &str, &[&str], GuestEnd, &str); 6] = [
            (|e| e.overdue = true, "still at", &["a"], GuestEnd::Hung, "still at"),
            (|_| (), "ended at", &[PANICS, "b"], GuestEnd::Panicked, PANICS),
            (|e| e.overdue = true, "still at", &[PANICS], GuestEnd::Panicked, PANICS),
            (|e| e.killed_by = Some(9), "signal 9", &[PANICS], GuestEnd::Killed, "signal 9"),
            (|_| (), "ended with 1", &["a", FULL], GuestEnd::DiskFull, FULL),
            (|_| (), "ended with 1", &["a"], GuestEnd::Silent, "ended with 1"),
        ];
        for (change, unfinished, console, class, reason) in cases {
            let verdict =
                verdict_of(&ran(Some(unfinished), console), &evidence(change), Vec::new());
            let (found, why) = class_and_reason(&verdict);
            assert_eq!(found, class);
            assert!(why[0].contains(reason) && why[0].contains(unfinished), "{why:?}");
            assert_eq!(why[1..], ["kernel: BUG: a"]);
        }
    }

    #[test]
    fn a_reason_is_there_once() {
        let mut ran = ran(Some("ended at"), &["a", PANICS]);
        let why = [format!("kernel: {PANICS}"), "ended at".into(), "kernel: BUG: b".into()];
        ran.outcome = Outcome::Failed(why.to_vec());
        let verdict = verdict_of(&ran, &evidence(|_| ()), Vec::new());
        assert_eq!(class_and_reason(&verdict).1[1..], ["kernel: BUG: b"]);
    }

    #[test]
    fn an_agent_without_space_is_told_from_other_faults() {
        let full = evidence(|e| {
            let log = vec!["error: writing: No space left on device (os error 28)".to_owned()];
            e.records.sections.insert("agent-log".into(), log);
        });
        let verdict = verdict_of(&ran(None, &[]), &full, Vec::new());
        assert_eq!(class_and_reason(&verdict).0, GuestEnd::DiskFull);
        let verdict = verdict_of(&ran(None, &[]), &evidence(|_| ()), Vec::new());
        assert!(matches!(&verdict, Verdict::Faulty { why } if why.len() == 2), "{verdict:?}");
    }

    /// Verdict on an agent that ended with 15 on an untouched host, with this cause, and this change.
    fn refused(cause: &str, change: impl FnOnce(&mut Evidence)) -> Verdict {
        let mut evidence = longshore_lab::judge::testing::good();
        let record = serde_json::json!({
            "at": "2026-11-24T00:00:00Z", "code": 15, "cause": cause, "remedy": "select 470",
            "phase": "planning", "boot_id": null,
        });
        evidence.records.sections.insert("last-failure".into(), vec![record.to_string()]);
        evidence.records.facts.insert("exit-code".into(), "15".into());
        change(&mut evidence);
        verdict_of(&ran(None, &[]), &evidence, Vec::new())
    }

    const UNSUPPORTED: &str = "gpu-unsupported: 535 does not drive a K80";

    #[test]
    fn a_refusal_on_an_untouched_host_has_the_agents_reason() {
        let verdict = Verdict::Refused {
            code: Line::new("gpu-unsupported"),
            reason: Line::new("535 does not drive a K80"),
            remedy: Line::new("select 470"),
        };
        assert_eq!(refused(UNSUPPORTED, |_| ()), verdict);
    }

    #[test]
    fn other_failures_are_no_refusals() {
        type Change = fn(&mut Evidence);
        let changes: [Change; 6] = [
            |e| drop(e.records.facts.insert("exit-code".into(), "16".into())),
            |e| drop(e.records.sections.remove("last-failure")),
            |e| e.records.phases.push("ready".into()),
            |e| e.trouble.push("BUG: a".into()),
            |e| drop(e.records.sections.remove("after.written")),
            |e| drop(e.records.sections.insert("after.written".into(), vec!["/etc/passwd".into()])),
        ];
        let changed = changes.into_iter().map(|change| refused(UNSUPPORTED, change));
        let causes = ["symbols-differ: nvidia", "no-device: none", "the disk is full", ""];
        let others = causes.into_iter().map(|cause| refused(cause, |_| ()));
        for (number, verdict) in changed.chain(others).enumerate() {
            assert!(matches!(verdict, Verdict::Faulty { .. }), "{number}: {verdict:?}");
        }
    }

    #[test]
    fn a_scenario_that_passed_works_with_its_patches() {
        let passed = |patches| {
            let ran = Ran { outcome: Outcome::Passed, ..ran(None, &[FULL]) };
            verdict_of(&ran, &evidence(|_| ()), patches)
        };
        assert_eq!(passed(Vec::new()), Verdict::Works {});
        let patches = vec![Line::new("strncpy-gone")];
        assert_eq!(passed(patches.clone()), Verdict::WorksPatched { patches });
    }

    #[test]
    fn faults_without_end_are_cut() {
        let many = Ran { outcome: Outcome::Failed(vec!["a".into(); 1000]), ..ran(None, &[]) };
        match verdict_of(&many, &evidence(|_| ()), Vec::new()) {
            Verdict::Faulty { why } => assert_eq!(why.len(), FAULTS),
            other => panic!("{other:?}"),
        }
    }
}
