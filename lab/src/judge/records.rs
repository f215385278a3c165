//! Records of a guest on its results port, one a line (see guest/scripts/lib.sh).

use std::collections::BTreeMap;

use crate::host::bounded_output::size;
use crate::judge::log_text;

/// Most memory for the records of a guest, in MiB.
const MOST_MIB: usize = 16;

/// All records of a guest.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Records {
    /// Phases, in order.
    pub phases: Vec<String>,
    /// Facts by key.
    pub facts: BTreeMap<String, String>,
    /// Finished sections by name; logs are converted to the format for people.
    pub sections: BTreeMap<String, Vec<String>>,
    /// Nonce and exit code of the last record.
    pub verdict: Option<(String, i32)>,
    /// Lines that are not records.
    pub noise: Vec<String>,
    open: Option<(String, Vec<String>)>,
    /// Memory of the lines that were taken, with those of the first line that was too much.
    bytes: usize,
}

/// Kind of a line that was taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<'a> {
    /// The beginning of this phase.
    Phase(&'a str),
    /// The end of this section.
    Section(&'a str, &'a [String]),
    /// Anything else.
    Line,
}

impl Records {
    /// Takes one line. After too many no more are taken ([`Self::excess`]).
    pub fn take(&mut self, line: &str) -> Taken<'_> {
        if self.excess().is_some() {
            return Taken::Line;
        }
        self.bytes += size(line);
        if self.excess().is_some() {
            return Taken::Line;
        }
        if let Some((name, lines)) = &mut self.open {
            if let Some(text) = line.strip_prefix('|') {
                lines.push(text.to_owned());
                return Taken::Line;
            }
            if line.strip_prefix("@end ") == Some(name) {
                return self.close();
            }
        }
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            "@phase" => {
                self.phases.push(rest.to_owned());
                return self.phases.last().map_or(Taken::Line, |name| Taken::Phase(name));
            }
            "@fact" => {
                let (key, value) = rest.split_once(' ').unwrap_or((rest, ""));
                self.facts.insert(key.to_owned(), value.to_owned());
            }
            "@begin" => self.open = Some((rest.to_owned(), Vec::new())),
            "@verdict" => {
                self.verdict = rest
                    .split_once(' ')
                    .and_then(|(nonce, code)| Some((nonce.to_owned(), code.parse().ok()?)));
            }
            _ => self.noise.push(line.to_owned()),
        }
        Taken::Line
    }

    /// Returns the fault of a guest whose records are incomplete because they were too many.
    pub fn excess(&self) -> Option<String> {
        let is_too_much = self.bytes > MOST_MIB << 20;
        is_too_much.then(|| format!("the guest wrote more than {MOST_MIB} MiB of records"))
    }

    /// Ends the open section.
    fn close(&mut self) -> Taken<'_> {
        let Some((name, lines)) = self.open.take() else { return Taken::Line };
        let lines = if name.contains("log") { log_text::for_people(&lines) } else { lines };
        self.sections.insert(name.clone(), lines);
        match self.sections.get_key_value(&name) {
            Some((name, lines)) => Taken::Section(name, lines),
            None => Taken::Line,
        }
    }

    /// Returns a fact, and `none` where the guest did not report it.
    pub(crate) fn fact(&self, key: &str) -> &str {
        self.facts.get(key).map_or("none", String::as_str)
    }

    /// Returns a fact that is not `wanted`.
    pub(crate) fn unlike(&self, key: &str, wanted: &str) -> Option<&str> {
        Some(self.fact(key)).filter(|fact| *fact != wanted)
    }

    /// Returns a finished section, or an error text if the guest never reported it.
    ///
    /// # Errors
    /// The section is missing or was cut off.
    pub fn section(&self, name: &str) -> Result<&[String], String> {
        self.sections
            .get(name)
            .map(Vec::as_slice)
            .ok_or_else(|| format!("the guest did not report `{name}`"))
    }

    /// Returns the faults that `judge` finds in a section; that it is missing is one.
    pub(crate) fn faults(
        &self,
        section: &str,
        judge: impl FnOnce(&[String]) -> Vec<String>,
    ) -> Vec<String> {
        self.section(section).map_or_else(|missing| vec![missing], judge)
    }

    /// Returns all lines of a section as one text; empty where it is missing.
    pub fn text(&self, name: &str) -> String {
        self.sections.get(name).map(|lines| lines.join("\n")).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &str) -> Records {
        let mut records = Records::default();
        for line in text.lines() {
            records.take(line);
        }
        records
    }

    #[test]
    fn all_kinds_are_read() {
        let read = records(
            "@phase start\n@fact exit-code 17\n@begin a\n|one\n|@end a\n|\n@end a\n@verdict abc 0",
        );
        assert_eq!(read.phases, ["start"]);
        assert_eq!(read.facts["exit-code"], "17");
        assert_eq!(read.sections["a"], ["one", "@end a", ""]);
        assert_eq!(read.verdict, Some(("abc".into(), 0)));
        assert!(read.noise.is_empty());
    }

    #[test]
    fn a_section_that_was_cut_off_is_missing() {
        let read = records("@begin a\n|one");
        assert!(read.section("a").unwrap_err().contains("`a`"));
    }

    #[test]
    fn after_too_many_records_none_is_taken() {
        for line in ["@begin a", "|x", "@fact a x", "@phase a", "noise", ""] {
            let mut records = Records::default();
            let long = format!("{line}{}", "x".repeat(1 << 16));
            for _ in 0..255 {
                records.take(&long);
            }
            assert_eq!(records.excess(), None, "{line}");
            records.take(&long);
            let why = records.excess().unwrap();
            assert_eq!(why, "the guest wrote more than 16 MiB of records", "{line}");
            records.take("@verdict abc 0");
            assert_eq!(records.verdict, None, "{line}");
        }
    }

    #[test]
    fn nonsense_is_noise_and_a_garbled_verdict_is_none() {
        let read = records("hello\n@verdict abc\n@verdict abc x");
        assert_eq!(read.noise, ["hello"]);
        assert_eq!(read.verdict, None);
    }
}
