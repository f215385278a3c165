//! Cells without a VM: `longshore build` has to end as declared.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cell::{hold, run_dir};
use crate::error::{At, Error};
use crate::event::{Outcome, Sink, What};
use crate::matrix::Cell;
use crate::seed;
use crate::workbench::Workbench;

/// How many of the last lines are shown when it went wrong.
const SHOWN: usize = 6;

/// Runs `longshore build` for the cell's kernel and driver.
///
/// # Errors
/// The kernel is not in the archive, or longshore cannot be started.
pub fn run(cell: &Cell, workbench: &Mutex<Workbench>, sink: &Sink<'_>) -> Result<Outcome, Error> {
    let (command, dir) = {
        let workbench = hold(workbench);
        let (_, resolved) = workbench.resolve(cell)?;
        let release = resolved.kernel_release.clone();
        sink.tell(What::Resolved(resolved));
        let store = workbench.cache().dir("store");
        let program = workbench.program();
        let command = seed::command(program, "build", &release, &cell.driver, &store);
        (command, run_dir(&workbench, cell)?)
    };
    sink.tell(What::Phase { name: "build".into(), after: Duration::ZERO });
    let (code, said) = listen(command, Instant::now() + cell.deadline())?;
    let log = dir.join("build.log");
    File::create(&log)
        .and_then(|mut f| f.write_all(said.join("\n").as_bytes()))
        .at("write", &log)?;
    Ok(judge(cell, code, &said))
}

fn judge(cell: &Cell, code: Option<i32>, said: &[String]) -> Outcome {
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

/// Runs a program to its end or to the deadline: its exit code, None where it was killed, and all
/// it said.
fn listen(mut command: Command, deadline: Instant) -> Result<(Option<i32>, Vec<String>), Error> {
    let program = Path::new(command.get_program()).to_path_buf();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .at("start", &program)?;
    let (say, heard) = mpsc::channel();
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|s| Box::new(s) as Box<dyn Read + Send>),
        child.stderr.take().map(|s| Box::new(s) as Box<dyn Read + Send>),
    ];
    for stream in streams.into_iter().flatten() {
        let say = say.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(io::Result::ok) {
                if say.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
    }
    drop(say);
    let mut said = Vec::new();
    loop {
        match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => said.push(line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // Fails only where it has ended already.
                let _ = child.kill();
                let _ = child.wait();
                return Ok((None, said));
            }
        }
    }
    let status = child.wait().at("wait for", &program)?;
    Ok((status.code(), said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> (Option<i32>, Vec<String>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        listen(command, Instant::now() + limit).unwrap()
    }

    fn cell() -> Cell {
        toml::from_str(
            "name = 'a'\nscenario = 'build'\nexit = 14\nsays = ['too few']\n\
             kernel = { suite = 's', package = 'p' }\ndriver = { branch = '535', flavour = 'open' }",
        )
        .unwrap()
    }

    #[test]
    fn code_and_lines_of_both_streams_are_had() {
        let (code, mut said) = sh("echo out; echo err >&2; exit 14", Duration::from_secs(60));
        said.sort();
        assert_eq!((code, said), (Some(14), vec!["err".to_owned(), "out".to_owned()]));
    }

    #[test]
    fn a_program_past_its_deadline_is_killed() {
        let (code, said) = sh("echo begun; exec sleep 600", Duration::from_millis(300));
        assert_eq!((code, said), (None, vec!["begun".to_owned()]));
    }

    #[test]
    fn the_build_is_held_to_what_was_declared() {
        let said = ["nv-pci.c: too few arguments".to_owned()];
        assert_eq!(judge(&cell(), Some(14), &said), Outcome::Passed);
        let Outcome::Failed(wrong) = judge(&cell(), Some(0), &[]) else { panic!("passed") };
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(matches!(judge(&cell(), None, &said), Outcome::Failed(_)));
    }
}
