//! Gates as text: a line for each, with the remedy below one that fails.

use super::{AskedBy, Gate, GateOutcome, OperatorReport};
use crate::console::{Form, Text, Tone};

/// Formats the result and the gates.
pub fn render(report: &OperatorReport, form: Form) -> String {
    let mut text = Text::new(form);
    let failing =
        report.gates.iter().filter(|gate| matches!(gate.answer, GateOutcome::Fails { .. }));
    let (failing, all) = (failing.count(), report.gates.len());
    let code = report.exit_code.number();
    text.line(&format!("{failing} of {all} gates of the GPU operator fail (exit code {code})"));
    let mut last = None;
    for gate in &report.gates {
        if last != Some(gate.asked_by) {
            text.line("");
            text.line(gate.asked_by.title());
            last = Some(gate.asked_by);
        }
        write_gate(&mut text, gate);
    }
    text.finish()
}

fn write_gate(text: &mut Text, gate: &Gate) {
    let (answer, tone, fact) = match &gate.answer {
        GateOutcome::Passes { fact } => ("passes", Tone::Passed, fact),
        GateOutcome::Fails { fact, .. } => ("FAILS", Tone::Refused, fact),
        GateOutcome::NotAsked { fact } => ("not asked", Tone::Plain, fact),
    };
    text.item(&format!("  {answer:<9}  "), tone, FACT, &format!("{:<34} {fact}", gate.name));
    if let GateOutcome::Fails { remedy, .. } = &gate.answer {
        text.item(&format!("{:FACT$}remedy: ", ""), Tone::Plain, FACT, remedy);
    }
}

/// Column of the lines below a gate's first.
const FACT: usize = 13;

impl AskedBy {
    /// Heading of its gates.
    fn title(self) -> &'static str {
        match self {
            Self::DriverManager => "Driver manager (init container of the driver's pod)",
            Self::StartupProbe => "Startup probe (driver's container)",
            Self::Validator => "Validator (driver-validation)",
            Self::Toolkit => "Container toolkit",
            Self::SideContainers => "Containers beside the driver's",
        }
    }
}
