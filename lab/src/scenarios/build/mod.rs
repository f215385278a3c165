//! Cells without a VM: `longshore build` must end as declared.

use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use crate::cell::Cell;
use crate::guest::run_dir;
use crate::guest::workbench::{Workbench, hold};
use crate::host::error::{At, Error};
use crate::host::process;
use crate::judge::event::{Outcome, Sink, What};
use crate::judge::log_text;
use crate::scenarios::{Build, Scenario};

/// Number of last output lines shown after a failure.
const SHOWN: usize = 6;

impl Scenario for Build {
    /// Runs `longshore build` for the cell's kernel and driver.
    ///
    /// # Errors
    /// The kernel is not in the archive, or longshore cannot be started.
    fn run(
        &self,
        cell: &Cell,
        workbench: &Mutex<Workbench>,
        sink: &Sink<'_>,
    ) -> Result<Outcome, Error> {
        let (mut command, dir) = {
            let workbench = hold(workbench);
            let (_, resolved) = workbench.resolve(cell)?;
            let release = resolved.kernel_release.clone();
            sink.tell(What::Resolved(resolved));
            let mut command = workbench.longshore("build", &release, cell);
            // A remembered failure would lack the compiler's messages.
            command.arg("--retry");
            (command, run_dir::make(&workbench, &cell.name)?)
        };
        sink.tell(What::Phase { name: "build".into(), after: Duration::ZERO });
        let (code, said) = process::listen(&mut command, cell.deadline())?;
        let log = dir.join("build.log");
        fs::write(&log, said.join("\n")).at("write", &log)?;
        Ok(judge(cell, code, &said))
    }
}

fn judge(cell: &Cell, code: Option<i32>, said: &[String]) -> Outcome {
    let said = log_text::for_people(said);
    let mut wrong = Vec::new();
    if code != Some(cell.exit) {
        let code = code.map_or("a kill at the deadline".into(), |code| code.to_string());
        wrong.push(format!("longshore build ended with {code}, not {}", cell.exit));
    }
    let unsaid = cell.says.iter().filter(|text| !said.iter().any(|l| l.contains(text.as_str())));
    wrong.extend(unsaid.map(|text| format!("longshore build does not say `{text}`")));
    if wrong.is_empty() {
        return Outcome::Passed;
    }
    let tail = &said[said.len().saturating_sub(SHOWN)..];
    wrong.extend(tail.iter().map(|line| format!("it said: {line}")));
    Outcome::Failed(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell() -> Cell {
        toml::from_str(
            "name = 'a'\nscenario = 'build'\nexit = 14\nsays = ['too few']\n\
             kernel = { suite = 's', package = 'p' }\ndriver = { branch = '535', flavour = 'open' }",
        )
        .unwrap()
    }

    #[test]
    fn the_build_is_held_to_what_was_declared() {
        let said = ["nv-pci.c: too few arguments".to_owned()];
        assert_eq!(judge(&cell(), Some(14), &said), Outcome::Passed);
        let json = r#"{"timestamp":"t","level":"ERROR","message":"m","exit_code":14,"cause":"too few","remedy":"r"}"#;
        assert_eq!(judge(&cell(), Some(14), &[json.to_owned()]), Outcome::Passed);
        let Outcome::Failed(wrong) = judge(&cell(), Some(0), &[]) else { panic!("passed") };
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(matches!(judge(&cell(), None, &said), Outcome::Failed(_)));
    }
}
