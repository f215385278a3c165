//! What a person sees while the matrix runs: one line an event. It only consumes events.

use std::time::Duration;

use crate::event::{Event, Outcome, What};

/// The line for an event, or None where it is not worth one; `all` also shows the console.
pub fn line(event: &Event, after: Duration, all: bool) -> Option<String> {
    let text = match &event.what {
        What::Preparing(what) => format!("prepares {what}"),
        What::Resolved(to) => format!(
            "is {} {} {} {}",
            to.kernel_package, to.kernel_version, to.driver_version, to.flavour
        ),
        What::Prepared { took } => format!("prepared in {:.1} s", took.as_secs_f64()),
        What::Started { gpus } if gpus.is_empty() => "boots without a GPU".into(),
        What::Started { gpus } => {
            let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
            format!("boots with {}", names.join(", "))
        }
        What::Phase { name, .. } => name.clone(),
        What::ConsoleLine(line) if all => format!("| {line}"),
        What::ConsoleLine(_) => return None,
        What::Trouble(line) => format!("kernel in trouble: {line}"),
        What::Measured { what, value } => format!("{what} {value}"),
        What::Verdict(Outcome::Passed) => "PASSED".into(),
        // Why is in the table at the end.
        What::Verdict(Outcome::Failed(why)) => format!("FAILED: {} reasons", why.len()),
        What::Verdict(Outcome::NotRun(why)) => format!("NOT RUN: {why}"),
    };
    Some(format!("{:6.1} {} {text}", after.as_secs_f64(), event.cell))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_lines_are_shown_only_when_asked_for() {
        let event = Event { cell: "a".into(), what: What::ConsoleLine("x".into()) };
        assert_eq!(line(&event, Duration::ZERO, false), None);
        assert_eq!(line(&event, Duration::from_secs(2), true).unwrap(), "   2.0 a | x");
    }
}
