//! Upgrade of a host's kernel (script.sh), in three boots: the next kernel is installed while the
//! driver is Ready, and prepared; it boots with the prepared store and no archive; it boots with a store that
//! nothing was prepared in, and the archive, so that the agent compiles.

use std::time::Duration;

use serde_json::Value;

use crate::cell::Cell;
use crate::cell::needs::Needs;
use crate::guest::{Boot, Guest};
use crate::host::error::Error;
use crate::judge::answers;
use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::event::{Outcome, Sink, What};
use crate::judge::evidence::Evidence;
use crate::judge::records::Records;
use crate::scenarios::{NextKernel, Row, Scenario};

/// Names of the boots, which begin those of their phases.
const INSTALLED: &str = "installed-";
const PREPARED: &str = "prepared-";
const UNPREPARED: &str = "unprepared-";
/// Line of the agent's log after each compile (crates/build/src/reuse).
const COMPILED: &str = "reused from earlier builds";
/// Line of its log before anything is fetched or compiled.
const ACQUIRING: &str = "phase acquiring";

impl Scenario for NextKernel {
    fn needs(&self) -> Needs {
        Needs { next_kernel: true, ..Needs::default() }
    }

    /// Runs the boots one after the other, and judges each.
    ///
    /// # Errors
    /// A guest cannot be booted, or the cell was prepared without a next kernel.
    fn boot(
        &self,
        guest: &mut Guest<'_>,
        _expected: &Expected,
        sink: &Sink<'_>,
    ) -> Result<Outcome, Error> {
        let without = || Error::Unexpected(format!("{} has no next kernel", guest.cell.name));
        let next = guest.prepared.next_kernel.clone().ok_or_else(without)?;
        let set = guest.prepared.seed.next_kernel.as_ref().ok_or_else(without)?;
        let expected = |set| Expected::from_set(set, &guest.cell.extra_modules);
        let (first, then) = (expected(&guest.prepared.seed.set), expected(set));
        let evidence = boot(guest, INSTALLED, sink)?;
        let mut wrong = named(INSTALLED, installed(guest.cell, &first, &evidence, &next.release));
        if !wrong.is_empty() {
            return Ok(Outcome::Failed(wrong));
        }
        let at = |phase: &str| at(&evidence, phase);
        tell(sink, "kernel installed to prepared", at("installed"), at("prepared"));
        tell(sink, "preparation itself", at("preparing"), at("prepared"));
        guest.prepared.kernel = next;
        (guest.delivery.modules, guest.delivery.media) = (None, None);
        let archive = guest.delivery.archive.take();
        let evidence = boot(guest, PREPARED, sink)?;
        wrong.extend(named(PREPARED, booted(guest.cell, &then, &evidence, false)));
        tell_ready(sink, PREPARED, &evidence);
        (guest.delivery.archive, guest.delivery.kept_store) = (archive, None);
        let evidence = boot(guest, UNPREPARED, sink)?;
        wrong.extend(named(UNPREPARED, booted(guest.cell, &then, &evidence, true)));
        tell_ready(sink, UNPREPARED, &evidence);
        Ok(if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong) })
    }
}

fn boot(guest: &Guest<'_>, name: &str, sink: &Sink<'_>) -> Result<Evidence, Error> {
    let script = NextKernel.script().unwrap_or_default();
    guest.watch(&Boot { name: name.to_owned(), processors: 2, ..Boot::new(script) }, sink)
}

/// Judges the boot in which the kernel `next` is installed and prepared.
fn installed(cell: &Cell, expected: &Expected, evidence: &Evidence, next: &str) -> Vec<String> {
    let mut wrong = left_as_before(cell, evidence);
    let records = &evidence.records;
    wrong.extend(checks::ready(expected, records, "ready"));
    wrong.extend(reported(records, "ready", None));
    wrong.extend(reported(records, "prepared", Some(next)));
    let doctor = records.text("prepared.doctor");
    if !doctor.contains(&format!("{next}: ready")) {
        wrong.push(format!("doctor does not say that {next} is ready: {doctor}"));
    }
    for part in ["driver", "versions", "host-nodes", "root-nodes"] {
        let text = |when: &str| records.text(&format!("{when}.{part}"));
        if text("prepared") != text("ready") {
            wrong.push(format!("the preparation changed {part}: {}", text("prepared")));
        }
    }
    wrong
}

/// Judges a boot of the next kernel, whose agent compiles where nothing was prepared, and else takes
/// everything from its store.
fn booted(cell: &Cell, expected: &Expected, evidence: &Evidence, compiles: bool) -> Vec<String> {
    let mut wrong = left_as_before(cell, evidence);
    wrong.extend(checks::ready(expected, &evidence.records, "ready"));
    let log = evidence.records.text("agent-log");
    for line in [ACQUIRING, COMPILED] {
        if log.contains(line) != compiles {
            let not = if compiles { "does not say" } else { "says" };
            wrong.push(format!("the agent's log {not} `{line}`"));
        }
    }
    wrong
}

/// Judges the end of a boot: the agent uninstalled the driver.
fn left_as_before(cell: &Cell, evidence: &Evidence) -> Vec<String> {
    let mut wrong = end::judged(cell, evidence, |records| {
        let mut wrong = end::agent(cell, records);
        wrong.extend(end::host(records));
        wrong
    });
    if end::unfinished(cell, evidence).is_some() {
        wrong.extend(end::last_lines(&evidence.records, "agent-log"));
    }
    wrong
}

/// Checks the agent's reports of the next kernel in the phase `when`: this one, prepared, or none.
fn reported(records: &Records, when: &str, next: Option<&str>) -> Vec<String> {
    let mut wrong = Vec::new();
    let json = answers::answered(records, &format!("{when}.json")).unwrap_or_else(|said| said);
    let status: Value = serde_json::from_str(&json).unwrap_or_default();
    let seen = &status["live"]["next_kernel"];
    let release = seen["release"].as_str().unwrap_or_default();
    let is_next = next.is_none_or(|next| release == next);
    let is_ready = seen["running"] == next.is_none()
        && seen["ready"] == true
        && seen["preparing"] == false
        && seen["failure"].is_null();
    if release.is_empty() || !is_next || !is_ready {
        wrong.push(format!("{when}: /status has the next kernel as {seen}"));
    }
    if status["live"]["ready"] != true {
        wrong.push(format!("{when}: the driver is not ready"));
    }
    let (release, running) = next.map_or((release, ", the running one"), |next| (next, ""));
    let reported = [
        ("status", format!("kernel {release}{running}; modules ready")),
        ("metrics", format!("longshore_next_kernel_ready{{release=\"{release}\"}} 1")),
    ];
    for (section, line) in reported {
        let said = records.text(&format!("{when}.{section}"));
        if !said.contains(&line) {
            wrong.push(format!("{when}.{section} does not say `{line}`: {said}"));
        }
    }
    wrong
}

fn named(boot: &str, wrong: Vec<String>) -> Vec<String> {
    wrong.into_iter().map(|why| format!("{boot}boot: {why}")).collect()
}

/// Returns the time from QEMU's start to a phase.
fn at(evidence: &Evidence, phase: &str) -> Option<Duration> {
    let is_it = |(name, _): &&(String, Duration)| {
        name.split_once('-').is_some_and(|(_, name)| name == phase)
    };
    evidence.reached.iter().find(is_it).map(|(_, after)| *after)
}

fn tell_ready(sink: &Sink<'_>, boot: &str, evidence: &Evidence) {
    let kind = boot.trim_end_matches('-');
    let ready = at(evidence, "ready");
    let start = at(evidence, "start");
    tell(sink, &format!("boot to Ready, {kind}"), Some(Duration::ZERO), ready);
    tell(sink, &format!("start to Ready, {kind}"), start, ready);
}

fn tell(sink: &Sink<'_>, what: &str, from: Option<Duration>, to: Option<Duration>) {
    if let (Some(from), Some(to)) = (from, to) {
        let value = format!("{:.1} s", to.saturating_sub(from).as_secs_f64());
        sink.tell(What::Measured { what: what.to_owned(), value });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: &str = "6.1.0-56-amd64";

    fn records(release: &str, running: bool, ready: bool) -> Records {
        let mut records = Records::default();
        let word = if ready { "ready" } else { "missing" };
        let own = if running { ", the running one" } else { "" };
        for (section, text) in [
            (
                "json",
                format!(
                    "exit code 0\n\n{{\"live\":{{\"ready\":true,\"next_kernel\":{{\
                     \"release\":\"{release}\",\"running\":{running},\"ready\":{ready},\
                     \"preparing\":false,\"failure\":null}}}}}}"
                ),
            ),
            ("status", format!("next      kernel {release}{own}; modules {word}")),
            (
                "metrics",
                format!("longshore_next_kernel_ready{{release=\"{release}\"}} {}", u8::from(ready)),
            ),
        ] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(format!("w.{section}"), lines);
        }
        records
    }

    #[test]
    fn the_next_kernel_has_to_be_reported_everywhere() {
        let none = Vec::<String>::new();
        assert_eq!(reported(&records(NEXT, false, true), "w", Some(NEXT)), none);
        assert_eq!(reported(&records("6.1.0-50-amd64", true, true), "w", None), none);
        let cases = [
            (records(NEXT, false, false), Some(NEXT), 3),
            (records("6.1.0-50-amd64", true, true), Some(NEXT), 3),
            (records(NEXT, false, true), None, 2),
            (Records::default(), Some(NEXT), 4),
        ];
        for (records, next, count) in cases {
            let wrong = reported(&records, "w", next);
            assert_eq!(wrong.len(), count, "{wrong:?}");
        }
        let mut silent = records(NEXT, false, true);
        silent.sections.insert("w.metrics".into(), Vec::new());
        assert!(reported(&silent, "w", Some(NEXT)).join("").starts_with("w.metrics does not say"));
    }

    #[test]
    fn a_boot_has_to_compile_where_nothing_was_prepared_and_only_there() {
        let cell: Cell = toml::from_str(
            "name = 'a'\nscenario = 'next-kernel'\nfrom = 'compile'\n\
             kernel = { suite = 's', package = 'p' }\nnext-kernel = { suite = 't', package = 'p' }\n\
             driver = { branch = '535', flavour = 'open' }",
        )
        .unwrap();
        let log = format!("INFO {ACQUIRING}\nINFO {COMPILED} answered=1");
        for (log, compiles, is_wrong) in
            [(log.as_str(), true, false), (&log, false, true), ("", true, true), ("", false, false)]
        {
            let mut evidence = Evidence::default();
            let lines = log.lines().map(str::to_owned).collect();
            evidence.records.sections.insert("agent-log".into(), lines);
            let wrong = booted(&cell, &Expected::default(), &evidence, compiles).join("\n");
            assert_eq!(wrong.contains("the agent's log "), is_wrong, "{wrong}");
            assert!(wrong.contains("without a verdict"), "{wrong}");
        }
    }

    #[test]
    fn phases_are_found_without_the_name_of_their_boot() {
        let reached = vec![("prepared-ready".to_owned(), Duration::from_secs(9))];
        let evidence = Evidence { reached, ..Evidence::default() };
        assert_eq!(at(&evidence, "ready"), Some(Duration::from_secs(9)));
        assert_eq!(at(&evidence, "start"), None);
    }
}
