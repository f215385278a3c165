//! Gates as text: a line for each, with the remedy below one that fails.

use std::fmt::{self, Write};

use super::{Answer, AskedBy, Gate, OperatorReport};

/// Formats the result and the gates.
pub fn render(report: &OperatorReport) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write_all(&mut text, report);
    text
}

fn write_all(out: &mut String, report: &OperatorReport) -> fmt::Result {
    let failing = report.gates.iter().filter(|gate| matches!(gate.answer, Answer::Fails { .. }));
    let (failing, all) = (failing.count(), report.gates.len());
    let code = report.exit_code.number();
    writeln!(out, "{failing} of {all} gates of the GPU operator fail (exit code {code})")?;
    let mut last = None;
    for gate in &report.gates {
        if last != Some(gate.asked_by) {
            writeln!(out, "\n{}", gate.asked_by.title())?;
            last = Some(gate.asked_by);
        }
        write_gate(out, gate)?;
    }
    Ok(())
}

fn write_gate(out: &mut String, gate: &Gate) -> fmt::Result {
    let (answer, fact) = match &gate.answer {
        Answer::Passes { fact } => ("passes", fact),
        Answer::Fails { fact, .. } => ("FAILS", fact),
        Answer::NotAsked { fact } => ("not asked", fact),
    };
    writeln!(out, "  {answer:<9}  {:<36} {fact}", gate.name)?;
    if let Answer::Fails { remedy, .. } = &gate.answer {
        writeln!(out, "  {:<9}  {:<36} remedy: {remedy}", "", "")?;
    }
    Ok(())
}

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
