//! Output for people while the matrix runs: one line an event. It only consumes events.

use std::time::Duration;

use longshore_core::sanitize::printable;

use crate::judge::event::{Event, Outcome, What};

/// Output beyond one line an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Detail {
    /// The guest's reports for people, before, when Ready and after, and the agent's log.
    pub looks: bool,
    /// The guest's console.
    pub console: bool,
}

/// Returns the text for an event, or None where it has none. Control characters in it, which a guest
/// can write, are escaped.
pub fn line(event: &Event, after: Duration, detail: Detail) -> Option<String> {
    let text = match &event.what {
        What::Preparing(what) => format!("preparing {what}"),
        What::Resolved(to) => {
            format!("is {} {} {} {}", to.kernel_package, to.kernel_version, to.driver(), to.flavour)
        }
        What::Prepared { took } => format!("prepared in {:.1} s", took.as_secs_f64()),
        What::Started { gpus } if gpus.is_empty() => "booting without a GPU".into(),
        What::Started { gpus } => {
            let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
            format!("booting with {}", names.join(", "))
        }
        What::Phase { name, .. } => name.clone(),
        What::Section { name, lines } if detail.looks && is_look(name) => {
            format!("{name}\n    {}", lines.join("\n    "))
        }
        What::ConsoleLine(line) if detail.console => format!("| {line}"),
        What::ConsoleLine(_) | What::Section { .. } | What::Output(_) => return None,
        What::Trouble(line) => format!("kernel fault: {line}"),
        What::Measured { what, value } => format!("{what} {value}"),
        What::Trial(trial) => trial.line(),
        What::Verdict(Outcome::Passed) => "PASSED".into(),
        // The reasons are in the table at the end.
        What::Verdict(Outcome::Failed(why)) => format!("FAILED: {} reasons", why.len()),
        What::Verdict(Outcome::NotRun(why)) => format!("NOT RUN: {why}"),
    };
    let line = format!("{:6.1} {} {text}", after.as_secs_f64(), event.cell);
    Some(printable(&line).into_owned())
}

/// True if a section is for people; the others are for the judge.
fn is_look(section: &str) -> bool {
    section.ends_with(".look") || section == "agent-log"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_lines_are_shown_only_when_asked_for() {
        let event = Event { cell: "a".into(), what: What::ConsoleLine("x".into()) };
        let console = Detail { console: true, ..Detail::default() };
        assert_eq!(line(&event, Duration::ZERO, Detail::default()), None);
        assert_eq!(line(&event, Duration::from_secs(2), console).unwrap(), "   2.0 a | x");
    }

    #[test]
    fn a_guest_does_not_control_the_terminal() {
        let text = || "\x1b]0;x\x07\u{202e}a\r<b>".to_owned();
        let shown = "\\u{1b}]0;x\\u{7}\\u{202e}a\\r<b>";
        let all = Detail { looks: true, console: true };
        for what in [
            What::Phase { name: text(), after: Duration::ZERO },
            What::Section { name: "ready.look".into(), lines: vec![text()] },
            What::ConsoleLine(text()),
            What::Trouble(text()),
            What::Measured { what: text(), value: String::new() },
            What::Verdict(Outcome::NotRun(text())),
        ] {
            let line = line(&Event { cell: "a".into(), what }, Duration::ZERO, all).unwrap();
            assert!(line.contains(shown) && !line.contains('\x1b'), "{line:?}");
        }
    }

    #[test]
    fn looks_are_shown_whole_and_what_is_for_the_judge_is_not() {
        let looks = Detail { looks: true, ..Detail::default() };
        let cases = [
            ("ready.look", looks, Some("   0.0 a ready.look\n    one\n    two")),
            ("ready.look", Detail::default(), None),
            ("ready.modules", looks, None),
        ];
        for (name, detail, shown) in cases {
            let lines = vec!["one".into(), "two".into()];
            let event =
                Event { cell: "a".into(), what: What::Section { name: name.into(), lines } };
            assert_eq!(line(&event, Duration::ZERO, detail).as_deref(), shown);
        }
    }
}
