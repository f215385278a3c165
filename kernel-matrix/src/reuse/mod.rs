//! Results of earlier runs that stand for cells with the same key, so that these are not compiled again.
//!
//! A key covers everything that a result depends on, so that its age does not count. Outcomes alone are reused:
//! compiled modules, passed scenarios and compile failures of a known class. Everything else depends on the day and
//! the machine, or costs no compile.

pub mod kept;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;

use crate::results::{Authenticity, CellResult, Digest, Key, Line, Results, Verdict};
use longshore_lab::host::error::Error;

/// Class of a compile failure that no rule recognizes: it may lie in the machine.
const UNKNOWN_CLASS: &str = "unknown";

/// Earlier results, by key.
#[derive(Debug, Default)]
pub struct Earlier {
    by_key: BTreeMap<Digest, EarlierResult>,
    names: BTreeSet<Line>,
}

#[derive(Debug)]
struct EarlierResult {
    /// Sealed results count for more than others, then the later ones.
    rank: (bool, Timestamp),
    result: CellResult,
}

impl Earlier {
    /// Adds the outcomes of a run. Of two results with one key, the sealed one counts, then that of the later run.
    /// Outcomes of results that are not sealed are marked; sealed results have them marked already, and they are
    /// left out: whoever accepted them did so for one run.
    pub fn add(&mut self, results: Results, authenticity: &Authenticity) {
        let is_sealed = matches!(authenticity, Authenticity::Sealed);
        let (id, rank) = (results.run.id, (is_sealed, results.run.ended));
        for mut result in results.cells {
            if is_sealed && result.unproven {
                continue;
            }
            let Some(key) = result.key.clone().filter(|_| is_outcome(&result.verdict)) else {
                continue;
            };
            result.unproven = !is_sealed;
            // The run that had the outcome, not one that took it over.
            result.reused_from.get_or_insert_with(|| id.clone());
            self.names.insert(result.name.clone());
            if self.by_key.get(&key).is_none_or(|found| found.rank <= rank) {
                self.by_key.insert(key, EarlierResult { rank, result });
            }
        }
    }

    /// True if a cell of this name has had an outcome: then it is worth asking for its key.
    pub fn knows(&self, name: &str) -> bool {
        self.names.contains(&Line::new(name))
    }

    /// Returns the outcome with this key as that of the cell `name`, with the run that it is of.
    pub fn outcome(&self, key: &Digest, name: &str) -> Option<CellResult> {
        let found = self.by_key.get(key)?;
        Some(CellResult { name: Line::new(name), ..found.result.clone() })
    }
}

/// True for a verdict that the same inputs give again.
pub fn is_outcome(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Works {} | Verdict::WorksPatched { .. } | Verdict::Compiled { .. } => true,
        Verdict::DoesNotCompile { class, .. } => class.as_str() != UNKNOWN_CLASS,
        // Other ones on another day: the archive changes, and longshore supports more.
        Verdict::Refused { .. } | Verdict::Unavailable { .. } => false,
        Verdict::GuestEnded { .. } | Verdict::Faulty { .. } | Verdict::NotRun { .. } => false,
    }
}

/// Reads results that a person names, to reuse them or to push their sets.
///
/// # Errors
/// They cannot be read, or were changed after they were sealed; without `unsealed`, also those that this key did not
/// seal.
pub fn read(path: &Path, key: &Key, unsealed: bool) -> Result<(Results, Authenticity), Error> {
    let (results, authenticity) = Results::read(path, Some(key))?;
    match authenticity {
        Authenticity::Unproven(why) if !unsealed => Err(Error::Unexpected(format!(
            "results {} are not used, because nothing vouches for them: {why}; give the key that \
             sealed them (--seal-key)",
            path.display()
        ))),
        authenticity => Ok((results, authenticity)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    /// The sample with a key of its own for each cell.
    fn results() -> Results {
        let mut results = sample::results();
        for (at, cell) in results.cells.iter_mut().enumerate() {
            cell.key = Some(Digest::from_sha256(&[u8::try_from(at).unwrap(); 32]));
        }
        results
    }

    #[test]
    fn outcomes_alone_are_reused() {
        let results = results();
        let mut earlier = Earlier::default();
        earlier.add(results.clone(), &Authenticity::Sealed);
        for cell in &results.cells {
            let outcome = earlier.outcome(cell.key.as_ref().unwrap(), cell.name.as_str());
            let expected = matches!(
                cell.verdict,
                Verdict::Works {}
                    | Verdict::WorksPatched { .. }
                    | Verdict::Compiled { .. }
                    | Verdict::DoesNotCompile { .. }
            );
            assert_eq!(
                (outcome.is_some(), earlier.knows(cell.name.as_str())),
                (expected, expected)
            );
        }
        assert!(earlier.by_key.len() >= 4, "{}", earlier.by_key.len());
    }

    #[test]
    fn a_failure_of_no_known_class_is_tried_again() {
        let verdict = |class: &str| Verdict::DoesNotCompile {
            class: Line::new(class),
            name: Line::default(),
            line: Line::new("error"),
            remedy: Line::default(),
        };
        assert!(is_outcome(&verdict("interface-gone")) && !is_outcome(&verdict("unknown")));
    }

    #[test]
    fn the_later_run_counts_and_the_run_of_the_outcome_is_named() {
        let mut earlier = Earlier::default();
        let mut later = results();
        later.run.ended = "2026-11-24T01:00:00Z".parse().unwrap();
        later.run.id = Line::new("later");
        later.cells[0].verdict = Verdict::Compiled { patches: vec![Line::new("p")] };
        later.cells[1].verdict = Verdict::Works {};
        later.cells[1].reused_from = Some(Line::new("first"));
        let keys: Vec<Digest> = later.cells.iter().filter_map(|cell| cell.key.clone()).collect();
        for results in [later.clone(), results()] {
            earlier.add(results, &Authenticity::Sealed);
        }
        let outcome = earlier.outcome(&keys[0], "renamed").unwrap();
        assert_eq!((&outcome.verdict, outcome.name.as_str()), (&later.cells[0].verdict, "renamed"));
        assert_eq!(outcome.reused_from, Some(Line::new("later")));
        let outcome = earlier.outcome(&keys[1], "x").unwrap();
        assert_eq!(outcome.reused_from, Some(Line::new("first")));
        assert_eq!(earlier.outcome(&Digest::from_sha256(&[99; 32]), "x"), None);
    }

    #[test]
    fn an_unsealed_outcome_counts_for_one_run_and_never_for_more_than_a_sealed_one() {
        let unproven = Authenticity::Unproven("another key".to_owned());
        let mut forged = results();
        forged.run.ended = "2099-01-01T00:00:00Z".parse().unwrap();
        let cell = forged.cells.iter().find(|cell| is_outcome(&cell.verdict)).unwrap().clone();
        let key = cell.key.clone().unwrap();
        let mut earlier = Earlier::default();
        earlier.add(forged.clone(), &unproven);
        assert!(earlier.outcome(&key, "x").unwrap().unproven);
        earlier.add(results(), &Authenticity::Sealed);
        earlier.add(forged.clone(), &unproven);
        assert!(!earlier.outcome(&key, "x").unwrap().unproven);
        // The run that accepted it seals it, with its mark.
        forged.cells.iter_mut().for_each(|cell| cell.unproven = true);
        let mut next = Earlier::default();
        next.add(forged, &Authenticity::Sealed);
        assert_eq!(next.outcome(&key, "x"), None);
    }

    #[test]
    fn results_count_by_their_seal_or_where_a_person_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let keys = ["a", "b"].map(|name| Key::read_or_make(&dir.path().join(name)).unwrap());
        let path = dir.path().join("results.json");
        results().write(&path, &keys[0]).unwrap();
        assert!(read(&path, &keys[0], false).is_ok() && read(&path, &keys[1], true).is_ok());
        let error = read(&path, &keys[1], false).unwrap_err().to_string();
        assert!(error.contains("nothing vouches") && error.contains("--seal-key"), "{error}");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"does-not-compile\"", "\"does-not-compile\" "))
            .unwrap();
        assert!(read(&path, &keys[0], false).is_ok(), "the same values in another form");
        std::fs::write(&path, text.replace("interface-gone", "interface-changed")).unwrap();
        for unsealed in [false, true] {
            let error = read(&path, &keys[0], unsealed).unwrap_err().to_string();
            assert!(error.contains("changed after they were sealed"), "{error}");
        }
    }
}
