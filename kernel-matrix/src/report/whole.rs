//! Results of all shards of a matrix as one file without a seal, for a repository: they are as trustworthy as that.

use super::merge::Merged;
use crate::results::{FORMAT, Results, Run};
use longshore_lab::host::error::Error;

/// Returns the results as the text of a file.
///
/// # Errors
/// There is no run.
pub(crate) fn text(merged: &Merged) -> Result<String, Error> {
    let unexpected = |why: String| Error::Unexpected(format!("results of all shards: {why}"));
    let Some(first) = merged.runs.first() else { return Err(unexpected("there is no run".into())) };
    let runs = || merged.runs.iter();
    let run = Run {
        id: merged.id(),
        began: runs().map(|run| run.began).min().unwrap_or(first.began),
        ended: merged.ended(),
        complete: runs().all(|run| run.complete) && merged.problems.is_empty(),
        changed_only: runs().any(|run| run.changed_only),
        shard: None,
        ..first.clone()
    };
    let results = Results {
        format: FORMAT,
        run,
        kernels: merged.kernels.clone(),
        drivers: merged.drivers.clone(),
        excluded: merged.excluded.clone(),
        planned: merged.cells.iter().map(|cell| cell.planned.clone()).collect(),
        cells: merged.cells.iter().filter_map(|cell| cell.result.clone()).collect(),
        seal: None,
    };
    let text = serde_json::to_string_pretty(&results).map_err(|e| unexpected(e.to_string()))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::super::merge::Source;
    use super::*;
    use crate::results::{Authenticity, Shard, sample};

    #[test]
    fn two_shards_are_one_run_without_seal() {
        let shards = [1, 2].map(|index| {
            let mut results = sample::results();
            results.run.shard = Some(Shard { index, count: 2 });
            results.run.nonce = index.to_string().as_str().into();
            let half = results.cells.split_off(4);
            if index == 2 {
                results.cells = half;
            }
            let file = index.to_string();
            Source { file, results, authenticity: Authenticity::Sealed }
        });
        let merged = Merged::merge(shards.into()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.json");
        std::fs::write(&path, text(&merged).unwrap()).unwrap();
        let (read, authenticity) = Results::read(&path, None).unwrap();
        assert!(matches!(authenticity, Authenticity::Unproven(_)));
        assert_eq!((read.run.shard, read.run.complete), (None, true));
        assert_eq!(read.cells, sample::results().cells);
        assert_eq!(read.planned, sample::results().planned);
    }

    #[test]
    fn a_missing_shard_makes_an_incomplete_run() {
        let mut results = sample::results();
        results.run.shard = Some(Shard { index: 1, count: 2 });
        let source = Source { file: "a".into(), results, authenticity: Authenticity::Sealed };
        let text = text(&Merged::merge(vec![source]).unwrap()).unwrap();
        let results: Results = serde_json::from_str(&text).unwrap();
        assert!(!results.run.complete);
    }
}
