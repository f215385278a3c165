//! Evidence and logs from the output of one boot, within bounds: a guest may write without end.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::host::bounded_output::{HeadTail, MOST_KEPT};
use crate::host::error::{At, Error};
use crate::judge::console;
use crate::judge::event::{Sink, What};
use crate::judge::evidence::Evidence;
use crate::judge::records::Taken;
use crate::vm::{Power, Said};

/// Phase in which a guest waits for its power to go off.
const POWER_OFF: &str = "cut";
/// Number of last console lines shown of a guest that did not finish.
const TAIL: usize = 8;
/// Most console lines that report a kernel fault; later ones are in the console's log only.
const MOST_TROUBLE: usize = 200;

/// Output of one boot as far as it has come.
pub(crate) struct Transcript<'a> {
    /// Prefix of the boot's phases and logs.
    boot: &'a str,
    console: Log,
    results: Log,
    evidence: Evidence,
    sink: &'a Sink<'a>,
}

impl<'a> Transcript<'a> {
    /// Creates the logs of a boot in `dir`.
    pub(crate) fn create(
        dir: &Path,
        boot: &'a str,
        nonce: String,
        sink: &'a Sink<'a>,
    ) -> Result<Self, Error> {
        let log = |name: &str| Log::create(&dir.join(format!("{boot}{name}")));
        let evidence = Evidence { nonce, ..Evidence::default() };
        let (console, results) = (log("console.log")?, log("results.log")?);
        Ok(Self { boot, console, results, evidence, sink })
    }

    /// Takes output that came `after` QEMU's start.
    pub(crate) fn take(&mut self, said: Said, after: Duration) -> Power {
        match said {
            Said::Console(line) => self.take_console(line),
            Said::Result(line) => return self.take_result(line, after),
            Said::Gone => {}
        }
        Power::On
    }

    fn take_console(&mut self, line: String) {
        let evidence = &mut self.evidence;
        if let Some(word) = console::verdict(&line) {
            evidence.console_verdict = Some(word);
        }
        if console::is_trouble(&line) && evidence.trouble.len() < MOST_TROUBLE {
            evidence.trouble.push(line.clone());
            self.sink.tell(What::Trouble(line.clone()));
        }
        if evidence.tail.len() == TAIL {
            evidence.tail.pop_front();
        }
        evidence.tail.push_back(line.clone());
        self.console.add(line.clone());
        self.sink.tell(What::ConsoleLine(line));
    }

    fn take_result(&mut self, line: String, after: Duration) -> Power {
        let mut power = Power::On;
        match self.evidence.records.take(&line) {
            Taken::Phase(name) => {
                if name == POWER_OFF {
                    power = Power::Off;
                }
                let name = format!("{}{name}", self.boot);
                self.evidence.reached.push((name.clone(), after));
                self.sink.tell(What::Phase { name, after });
            }
            Taken::Section(name, lines) => {
                let (name, lines) = (name.to_owned(), lines.to_vec());
                self.sink.tell(What::Section { name, lines });
            }
            Taken::Line => {}
        }
        self.results.add(line);
        power
    }

    /// Completes the logs.
    pub(crate) fn finish(self) -> Evidence {
        self.console.finish();
        self.results.finish();
        self.evidence
    }
}

/// A log on disk: the first and the last lines of a stream. Faults of writing are ignored: a full disk
/// must not end the VM half way, as the judged records are in memory.
struct Log {
    file: File,
    last: HeadTail,
}

impl Log {
    fn create(path: &Path) -> Result<Self, Error> {
        Ok(Self { file: File::create(path).at("write", path)?, last: HeadTail::new(MOST_KEPT) })
    }

    fn add(&mut self, line: String) {
        if let Some(line) = self.last.take(line) {
            let _ = writeln!(self.file, "{line}");
        }
    }

    fn finish(mut self) {
        for line in self.last.rest() {
            let _ = writeln!(self.file, "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::bounded_output::Lines;
    use crate::judge::event::Event;
    use rstest::rstest;
    use std::io::Read;

    /// A stand-in for a guest: writes `text` with 8 KiB after it for 48 MiB, then its verdict.
    fn flood(text: &str, end: &str) -> impl Read {
        let unit = format!("{text}{}{end}", ".".repeat(8 << 10));
        let flood = std::io::Cursor::new(unit.repeat((48 << 20) / unit.len()));
        flood.chain(&b"\nMATRIX-VERDICT n0nce 0\n"[..])
    }

    #[rstest]
    #[case("\x1b[2J<script>alert(1)</script>", "\n")]
    #[case("BUG: soft lockup", "\n")]
    #[case("never a newline", "")]
    fn a_console_of_many_mib_is_kept_within_bounds(#[case] text: &str, #[case] end: &str) {
        let dir = tempfile::tempdir().unwrap();
        let ignore = |_: Event| ();
        let sink = Sink::new("a", &ignore);
        let mut transcript =
            Transcript::create(dir.path(), "first-", "n0nce".into(), &sink).unwrap();
        for line in Lines::new(flood(text, end)) {
            transcript.take(Said::Console(line.unwrap()), Duration::ZERO);
        }
        let evidence = transcript.finish();
        assert_eq!(evidence.console_verdict, Some(("n0nce".into(), 0)));
        assert!(evidence.trouble.len() <= MOST_TROUBLE && evidence.tail.len() <= TAIL);
        let log = std::fs::read_to_string(dir.path().join("first-console.log")).unwrap();
        assert!(log.len() <= MOST_KEPT, "{}", log.len());
        assert!(log.ends_with("\nMATRIX-VERDICT n0nce 0\n"));
        assert_eq!(log.matches("were left out]").count(), 1);
    }

    #[test]
    fn records_of_many_mib_are_cut_and_a_phase_after_them_is_not_reached() {
        let dir = tempfile::tempdir().unwrap();
        let ignore = |_: Event| ();
        let sink = Sink::new("a", &ignore);
        let mut transcript = Transcript::create(dir.path(), "", String::new(), &sink).unwrap();
        let mut take = |line: &str| transcript.take(Said::Result(line.into()), Duration::ZERO);
        assert_eq!(take("@begin a"), Power::On);
        let long = format!("|{}", "x".repeat(1 << 16));
        for _ in 0..600 {
            take(&long);
        }
        assert_eq!(take("@phase cut"), Power::On);
        let evidence = transcript.finish();
        assert!(evidence.records.excess().is_some() && evidence.reached.is_empty());
        let log = std::fs::metadata(dir.path().join("results.log")).unwrap();
        assert!(log.len() <= MOST_KEPT as u64, "{}", log.len());
    }
}
