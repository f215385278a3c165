//! Status of a cell in the report: the kind of its verdict, or that it has none.

use serde::{Deserialize, Serialize};

use crate::results::{Line, Verdict};

/// Status of a cell, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    /// The scenario passed.
    Works,
    /// The scenario passed, with patches.
    WorksPatched,
    /// The modules compiled, and nothing was booted.
    Compiled,
    /// The same, with patches.
    CompiledPatched,
    /// Preflight refused it.
    Refused,
    /// A package cannot be had.
    Unavailable,
    /// The driver does not compile.
    DoesNotCompile,
    /// The scenario failed.
    Faulty,
    /// The cell was not run.
    NotRun,
    /// The cell was planned and has no result.
    Missing,
}

use Status::{
    Compiled, CompiledPatched, DoesNotCompile, Faulty, Missing, NotRun, Refused, Unavailable,
    Works, WorksPatched,
};

impl Status {
    /// All of them, from the best to the worst.
    pub(crate) const ALL: [Self; 10] = [
        Works,
        WorksPatched,
        Compiled,
        CompiledPatched,
        Refused,
        Unavailable,
        DoesNotCompile,
        Faulty,
        NotRun,
        Missing,
    ];

    /// Returns symbol, word, name in files and classes, and meaning.
    fn row(self) -> [&'static str; 4] {
        match self {
            Works => ["✓", "works", "works", "compiled, booted, scenario passed"],
            WorksPatched => ["◐", "patched", "works-patched", "passed with longshore's patches"],
            Compiled => ["⚒", "compiled", "compiled", "modules compile, nothing booted"],
            CompiledPatched => [
                "⚙",
                "with patch",
                "compiled-patched",
                "modules compile with longshore's patches, nothing booted",
            ],
            Refused => ["⊘", "refused", "refused", "refused before any change"],
            Unavailable => ["∅", "absent", "unavailable", "a package is not in the archive"],
            DoesNotCompile => {
                ["✗", "no compile", "does-not-compile", "does not compile for this kernel"]
            }
            Faulty => ["!", "faulty", "faulty", "ran and failed, or did not end"],
            NotRun => ["–", "not run", "not-run", "could not be run"],
            Missing => ["?", "missing", "missing", "planned, and in no results"],
        }
    }

    /// Returns its symbol.
    pub(crate) fn symbol(self) -> &'static str {
        self.row()[0]
    }

    /// Returns its word, short enough for a table.
    pub(crate) fn word(self) -> &'static str {
        self.row()[1]
    }

    /// Returns its name in files and style sheets.
    pub(crate) fn name(self) -> &'static str {
        self.row()[2]
    }

    /// Returns its meaning.
    pub(crate) fn meaning(self) -> &'static str {
        self.row()[3]
    }

    /// True if the matrix did not answer: such a cell needs somebody.
    pub(crate) fn is_red(self) -> bool {
        matches!(self, Faulty | NotRun | Missing)
    }

    /// True if the modules compiled, and nothing was booted.
    pub(crate) fn is_compiled(self) -> bool {
        matches!(self, Compiled | CompiledPatched)
    }

    /// True if a node can run this combination.
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Works | WorksPatched)
    }
}

impl From<&Verdict> for Status {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Works {} => Works,
            Verdict::WorksPatched { .. } => WorksPatched,
            Verdict::Compiled { patches } if patches.is_empty() => Compiled,
            Verdict::Compiled { .. } => CompiledPatched,
            Verdict::Refused { .. } => Refused,
            Verdict::DoesNotCompile { .. } => DoesNotCompile,
            Verdict::Unavailable { .. } => Unavailable,
            Verdict::Faulty { .. } | Verdict::GuestEnded { .. } => Faulty,
            Verdict::NotRun { .. } => NotRun,
        }
    }
}

/// Returns the reason of a verdict in one line; empty where there is nothing to explain.
pub(crate) fn reason(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Works {} => String::new(),
        Verdict::WorksPatched { patches } | Verdict::Compiled { patches } => {
            Line::list(patches, ", ")
        }
        Verdict::Refused { code, reason, .. } => format!("{code}: {reason}"),
        Verdict::DoesNotCompile { class, name, line, .. } if name.is_empty() => {
            format!("{class}: {line}")
        }
        Verdict::DoesNotCompile { class, name, .. } => format!("{class}: {name}"),
        Verdict::Unavailable { part, why } => format!("{part}: {why}"),
        Verdict::Faulty { why } => why.first().map(ToString::to_string).unwrap_or_default(),
        Verdict::GuestEnded { class, why } => {
            let why = why.first().map(Line::as_str).unwrap_or_default();
            format!("{class}: {why}")
        }
        Verdict::NotRun { why } => why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::results::GuestEnd;

    #[test]
    fn no_two_statuses_look_alike() {
        for column in 0..4 {
            let texts: BTreeSet<&str> = Status::ALL.iter().map(|s| s.row()[column]).collect();
            assert_eq!(texts.len(), Status::ALL.len(), "column {column}");
        }
        assert!(Status::ALL.is_sorted());
    }

    #[test]
    fn the_reason_of_a_guests_end_begins_with_its_kind() {
        let why = vec![Line::new("still at `start` after 900 s, killed"), Line::new("more")];
        let verdict = Verdict::GuestEnded { class: GuestEnd::Hung, why };
        assert_eq!(reason(&verdict), "hung: still at `start` after 900 s, killed");
        assert!(Status::from(&verdict).is_red());
    }

    #[test]
    fn a_status_has_one_name_in_classes_and_in_files() {
        for status in Status::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
    }
}
